//! `Host`: a network namespace that looks like a machine to the other hosts.

use std::{
    ffi::OsStr,
    net::{Ipv4Addr, Ipv6Addr},
    process::Command,
};

use crate::{Cable, Lan, namespace::Namespace};

/// A network namespace that looks like a machine to the other hosts. Dropping it unplugs its cables
/// and then kills all its processes, so peers notice only silence.
pub struct Host {
    /// Before the namespace, so that they are dropped first.
    cables: Vec<Cable>,
    namespace: Namespace,
    name: String,
}

impl Host {
    pub(crate) fn new(lan: &Lan) -> Self {
        let next_port = lan.switch.next_port();
        let name = format!("host{}-{next_port}", lan.switch.number);
        let namespace = Namespace::new(&name);
        let cables = vec![Cable::new(lan, next_port, &namespace, "eth0")];
        Self {
            cables,
            namespace,
            name,
        }
    }

    /// Host name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cable to the network that the host was created on.
    pub fn cable(&self) -> &Cable {
        &self.cables[0]
    }

    /// All cables, in the order in which they were added.
    pub fn cables(&self) -> &[Cable] {
        &self.cables
    }

    /// IPv4 address on the network that the host was created on.
    pub fn ipv4(&self) -> Ipv4Addr {
        self.cable().ipv4()
    }

    /// IPv6 address on that network.
    pub fn ipv6(&self) -> Ipv6Addr {
        self.cable().ipv6()
    }

    /// Connects the host to another network, as `eth1` and so on.
    pub fn join(&mut self, lan: &Lan) {
        let interface = format!("eth{}", self.cables.len());
        self.cables.push(Cable::new(
            lan,
            lan.switch.next_port(),
            &self.namespace,
            &interface,
        ));
    }

    /// Creates a command that runs on this host. The spawned process is the program itself, not its
    /// parent.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespace.command(program)
    }

    /// Processes that run on this host.
    pub fn processes(&self) -> Vec<u32> {
        self.namespace.processes()
    }

    /// Kills all processes of the host and waits until they are gone. The host stays up and resets
    /// their connections.
    pub fn kill(&self) {
        self.namespace.kill();
    }

    /// Cuts the power: peers notice only silence. This is a drop with a name.
    pub fn cut_power(self) {}
}
