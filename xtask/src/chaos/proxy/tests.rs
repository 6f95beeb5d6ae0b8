//! The proxy in front of a real Redis server.

use std::{process::Command, time::Instant};

use super::*;
use crate::server::{Server, send_command};

struct Fixture {
    // Dropped in this order: the proxy before the server behind it.
    proxy: Proxy,
    server: Server,
    _directory: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let server =
        Server::start(directory.path().to_owned(), || Command::new("redis-server")).unwrap();
    Fixture {
        proxy: Proxy::start(server.address()).unwrap(),
        server,
        _directory: directory,
    }
}

/// A connection with a read timeout.
fn client(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    stream
}

fn send(stream: &mut TcpStream, command: &str) -> io::Result<String> {
    stream.write_all(command.as_bytes())?;
    let mut answer = [0; 100];
    match stream.read(&mut answer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(String::from_utf8_lossy(&answer[..count]).into_owned()),
    }
}

#[test]
fn forwards_everything_without_a_fault() {
    let fixture = fixture();
    let mut stream = client(&fixture.proxy);
    assert_eq!(send(&mut stream, "SET a 1\r\n").unwrap(), "+OK\r\n");
    assert_eq!(send(&mut stream, "GET a\r\n").unwrap(), "$1\r\n1\r\n");
    let long = "x".repeat(3_000_000);
    assert_eq!(
        send(
            &mut stream,
            &format!("*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$3000000\r\n{long}\r\n")
        )
        .unwrap(),
        "+OK\r\n"
    );
    assert_eq!(send(&mut stream, "STRLEN b\r\n").unwrap(), ":3000000\r\n");
    assert_eq!(fixture.proxy.affected_connections(), 0);
}

#[test]
fn delays_replies() {
    let fixture = fixture();
    let mut stream = client(&fixture.proxy);
    fixture
        .proxy
        .set(Some(NetworkFault::Latency(Duration::from_millis(150))));
    let begun = Instant::now();
    assert_eq!(send(&mut stream, "PING\r\n").unwrap(), "+PONG\r\n");
    assert!(begun.elapsed() >= Duration::from_millis(150));
    fixture.proxy.set(None);
    assert_eq!(send(&mut stream, "PING\r\n").unwrap(), "+PONG\r\n");
}

#[test]
fn resets_connections_until_the_fault_ends() {
    let fixture = fixture();
    let mut stream = client(&fixture.proxy);
    assert!(send(&mut stream, "PING\r\n").is_ok());
    fixture.proxy.set(Some(NetworkFault::Reset));
    assert!(send(&mut stream, "PING\r\n").is_err());
    assert!(send_command(fixture.proxy.address(), "PING\r\n").is_err());
    fixture.proxy.set(None);
    assert_eq!(
        send(&mut client(&fixture.proxy), "PING\r\n").unwrap(),
        "+PONG\r\n"
    );
    assert!(fixture.proxy.affected_connections() >= 1);
}

#[test]
fn never_answers_half_open_connections() {
    let fixture = fixture();
    let mut old = client(&fixture.proxy);
    assert!(send(&mut old, "PING\r\n").is_ok());
    fixture.proxy.set(Some(NetworkFault::HalfOpen));
    let mut new = client(&fixture.proxy);
    for stream in [&mut old, &mut new] {
        let error = send(stream, "SET a 1\r\n").unwrap_err();
        assert!(
            matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ),
            "{error}"
        );
    }
    fixture.proxy.set(None);
    // Neither gets a late reply: both are reset.
    for stream in [&mut old, &mut new] {
        assert_eq!(
            stream.read(&mut [0; 10]).unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
    }
    assert_eq!(
        send_command(fixture.server.address(), "EXISTS a\r\n").unwrap(),
        ":0\r\n"
    );
}

#[test]
fn applies_a_request_and_cuts_its_reply() {
    let fixture = fixture();
    let mut stream = client(&fixture.proxy);
    assert!(send(&mut stream, "PING\r\n").is_ok());
    fixture.proxy.set(Some(NetworkFault::CutReply));
    assert!(send(&mut stream, "INCR a\r\n").is_err());
    fixture.proxy.set(None);
    assert_eq!(
        send(&mut client(&fixture.proxy), "GET a\r\n").unwrap(),
        "$1\r\n1\r\n"
    );
    assert_eq!(fixture.proxy.affected_connections(), 1);
}

#[test]
fn refuses_connections_while_the_server_is_down() {
    let mut fixture = fixture();
    fixture.server.kill();
    assert!(send_command(fixture.proxy.address(), "PING\r\n").is_err());
    fixture.server.launch().unwrap();
    fixture.server.wait_until_ready().unwrap();
    assert_eq!(
        send_command(fixture.proxy.address(), "PING\r\n").unwrap(),
        "+PONG\r\n"
    );
}
