//! One of several machines, or what looks like one to the others.

use std::{
    ffi::OsStr,
    net::{Ipv4Addr, Ipv6Addr},
    process::Command,
};

use crate::{Cable, Lan, namespace::Namespace};

/// One of several machines, or what looks like one to the others. When it is dropped, all that runs there is killed. Nobody is told but
/// by the silence, for its cables are pulled before.
pub struct Host {
    /// Before the namespace, so that they are pulled first.
    cables: Vec<Cable>,
    namespace: Namespace,
    name: String,
}

impl Host {
    pub(crate) fn new(lan: &Lan) -> Self {
        let port = lan.switch.port();
        let name = format!("host{}-{port}", lan.switch.number);
        let namespace = Namespace::new(&name);
        let cables = vec![Cable::new(lan, port, &namespace, "eth0")];
        Self {
            cables,
            namespace,
            name,
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its cable to the network that it was made on.
    pub fn cable(&self) -> &Cable {
        &self.cables[0]
    }

    /// Its cables, in the order in which it got them.
    pub fn cables(&self) -> &[Cable] {
        &self.cables
    }

    /// Its address on the network that it was made on.
    pub fn ipv4(&self) -> Ipv4Addr {
        self.cable().ipv4()
    }

    /// Its other address there.
    pub fn ipv6(&self) -> Ipv6Addr {
        self.cable().ipv6()
    }

    /// Puts it on another network as well, at `eth1` and so on.
    pub fn join(&mut self, lan: &Lan) {
        let interface = format!("eth{}", self.cables.len());
        self.cables.push(Cable::new(
            lan,
            lan.switch.port(),
            &self.namespace,
            &interface,
        ));
    }

    /// A program that is to run there. What is spawned is its process, and not one that has it for a child.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespace.command(program)
    }

    /// The processes that run there.
    pub fn processes(&self) -> Vec<u32> {
        self.namespace.processes()
    }

    /// Kills all processes there, and waits until they are gone. The host goes on, and tells those who had connections to them.
    pub fn kill(&self) {
        self.namespace.kill();
    }

    /// Cuts its power, of which nobody is told. That is a drop with a name.
    pub fn cut_power(self) {}
}
