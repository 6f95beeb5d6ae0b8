//! One question to one server, and its answer.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use ring::rand::{SecureRandom, SystemRandom};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

use super::{
    message::{Kind, Query, Reject, Reply},
    name::Name,
};

/// Nobody sends larger packets to who has not asked for them: larger answers come over TCP.
const LARGEST_PACKET: usize = 4096;

/// Asks a server. It has so long for it, and as long again if the answer is too large for a packet.
pub(super) async fn ask(
    server: SocketAddr,
    name: &Name,
    kind: Kind,
    timeout: Duration,
    stream: bool,
) -> io::Result<Reply> {
    let query = Query { id: id()?, name: name.clone(), kind };
    if !stream {
        match in_time(timeout, by_packet(server, &query)).await? {
            Reply::Truncated => {}
            reply => return Ok(reply),
        }
    }
    in_time(timeout, by_stream(server, &query)).await
}

async fn in_time<T>(timeout: Duration, asking: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(timeout, asking).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn by_packet(server: SocketAddr, query: &Query) -> io::Result<Reply> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // From a port that is another one each time, and only what comes from the server: whoever wants to answer in its place has to guess.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(&query.write()).await?;
    let mut packet = vec![0; LARGEST_PACKET];
    loop {
        let length = socket.recv(&mut packet).await?;
        match query.read(&packet[..length]) {
            Ok(reply) => return Ok(reply),
            // Not a word on it: there may be a thousand.
            Err(Reject::Foreign) => {}
            Err(Reject::Malformed) => return Err(malformed()),
        }
    }
}

async fn by_stream(server: SocketAddr, query: &Query) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let question = query.write();
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[length.to_be_bytes().as_slice(), &question].concat()).await?;
    let mut packet = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut packet).await?;
    match query.read(&packet) {
        Ok(Reply::Truncated) | Err(_) => Err(malformed()),
        Ok(reply) => Ok(reply),
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its answer cannot be read")
}

fn id() -> io::Result<u16> {
    let mut id = [0; 2];
    SystemRandom::new().fill(&mut id).map_err(|_| io::Error::other("no random numbers"))?;
    Ok(u16::from_be_bytes(id))
}
