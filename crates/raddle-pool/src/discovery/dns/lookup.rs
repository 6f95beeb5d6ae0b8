//! The records under a name: below which it is looked for, whom is asked, and how often.

use std::{fmt, io, net::SocketAddr};

use super::{
    conf::Conf,
    exchange::ask,
    message::{Data, Kind, Record, Reply},
    name::Name,
};

/// An alias of an alias of an alias… is taken for a mistake after that.
const MOST_ALIASES: usize = 8;

/// Records of the kind that was asked for, and there is one at least.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) data: Vec<Data>,
    /// For how many seconds all of it holds.
    pub(super) ttl: u32,
    /// What may be asked for next, told in advance.
    pub(super) besides: Vec<Record>,
}

/// Nobody can tell.
#[derive(Debug)]
pub(super) struct Fault {
    name: String,
    kind: Kind,
    /// Whom was asked last, and what came of it.
    server: SocketAddr,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Silent(io::Error),
    Refused(u8),
    Aliases,
}

/// What there is under a name that may be meant to be below others. None if there is nothing.
pub(super) async fn lookup(conf: &Conf, name: &Name, absolute: bool, kind: Kind) -> Result<Option<Found>, Fault> {
    let mut doubt = None;
    for candidate in conf.candidates(name, absolute) {
        match find(conf, candidate, kind).await {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            // Whoever does not know of one name may know of another, and who is silent will be.
            Err(fault) if matches!(fault.why, Why::Silent(_)) => return Err(fault),
            Err(fault) => doubt = Some(fault),
        }
    }
    doubt.map_or(Ok(None), Err)
}

async fn find(conf: &Conf, mut name: Name, kind: Kind) -> Result<Option<Found>, Fault> {
    let mut ttl = u32::MAX;
    for _ in 0..MOST_ALIASES {
        let Reply::Records { answers, besides } = ask_all(conf, &name, kind).await? else { return Ok(None) };
        let chosen = choose(&answers, &name, kind);
        ttl = ttl.min(chosen.ttl);
        match chosen {
            Chosen { data, .. } if !data.is_empty() => return Ok(Some(Found { data, ttl, besides })),
            // The server does not know what it is an alias of.
            Chosen { alias: Some(alias), .. } => name = alias,
            Chosen { .. } => return Ok(None),
        }
    }
    let server = conf.servers.first().copied().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    Err(Fault { name: name.to_string(), kind, server, why: Why::Aliases })
}

/// Asks one server after the other, until one says something.
async fn ask_all(conf: &Conf, name: &Name, kind: Kind) -> Result<Reply, Fault> {
    let mut fault = None;
    for server in (0..conf.attempts).flat_map(|_| &conf.servers) {
        let why = match ask(*server, name, kind, conf.timeout, conf.stream).await {
            Ok(Reply::Refused(code)) => Why::Refused(code),
            Ok(reply) => return Ok(reply),
            Err(error) => Why::Silent(error),
        };
        // One that says anything at all says more than one that is silent.
        if fault.is_none() || matches!(why, Why::Refused(_)) {
            fault = Some(Fault { name: name.to_string(), kind, server: *server, why });
        }
    }
    Err(fault.expect("there is a server, and it is asked once at least"))
}

/// What an answer says of a name.
#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    data: Vec<Data>,
    ttl: u32,
    /// What it stands for, if it does and nothing is said of that.
    alias: Option<Name>,
}

/// Picks out what is said of a name, or of what it is an alias of.
fn choose(answers: &[Record], name: &Name, kind: Kind) -> Chosen {
    let (mut name, mut ttl, mut alias) = (name, u32::MAX, None);
    for _ in 0..MOST_ALIASES {
        let of_name = || answers.iter().filter(|record| record.name == *name);
        let records: Vec<_> = of_name().filter(|record| record.data.is(kind)).collect();
        if !records.is_empty() {
            ttl = records.iter().map(|record| record.ttl).fold(ttl, u32::min);
            return Chosen { data: records.into_iter().map(|record| record.data.clone()).collect(), ttl, alias: None };
        }
        let next = of_name().find_map(|record| match &record.data {
            Data::Alias(target) => Some((target, record.ttl)),
            _ => None,
        });
        let Some((target, until)) = next else { break };
        (name, ttl, alias) = (target, ttl.min(until), Some(target.clone()));
    }
    Chosen { data: Vec::new(), ttl, alias }
}

/// What is said in advance of the addresses of a name.
pub(super) fn told(besides: &[Record], name: &Name, kind: Kind) -> Option<Found> {
    let Chosen { data, ttl, .. } = choose(besides, name, kind);
    (!data.is_empty()).then_some(Found { data, ttl, besides: Vec::new() })
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, server, why } = self;
        let kind = match kind {
            Kind::V4 => "A",
            Kind::V6 => "AAAA",
            Kind::Service => "SRV",
        };
        match why {
            Why::Silent(error) => write!(f, "{server} does not answer for {name} {kind}: {error}"),
            Why::Refused(code) => {
                let code = match code {
                    1 => "FORMERR",
                    2 => "SERVFAIL",
                    4 => "NOTIMP",
                    5 => "REFUSED",
                    _ => "an error",
                };
                write!(f, "{server} answers {code} for {name} {kind}")
            }
            Why::Aliases => write!(f, "{name} {kind}: too many aliases"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, ttl: u32, data: Data) -> Record {
        Record { name: name.parse().unwrap(), ttl, data }
    }

    fn address(last: u8) -> Data {
        Data::Address([10, 0, 0, last].into())
    }

    #[test]
    fn aliases_in_an_answer_are_followed() {
        let alias = |name: &str| Data::Alias(name.parse().unwrap());
        let answers = [
            record("c", 7, address(1)),
            record("a", 9, alias("b")),
            record("other", 1, address(9)),
            record("b", 5, alias("c")),
            record("c", 8, address(2)),
            record("c", 1, Data::Address("fd00::1".parse().unwrap())),
            record("open", 3, alias("elsewhere")),
            record("x", 3, alias("y")),
            record("y", 3, alias("x")),
        ];
        let choose = |name: &str| choose(&answers, &name.parse().unwrap(), Kind::V4);
        assert_eq!(choose("a"), Chosen { data: vec![address(1), address(2)], ttl: 5, alias: None });
        assert_eq!(choose("c"), Chosen { data: vec![address(1), address(2)], ttl: 7, alias: None });
        assert_eq!(choose("open"), Chosen { data: vec![], ttl: 3, alias: "elsewhere".parse().ok() });
        assert_eq!(choose("none"), Chosen { data: vec![], ttl: u32::MAX, alias: None });
        assert!(choose("x").data.is_empty());
    }
}
