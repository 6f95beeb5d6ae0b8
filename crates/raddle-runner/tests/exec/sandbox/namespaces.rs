//! The network namespace of each attempt, and that nothing of it is left for the next attempt.

use std::{collections::BTreeSet, fs};

use raddle_runner::{ExecRequest, RunnerCommand, RunnerEvent, SandboxConfig};

use super::{boxed, rigs, status, stdout};
use crate::support::Rig;

/// Prints whether the loopback interface is up.
const IS_UP: &str = "import fcntl, socket, struct\n\
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
    flags = fcntl.ioctl(s, 0x8913, struct.pack('16sH14x', b'lo', 0))\n\
    print('up' if struct.unpack('16xH14x', flags)[0] & 1 else 'down')\n";
/// Prints the packet count of the interface, which includes some packets of its own.
const COUNT: &str = "import socket\n\
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0))\n\
    [s.sendto(b'x', s.getsockname()) for _ in range(100)]\n\
    print([line.split()[2] for line in open('/proc/self/net/dev') if line.strip().startswith('lo:')][0])\n";

fn host() -> String {
    fs::read_link("/proc/self/ns/net")
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

/// Starts a command that keeps running. Returns its shim and its network namespace.
async fn start(rig: &mut Rig, network: &str) -> (u32, String) {
    let sandbox = SandboxConfig {
        network: network.parse().unwrap(),
        ..SandboxConfig::default()
    };
    let request = ExecRequest {
        sandbox: Some(sandbox),
        ..rig.sh("readlink /proc/self/ns/net; exec sleep 300")
    };
    rig.start(&request).await;
    let pid = rig.started().await;
    match rig.next().await.unwrap() {
        RunnerEvent::Output { bytes, .. } => {
            (pid, String::from_utf8(bytes).unwrap().trim().to_owned())
        }
        other => panic!("no output but {other:?}"),
    }
}

async fn kill(rig: &mut Rig) {
    rig.runner.send(RunnerCommand::Kill).await.unwrap();
    rig.end().await;
}

#[tokio::test]
async fn concurrent_attempts_have_separate_networks() {
    let mut rigs: Vec<Rig> = rigs().await.into_iter().chain(rigs().await).collect();
    let mut networks = BTreeSet::from([host()]);
    for rig in &mut rigs {
        let (_, network) = start(rig, "none").await;
        assert!(network.starts_with("net:["), "{network}");
        networks.insert(network);
    }
    assert_eq!(networks.len(), rigs.len() + 1, "{networks:?}");
    for mut rig in rigs {
        kill(&mut rig).await;
        // Only an attempt that requests the host's network is in it.
        assert_eq!(start(&mut rig, "host").await.1, host());
        kill(&mut rig).await;
        rig.finish().await;
    }
}

#[tokio::test]
async fn each_attempt_has_a_new_network_with_loopback_up() {
    for mut rig in rigs().await {
        for _ in 0..3 {
            let request = boxed(rig.command(&["python3", "-c", &format!("{IS_UP}{COUNT}")]));
            let said = stdout(&rig.run(&request).await);
            let (state, count) = said.trim().split_once('\n').unwrap();
            let count: u32 = count.parse().unwrap();
            assert!(state == "up" && (100..200).contains(&count), "{said}");
        }
        rig.finish().await;
    }
}

/// Marks flows with labels, which stay for a while after it exits.
const LABELS: &str = "import socket, struct\n\
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n\
    for n in range(5):\n  \
      to = (b'\\xfdTOLD-%d' % n).ljust(16, b'\\0')\n  \
      s.setsockopt(41, 32, to + struct.pack('!I', 0x100 + n) + struct.pack('BBHHHI', 0, 255, 1, 100, 100, 0))\n";
/// Listens, and leaves the socket in flight between two sockets that hold each other, so that it
/// outlives its processes.
const IN_FLIGHT: &str = "import socket\n\
    listener = socket.socket(); listener.bind(('127.0.0.1', 3128)); listener.listen()\n\
    for _ in range(20):\n  \
      a, b = socket.socketpair()\n  \
      socket.send_fds(a, [b'x'], [listener.fileno(), a.fileno(), b.fileno()])\n  \
      socket.send_fds(b, [b'x'], [a.fileno(), b.fileno()])\n";
/// Sends to an address without a route, which is counted.
const IN_VAIN: &str = "import socket\n\
    for _ in range(7):\n  \
      try: socket.socket().connect(('192.0.2.1', 53))\n  \
      except OSError: pass\n";
/// Prints traces of other attempts: labels, failed sends, and whether a port is taken.
const FINDS: &str = "import socket\n\
    labels = open('/proc/self/net/ip6_flowlabel').read().splitlines()[1:]\n\
    names, counts = [line.split() for line in open('/proc/self/net/snmp') if line.startswith('Ip:')]\n\
    try: socket.socket().bind(('127.0.0.1', 3128)); taken = False\n\
    except OSError: taken = True\n\
    print(len(labels), counts[names.index('OutNoRoutes')], taken)\n";

/// None of these scripts sends a packet.
#[tokio::test]
async fn next_attempt_sees_no_network_state_of_the_last() {
    for mut rig in rigs().await {
        for leftover in [LABELS, IN_FLIGHT, IN_VAIN, LABELS] {
            for script in [leftover, FINDS] {
                let request = boxed(rig.command(&["python3", "-c", script]));
                let said = stdout(&rig.run(&request).await);
                assert!(
                    script != FINDS || said == "0 0 False\n",
                    "after {leftover}: {said}"
                );
            }
        }
        rig.finish().await;
    }
}

/// Every thread of the shim would have to drop its privileges separately.
#[tokio::test]
async fn shim_has_one_thread_and_no_network_descriptor() {
    for mut rig in rigs().await {
        for network in ["none", "host", "example.org:443"] {
            let (shim, _) = start(&mut rig, network).await;
            assert_eq!(status(shim, "Threads"), "1", "{network}");
            // Only root sees its descriptors.
            for open in fs::read_dir(format!("/proc/{shim}/fd"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let leads = fs::read_link(open.path()).unwrap_or_default();
                assert!(!leads.to_string_lossy().starts_with("net:"), "{leads:?}");
            }
            kill(&mut rig).await;
        }
        rig.finish().await;
    }
}
