//! A network that hosts are on.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use crate::{Host, namespace::Namespace};

/// A network that hosts are on: a switch, with a cable for each of them. It is there as long as something is plugged in.
#[derive(Clone)]
pub struct Lan {
    pub(crate) switch: Arc<Switch>,
}

/// What cables end at.
pub(crate) struct Switch {
    pub(crate) namespace: Namespace,
    /// In which way networks of one test differ.
    pub(crate) number: u8,
    ports: AtomicU8,
}

impl Lan {
    /// Makes one, with nobody on it.
    #[expect(clippy::new_without_default, reason = "it makes more than a value")]
    pub fn new() -> Self {
        static MADE: AtomicU8 = AtomicU8::new(1);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace::new("switch");
        // It passes frames on, to all who may listen, and has no address itself.
        namespace.run(
            "sysctl",
            "-q net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1",
        );
        namespace.ip("link add switch type bridge mcast_snooping 0");
        namespace.ip("link set switch up");
        namespace.run("nft", "add table bridge lan");
        Self {
            switch: Arc::new(Switch {
                namespace,
                number,
                ports: AtomicU8::new(1),
            }),
        }
    }

    /// Makes a host that is on this network, at `eth0`.
    pub fn host(&self) -> Host {
        Host::new(self)
    }
}

impl Switch {
    /// The number of a port that nobody has used.
    pub(crate) fn port(&self) -> u8 {
        let port = self.ports.fetch_add(1, Ordering::Relaxed);
        assert!(port < u8::MAX, "all ports are used");
        port
    }
}
