//! An HTTP client that sends exactly the given bytes.

use std::{io, net::SocketAddr, path::PathBuf};

use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

/// Where a server is.
#[derive(Clone, Debug)]
pub(super) enum ServerAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A connection.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    pub(super) body: String,
}

impl Request {
    pub(super) fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.into(),
            path: path.into(),
            headers: Vec::new(),
            body: String::new(),
        }
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(super) fn token(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    pub(super) fn json(self, body: &Value) -> Self {
        self.header("Content-Type", "application/json")
            .body(&body.to_string())
    }

    pub(super) fn form(self, body: &str) -> Self {
        self.header("Content-Type", "application/x-www-form-urlencoded")
            .body(body)
    }

    pub(super) fn body(mut self, body: &str) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the head and the body, and leaves the answer to be read.
    pub(super) async fn open(&self, place: &ServerAddress) -> io::Result<Box<dyn Connection>> {
        let (mut connection, host): (Box<dyn Connection>, String) = match place {
            ServerAddress::Tcp(address) => (
                Box::new(TcpStream::connect(address).await?),
                address.to_string(),
            ),
            ServerAddress::Unix(path) => (
                Box::new(UnixStream::connect(path).await?),
                "localhost:9460".into(),
            ),
        };
        let has_host = self
            .headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"));
        let mut head = format!(
            "{} {} HTTP/1.1\r\nConnection: close\r\n",
            self.method, self.path
        );
        if !has_host {
            head.push_str(&format!("Host: {host}\r\n"));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() || self.method != "GET" {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        let message = format!("{head}\r\n{}", self.body);
        connection.write_all(message.as_bytes()).await?;
        Ok(connection)
    }

    pub(super) async fn send(&self, place: &ServerAddress) -> Answer {
        let mut connection = self.open(place).await.unwrap();
        let mut bytes = Vec::new();
        connection.read_to_end(&mut bytes).await.unwrap();
        Answer::parse(&bytes)
    }
}

impl Answer {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let end = bytes
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let answer = Self {
            status,
            head,
            body: String::new(),
        };
        let body = &bytes[end + 4..];
        let body = match answer.header("transfer-encoding") {
            Some("chunked") => unchunk(body),
            _ => body.to_vec(),
        };
        Self {
            body: String::from_utf8_lossy(&body).into_owned(),
            ..answer
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(super) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else {
            return body;
        };
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
    }
}
