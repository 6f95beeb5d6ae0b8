//! The network of a sandbox: loopback, the host's network on request, or listed endpoints.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use raddle_model::ExitStatus;
use raddle_runner::{ExecRequest, RunnerCommand, SandboxConfig};

use super::{boxed, hygiene::descendants, rigs, stdout};
use crate::support::{Rig, code};

/// Sends a request to the proxy and prints the response.
const SAY: &str = "import os, socket, sys\n\
    at = os.environ['HTTPS_PROXY'].removeprefix('http://').split(':')\n\
    def say(text):\n  \
      s = socket.create_connection((at[0], int(at[1])), timeout=20); s.sendall(text.encode())\n  \
      got = b''\n  \
      while True:\n    \
        part = s.recv(65536)\n    \
        if not part: return got.decode()\n    \
        got += part\n";

/// A server on the host that echoes each request and counts connections.
struct EchoServer {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
}

impl EchoServer {
    /// Serves until the test ends.
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, count) = (
            listener.local_addr().unwrap(),
            Arc::new(AtomicUsize::new(0)),
        );
        let counted = Arc::clone(&count);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || answer(stream));
            }
        });
        Self { address, count }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

fn answer(mut stream: std::net::TcpStream) {
    let mut part = [0; 4096];
    let Ok(n) = stream.read(&mut part) else {
        return;
    };
    let said = String::from_utf8_lossy(&part[..n]).replace("\r\n", "|");
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{said}",
        said.len()
    );
}

fn within(request: ExecRequest, network: &str) -> ExecRequest {
    let network = network.parse().unwrap();
    ExecRequest {
        sandbox: Some(SandboxConfig {
            network,
            ..SandboxConfig::default()
        }),
        ..request
    }
}

async fn python(rig: &mut Rig, network: &str, script: &str) -> String {
    let request = within(rig.command(&["python3", "-c", script]), network);
    stdout(&rig.run(&request).await)
}

#[tokio::test]
async fn allows_connections_to_loopback() {
    let script = "import socket\n\
        for family, host in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')]:\n  \
          s = socket.socket(family); s.bind((host, 0)); s.listen()\n  \
          c = socket.create_connection(s.getsockname()[:2], timeout=10); c.sendall(b'hello')\n  \
          print(s.accept()[0].recv(5).decode())";
    for mut rig in rigs().await {
        for network in ["none", "example.org:443"] {
            assert_eq!(python(&mut rig, network, script).await, "hello\nhello\n");
        }
        rig.finish().await;
    }
}

#[tokio::test]
async fn uses_the_host_network_on_request() {
    let place = EchoServer::open();
    let script = format!(
        "import socket\ns = socket.create_connection(('localhost', {}), timeout=10); s.sendall(b'x'); print(len(s.recv(100)) > 0)\n\
         try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW); print('netlink')\nexcept OSError: pass",
        place.address.port()
    );
    for mut rig in rigs().await {
        assert_eq!(python(&mut rig, "host", &script).await, "True\n");
        rig.finish().await;
    }
    assert!(place.count() >= 1);
}

#[tokio::test]
async fn reaches_listed_endpoints_only() {
    let (listed, other) = (EchoServer::open(), EchoServer::open());
    let (here, there) = (listed.address, other.address);
    let script = format!(
        "{SAY}print(say('CONNECT {here} HTTP/1.1\\r\\n\\r\\nthrough'))\n\
         print(say('GET http://{here}/a HTTP/1.1\\r\\nHost: x\\r\\nAccept: y\\r\\n\\r\\n').split('\\r\\n\\r\\n')[1])\n\
         for target in ['{there}', 'localhost:{port}', 'example.org:443', '[::ffff:127.0.0.1]:{port}', '2130706433:{port}']:\n  \
           for head in ['CONNECT %s', 'GET http://%s/']:\n    \
             print(say(head % target + ' HTTP/1.1\\r\\n\\r\\n').split('\\r\\n')[0])\n\
         for nonsense in ['GET / HTTP/1.1\\r\\n\\r\\n', 'hello\\r\\n\\r\\n', 'CONNECT x HTTP/1.1\\r\\n\\r\\n']:\n  \
           print(say(nonsense).split('\\r\\n')[0])\n\
         try: socket.create_connection(('{host}', {port}), timeout=5); print('past the proxy')\n\
         except OSError: pass",
        host = here.ip(),
        port = here.port(),
    );
    for mut rig in rigs().await {
        let before = listed.count();
        let said = python(&mut rig, &here.to_string(), &script).await;
        let (through, rest) = said.split_once("through\n").unwrap();
        assert!(
            through.starts_with("HTTP/1.1 200 Connection established"),
            "{said}"
        );
        let mut lines = rest.lines();
        assert_eq!(
            lines.next().unwrap(),
            format!("GET /a HTTP/1.1|Host: {here}|Connection: close|Accept: y||")
        );
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines[..10], ["HTTP/1.1 403 Forbidden"; 10]);
        assert_eq!(lines[10..], ["HTTP/1.1 400 Bad Request"; 3]);
        assert_eq!(listed.count() - before, 2);
        rig.finish().await;
    }
    assert_eq!(other.count(), 0);
}

/// The owner of a name can make it resolve to any address.
#[tokio::test]
async fn refuses_names_that_resolve_to_the_host() {
    let place = EchoServer::open();
    let port = place.address.port();
    let script = format!("{SAY}print(say('CONNECT localhost:{port} HTTP/1.1\\r\\n\\r\\nx'))");
    for mut rig in rigs().await {
        let said = python(&mut rig, &format!("localhost:{port}"), &script).await;
        assert!(
            said.starts_with("HTTP/1.1 403")
                && said.contains("resolves to an address of the host itself"),
            "{said}"
        );
        assert_eq!(place.count(), 0);
        rig.finish().await;
    }
    let mut rig = Rig::new().await;
    let said = python(
        &mut rig,
        &format!("localhost:{port},127.0.0.1:{port}"),
        &script,
    )
    .await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    rig.finish().await;
}

#[tokio::test]
async fn programs_use_the_proxy_from_the_environment() {
    let place = EchoServer::open();
    let fetch = format!(
        "import urllib.request\nprint(urllib.request.urlopen('http://{}/x').read().decode().split('|')[0])",
        place.address
    );
    let mut rig = Rig::new().await;
    assert_eq!(
        python(&mut rig, &place.address.to_string(), &fetch).await,
        "GET /x HTTP/1.1\n"
    );
    rig.finish().await;
}

#[tokio::test]
async fn queues_connections_beyond_the_limit() {
    let place = EchoServer::open();
    let script = format!(
        "{SAY}import threading\ngot = []\n\
         def one(): got.append(say('CONNECT {} HTTP/1.1\\r\\n\\r\\nx')[:12])\n\
         all = [threading.Thread(target=one) for _ in range(100)]\n[t.start() for t in all]; [t.join() for t in all]\n\
         print(len(got), set(got))",
        place.address
    );
    let mut rig = Rig::new().await;
    assert_eq!(
        python(&mut rig, &place.address.to_string(), &script).await,
        "100 {'HTTP/1.1 200'}\n"
    );
    rig.finish().await;
}

#[tokio::test]
async fn proxy_ends_with_its_attempt() {
    let mut rig = Rig::new().await;
    let network = "example.org:443";
    let request = within(
        rig.sh("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done"),
        network,
    );
    rig.start_until_output(&request).await;
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    assert_eq!(rig.end().await.done.exit, ExitStatus::Cancelled);
    let request = within(rig.sh("exit 7"), network);
    assert_eq!(rig.run(&request).await.done.exit, code(7));
    assert_eq!(
        descendants(rig.runner.pid()),
        Vec::<u32>::new(),
        "no proxy is left"
    );
    let request = boxed(rig.command(&["sh", "-c", "env | grep -ci proxy"]));
    assert_eq!(rig.run(&request).await.stdout, b"0\n");
    rig.finish().await;
}
