//! `Lan`: a network of hosts.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use crate::{Host, namespace::Namespace};

/// A network of hosts: a switch with a cable for each host. It exists as long as anything is
/// plugged in.
#[derive(Clone)]
pub struct Lan {
    pub(crate) switch: Arc<Switch>,
}

/// The switch at which cables end.
pub(crate) struct Switch {
    pub(crate) namespace: Namespace,
    /// Distinguishes the networks of one test: part of their addresses.
    pub(crate) number: u8,
    ports: AtomicU8,
}

impl Lan {
    /// Creates a network without hosts.
    #[expect(clippy::new_without_default, reason = "it makes more than a value")]
    pub fn new() -> Self {
        static MADE: AtomicU8 = AtomicU8::new(1);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace::new("switch");
        // The switch floods multicast frames, and has no address itself.
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

    /// Creates a host that is connected to this network as `eth0`.
    pub fn host(&self) -> Host {
        Host::new(self)
    }
}

impl Switch {
    /// Number of an unused port.
    pub(crate) fn next_port(&self) -> u8 {
        let next_port = self.ports.fetch_add(1, Ordering::Relaxed);
        assert!(next_port < u8::MAX, "all ports are used");
        next_port
    }
}
