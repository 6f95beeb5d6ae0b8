//! `Cable`: the connection of a host to a network.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    Lan,
    delay::{self, DelayLine},
    lan::Switch,
    namespace::Namespace,
};

/// Connects a host to a network. It is unplugged on drop.
pub struct Cable {
    switch: Arc<Switch>,
    next_port: u8,
    interface: String,
    /// Packet loss in percent.
    loss: Mutex<Loss>,
    /// Delay lines from the host and to it, once a delay was set.
    delay_lines: OnceLock<[DelayLine; 2]>,
}

#[derive(Clone, Copy, Default)]
struct Loss {
    from_host: u8,
    to_host: u8,
}

impl Cable {
    pub(crate) fn new(lan: &Lan, next_port: u8, host: &Namespace, interface: &str) -> Self {
        let (switch, interface) = (Arc::clone(&lan.switch), interface.to_owned());
        let cable = Self {
            switch,
            next_port,
            interface,
            loss: Mutex::default(),
            delay_lines: OnceLock::new(),
        };
        let (plug, interface, keeper) = (cable.switch_end_name(), cable.interface(), host.keeper());
        let switch = &cable.switch.namespace;
        switch.ip(&format!(
            "link add {plug} type veth peer name {interface} netns {keeper}"
        ));
        switch.ip(&format!("link set {plug} master switch up"));
        host.ip(&format!(
            "address add {}/24 broadcast + dev {interface}",
            cable.ipv4()
        ));
        host.ip(&format!(
            "address add {}/64 dev {interface} nodad",
            cable.ipv6()
        ));
        host.ip(&format!("link set {interface} up"));
        cable
    }

    /// The host's IPv4 address on this cable.
    pub fn ipv4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.switch.number, 0, self.next_port)
    }

    /// The host's IPv6 address on this cable.
    pub fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::new(
            0xfd00,
            0,
            0,
            self.switch.number.into(),
            0,
            0,
            0,
            self.next_port.into(),
        )
    }

    /// Name of the host's interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Unplugs the cable from the switch. The host can notice that, other hosts cannot.
    pub fn pull(&self) {
        self.switch
            .namespace
            .ip(&format!("link set {} down", self.switch_end_name()));
    }

    /// Plugs the cable in again.
    pub fn plug(&self) {
        self.switch
            .namespace
            .ip(&format!("link set {} up", self.switch_end_name()));
    }

    /// Drops this percentage of the frames that the host sends. Frames to the host arrive.
    pub fn lose_from_host(&self, percent: u8) {
        self.set_loss(|loss| loss.from_host = percent);
    }

    /// Drops this percentage of the frames to the host. Frames that it sends arrive.
    pub fn lose_to_host(&self, percent: u8) {
        self.set_loss(|loss| loss.to_host = percent);
    }

    /// Delays frames from the host by slightly more than this.
    pub fn delay_from_host(&self, delay: Duration) {
        self.delay_lines()[0].set(delay);
    }

    /// Delays frames to the host by slightly more than this.
    pub fn delay_to_host(&self, delay: Duration) {
        self.delay_lines()[1].set(delay);
    }

    /// Cuts the cable at the switch, and starts threads that carry frames over the gap.
    fn delay_lines(&self) -> &[DelayLine; 2] {
        self.delay_lines.get_or_init(|| {
            let (switch, plug, gap, far) = (
                &self.switch.namespace,
                self.switch_end_name(),
                self.gap_near_name(),
                self.gap_far_name(),
            );
            switch.ip(&format!("link add {gap} type veth peer name {far}"));
            switch.ip(&format!("link set {plug} nomaster"));
            switch.ip(&format!("link set {gap} up"));
            let delay_lines = delay::connect_interfaces(switch.keeper(), [plug, gap]);
            switch.ip(&format!("link set {far} master switch up"));
            delay_lines
        })
    }

    fn set_loss(&self, change: impl FnOnce(&mut Loss)) {
        let mut loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut loss);
        let nft = |words: &str| self.switch.namespace.run("nft", words);
        // One chain per cable, so that cables are configured independently.
        let (plug, chain) = (
            format!("{{ {}, {} }}", self.switch_end_name(), self.gap_far_name()),
            format!("bridge lan {}", self.switch_end_name()),
        );
        nft(&format!(
            "add chain {chain} {{ type filter hook forward priority 0 ; }}"
        ));
        nft(&format!("flush chain {chain}"));
        for (line, percent) in [("iifname", loss.from_host), ("oifname", loss.to_host)] {
            match percent {
                0 => {}
                1..100 => nft(&format!(
                    "add rule {chain} {line} {plug} numgen random mod 100 < {percent} drop"
                )),
                _ => nft(&format!("add rule {chain} {line} {plug} drop")),
            }
        }
    }

    /// Name of the cable's end at the switch.
    fn switch_end_name(&self) -> String {
        format!("port{}", self.next_port)
    }

    /// Name of the near end of the gap's own link.
    fn gap_near_name(&self) -> String {
        format!("gap{}", self.next_port)
    }

    /// Name of that link's end in the switch.
    fn gap_far_name(&self) -> String {
        format!("far{}", self.next_port)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // A second panic would hide the first.
        if !thread::panicking() {
            self.switch
                .namespace
                .ip(&format!("link delete {}", self.switch_end_name()));
            if self.delay_lines.get().is_some() {
                self.switch
                    .namespace
                    .ip(&format!("link delete {}", self.gap_near_name()));
            }
        }
    }
}
