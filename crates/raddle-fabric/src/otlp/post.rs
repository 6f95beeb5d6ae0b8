//! One request to a collector, over a connection of its own.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::Endpoint;

/// How long a collector may take.
const WITHIN: Duration = Duration::from_secs(5);
/// How much of an answer is read: its first line says all.
const ANSWER: u64 = 4 << 10;

/// Posts a body. An error says what came instead of a success.
pub(super) async fn post(endpoint: &Endpoint, body: &[u8]) -> io::Result<()> {
    timeout(WITHIN, talk(endpoint, body)).await.map_err(io::Error::from)?
}

async fn talk(endpoint: &Endpoint, body: &[u8]) -> io::Result<()> {
    let Endpoint { address, path, .. } = endpoint;
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let line = answer.lines().next().unwrap_or_default();
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)).unwrap_or_default();
    if code.len() == 3 && code.starts_with('2') {
        return Ok(());
    }
    let line: String = line.chars().filter(|c| !c.is_control()).take(100).collect();
    Err(io::Error::other(format!("the collector answered '{line}'")))
}
