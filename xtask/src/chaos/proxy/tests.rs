//! The proxy before a real server, spoken to in its own language.

use std::{process::Command, time::Instant};

use super::*;
use crate::server::{Server, ask};

struct Bed {
    // Dropped in this order: the proxy before what is behind it.
    proxy: Proxy,
    server: Server,
    _directory: tempfile::TempDir,
}

fn bed() -> Bed {
    let directory = tempfile::tempdir().unwrap();
    let server =
        Server::start(directory.path().to_owned(), || Command::new("redis-server")).unwrap();
    Bed {
        proxy: Proxy::start(server.address()).unwrap(),
        server,
        _directory: directory,
    }
}

/// A connection that stays.
fn client(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    stream
}

fn say(stream: &mut TcpStream, command: &str) -> io::Result<String> {
    stream.write_all(command.as_bytes())?;
    let mut answer = [0; 100];
    match stream.read(&mut answer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(String::from_utf8_lossy(&answer[..count]).into_owned()),
    }
}

#[test]
fn without_trouble_everything_passes() {
    let bed = bed();
    let mut stream = client(&bed.proxy);
    assert_eq!(say(&mut stream, "SET a 1\r\n").unwrap(), "+OK\r\n");
    assert_eq!(say(&mut stream, "GET a\r\n").unwrap(), "$1\r\n1\r\n");
    let long = "x".repeat(3_000_000);
    assert_eq!(
        say(
            &mut stream,
            &format!("*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$3000000\r\n{long}\r\n")
        )
        .unwrap(),
        "+OK\r\n"
    );
    assert_eq!(say(&mut stream, "STRLEN b\r\n").unwrap(), ":3000000\r\n");
    assert_eq!(bed.proxy.hits(), 0);
}

#[test]
fn replies_are_late() {
    let bed = bed();
    let mut stream = client(&bed.proxy);
    bed.proxy
        .set(Some(Trouble::Latency(Duration::from_millis(150))));
    let begun = Instant::now();
    assert_eq!(say(&mut stream, "PING\r\n").unwrap(), "+PONG\r\n");
    assert!(begun.elapsed() >= Duration::from_millis(150));
    bed.proxy.set(None);
    assert_eq!(say(&mut stream, "PING\r\n").unwrap(), "+PONG\r\n");
}

#[test]
fn connections_are_reset_and_can_be_made_again() {
    let bed = bed();
    let mut stream = client(&bed.proxy);
    assert!(say(&mut stream, "PING\r\n").is_ok());
    bed.proxy.set(Some(Trouble::Reset));
    assert!(say(&mut stream, "PING\r\n").is_err());
    assert!(ask(bed.proxy.address(), "PING\r\n").is_err());
    bed.proxy.set(None);
    assert_eq!(
        say(&mut client(&bed.proxy), "PING\r\n").unwrap(),
        "+PONG\r\n"
    );
    assert!(bed.proxy.hits() >= 1);
}

#[test]
fn half_open_connections_are_never_answered() {
    let bed = bed();
    let mut old = client(&bed.proxy);
    assert!(say(&mut old, "PING\r\n").is_ok());
    bed.proxy.set(Some(Trouble::HalfOpen));
    let mut new = client(&bed.proxy);
    for stream in [&mut old, &mut new] {
        let error = say(stream, "SET a 1\r\n").unwrap_err();
        assert!(
            matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ),
            "{error}"
        );
    }
    bed.proxy.set(None);
    // Neither is served late: they are reset, and not ended in good order.
    for stream in [&mut old, &mut new] {
        assert_eq!(
            stream.read(&mut [0; 10]).unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
    }
    assert_eq!(ask(bed.server.address(), "EXISTS a\r\n").unwrap(), ":0\r\n");
}

#[test]
fn a_request_is_applied_and_its_reply_cut() {
    let bed = bed();
    let mut stream = client(&bed.proxy);
    assert!(say(&mut stream, "PING\r\n").is_ok());
    bed.proxy.set(Some(Trouble::CutReply));
    assert!(say(&mut stream, "INCR a\r\n").is_err());
    bed.proxy.set(None);
    assert_eq!(
        say(&mut client(&bed.proxy), "GET a\r\n").unwrap(),
        "$1\r\n1\r\n"
    );
    assert_eq!(bed.proxy.hits(), 1);
}

#[test]
fn a_server_that_is_gone_is_gone_through_the_proxy_too() {
    let mut bed = bed();
    bed.server.kill();
    assert!(ask(bed.proxy.address(), "PING\r\n").is_err());
    bed.server.launch().unwrap();
    bed.server.wait_until_ready().unwrap();
    assert_eq!(ask(bed.proxy.address(), "PING\r\n").unwrap(), "+PONG\r\n");
}
