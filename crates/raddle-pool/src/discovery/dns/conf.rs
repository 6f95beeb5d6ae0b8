//! Whom to ask, and how: what `/etc/resolv.conf` says. Pure, but for reading it.

use std::{
    fs::File,
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::name::Name;

const PLACE: &str = "/etc/resolv.conf";
/// What is longer is read so far.
const LONGEST: u64 = 64 * 1024;
const PORT: u16 = 53;
/// As with the C library.
const MOST_SERVERS: usize = 3;
const MOST_SEARCHED: usize = 32;

/// Whom to ask, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conf {
    pub(super) servers: Vec<SocketAddr>,
    /// What names are looked for below.
    pub(super) search: Vec<Name>,
    /// A name with so many dots is tried as it is before that.
    pub(super) ndots: usize,
    /// How long a server may take.
    pub(super) timeout: Duration,
    /// How often all servers are asked.
    pub(super) attempts: u32,
    /// Over TCP from the beginning.
    pub(super) stream: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            servers: vec![(Ipv4Addr::LOCALHOST, PORT).into()],
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
            stream: false,
        }
    }
}

impl Conf {
    /// What the system says now. It may say something else every time.
    pub(super) fn of_system() -> io::Result<Self> {
        let mut text = Vec::new();
        match File::open(PLACE) {
            Ok(file) => file.take(LONGEST).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// Only these servers.
    pub(super) fn of_servers(servers: Vec<SocketAddr>) -> Self {
        Self { servers, ..Self::default() }
    }

    /// What cannot be understood is passed over, as everybody does.
    fn parse(text: &str) -> Self {
        let mut conf = Self { servers: Vec::new(), ..Self::default() };
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") if conf.servers.len() < MOST_SERVERS => {
                    let server = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    conf.servers.extend(server.map(|server| SocketAddr::new(server, PORT)));
                }
                // The last of them counts.
                Some("domain" | "search") => {
                    let names = words.filter_map(|word| word.trim_end_matches('.').parse().ok());
                    conf.search = names.take(MOST_SEARCHED).collect();
                }
                Some("options") => words.for_each(|word| conf.option(word)),
                _ => {}
            }
        }
        if conf.servers.is_empty() {
            conf.servers = Self::default().servers;
        }
        conf
    }

    fn option(&mut self, word: &str) {
        let (name, value) = word.split_once(':').unwrap_or((word, ""));
        match (name, value.parse::<u32>()) {
            ("ndots", Ok(value)) => self.ndots = value.min(15) as usize,
            ("timeout", Ok(value)) => self.timeout = Duration::from_secs(value.clamp(1, 30).into()),
            ("attempts", Ok(value)) => self.attempts = value.clamp(1, 5),
            ("use-vc", _) => self.stream = true,
            _ => {}
        }
    }

    /// The names that somebody may mean, in the order in which they are tried.
    pub(super) fn candidates(&self, name: &Name, is_absolute: bool) -> Vec<Name> {
        if is_absolute {
            return vec![name.clone()];
        }
        let mut names: Vec<_> = self.search.iter().filter_map(|above| name.below(above)).collect();
        let dots = name.labels().count().saturating_sub(1);
        names.insert(if dots >= self.ndots { 0 } else { names.len() }, name.clone());
        names
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As it is in a pod.
    const POD: &str =
        "search ns.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n";

    fn shown(conf: &Conf, name: &str, is_absolute: bool) -> Vec<String> {
        conf.candidates(&name.parse().unwrap(), is_absolute).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_a_pod_is_told_is_understood() {
        let conf = Conf::parse(POD);
        assert_eq!((conf.servers.as_slice(), conf.ndots), (["10.96.0.10:53".parse().unwrap()].as_slice(), 5));
        let workers = ["workers.ns.svc.cluster.local", "workers.svc.cluster.local", "workers.cluster.local", "workers"];
        assert_eq!(shown(&conf, "workers", false), workers);
        assert_eq!(shown(&conf, "workers", true), ["workers"]);
        assert_eq!(shown(&conf, "a.b.c.d.e", false).last().unwrap(), "a.b.c.d.e");
        assert_eq!(shown(&conf, "a.b.c.d.e.f", false)[0], "a.b.c.d.e.f");
        let long = vec!["x"; 125].join(".");
        assert_eq!(shown(&conf, &long, false), [long]);
    }

    #[test]
    fn the_rest_is_as_people_write_it() {
        let conf = Conf::parse(
            "# nameserver 1.1.1.1\n;x\ndomain first\nnameserver ::1\nnameserver bad\n nameserver 10.0.0.1 # this one\n\
             search Second. third .\noptions timeout:99 attempts:0 ndots:99 use-vc rotate ndots:x\nnameserver 10.0.0.2\nnameserver 10.0.0.3",
        );
        let servers = ["[::1]:53", "10.0.0.1:53", "10.0.0.2:53"].map(|server| server.parse().unwrap());
        assert_eq!(conf.servers, servers);
        assert_eq!(conf.search, ["second", "third"].map(|name| name.parse().unwrap()));
        assert_eq!((conf.timeout, conf.attempts, conf.ndots, conf.stream), (Duration::from_secs(30), 1, 15, true));
        assert_eq!(Conf::parse(""), Conf::default());
    }

    proptest! {
        #[test]
        fn whatever_is_written_there_there_is_somebody_to_ask(text in r"((nameserver|search|options) [ -~]{0,30}\n){0,9}") {
            let conf = Conf::parse(&text);
            prop_assert!((1..=MOST_SERVERS).contains(&conf.servers.len()) && conf.attempts > 0);
        }
    }
}
