//! What a host is connected with.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    Lan,
    delay::{self, Way},
    lan::Switch,
    namespace::Namespace,
};

/// What connects a host with a network. It is pulled when it is dropped.
pub struct Cable {
    switch: Arc<Switch>,
    port: u8,
    interface: String,
    /// What is lost on it, in percent.
    loss: Mutex<Loss>,
    /// The way from the host, and the way to it, where frames take their time.
    ways: OnceLock<[Way; 2]>,
}

#[derive(Clone, Copy, Default)]
struct Loss {
    from_host: u8,
    to_host: u8,
}

impl Cable {
    pub(crate) fn new(lan: &Lan, port: u8, host: &Namespace, interface: &str) -> Self {
        let (switch, interface) = (Arc::clone(&lan.switch), interface.to_owned());
        let cable = Self {
            switch,
            port,
            interface,
            loss: Mutex::default(),
            ways: OnceLock::new(),
        };
        let (plug, interface, keeper) = (cable.plug_name(), cable.interface(), host.keeper());
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

    /// The host's address at it.
    pub fn ipv4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.switch.number, 0, self.port)
    }

    /// The host's other address at it.
    pub fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::new(
            0xfd00,
            0,
            0,
            self.switch.number.into(),
            0,
            0,
            0,
            self.port.into(),
        )
    }

    /// The host's name of what it is plugged into.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Pulls it out of the switch. The host can notice that, others cannot.
    pub fn pull(&self) {
        self.switch
            .namespace
            .ip(&format!("link set {} down", self.plug_name()));
    }

    /// Plugs it in again.
    pub fn plug(&self) {
        self.switch
            .namespace
            .ip(&format!("link set {} up", self.plug_name()));
    }

    /// From now on so many percent of what the host sends are lost. What is sent to it arrives.
    pub fn lose_from_host(&self, percent: u8) {
        self.lose(|loss| loss.from_host = percent);
    }

    /// From now on so many percent of what is sent to the host are lost. What it sends arrives.
    pub fn lose_to_host(&self, percent: u8) {
        self.lose(|loss| loss.to_host = percent);
    }

    /// From now on, what the host sends takes so long to the switch, and a little more.
    pub fn delay_from_host(&self, delay: Duration) {
        self.ways()[0].set(delay);
    }

    /// From now on, what is sent to the host takes so long from the switch, and a little more.
    pub fn delay_to_host(&self, delay: Duration) {
        self.ways()[1].set(delay);
    }

    /// Cuts it where it would be plugged in, and puts a gap there that frames are carried over.
    fn ways(&self) -> &[Way; 2] {
        self.ways.get_or_init(|| {
            let (switch, plug, gap, far) = (
                &self.switch.namespace,
                self.plug_name(),
                self.gap_name(),
                self.far_name(),
            );
            switch.ip(&format!("link add {gap} type veth peer name {far}"));
            switch.ip(&format!("link set {plug} nomaster"));
            switch.ip(&format!("link set {gap} up"));
            let ways = delay::between(switch.keeper(), [plug, gap]);
            switch.ip(&format!("link set {far} master switch up"));
            ways
        })
    }

    fn lose(&self, change: impl FnOnce(&mut Loss)) {
        let mut loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut loss);
        let nft = |words: &str| self.switch.namespace.run("nft", words);
        // A chain for each cable, so that they can be set apart from each other.
        let (plug, chain) = (
            format!("{{ {}, {} }}", self.plug_name(), self.far_name()),
            format!("bridge lan {}", self.plug_name()),
        );
        nft(&format!(
            "add chain {chain} {{ type filter hook forward priority 0 ; }}"
        ));
        nft(&format!("flush chain {chain}"));
        for (way, percent) in [("iifname", loss.from_host), ("oifname", loss.to_host)] {
            match percent {
                0 => {}
                1..100 => nft(&format!(
                    "add rule {chain} {way} {plug} numgen random mod 100 < {percent} drop"
                )),
                _ => nft(&format!("add rule {chain} {way} {plug} drop")),
            }
        }
    }

    /// What the switch calls its end.
    fn plug_name(&self) -> String {
        format!("port{}", self.port)
    }

    /// What is beyond the gap, where there is one.
    fn gap_name(&self) -> String {
        format!("gap{}", self.port)
    }

    /// What the switch has plugged in then.
    fn far_name(&self) -> String {
        format!("far{}", self.port)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // A second panic would hide the first.
        if !thread::panicking() {
            self.switch
                .namespace
                .ip(&format!("link delete {}", self.plug_name()));
            if self.ways.get().is_some() {
                self.switch
                    .namespace
                    .ip(&format!("link delete {}", self.gap_name()));
            }
        }
    }
}
