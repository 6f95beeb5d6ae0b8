//! Questions and answers, as they travel. Pure, and strict: what comes from a network may have been made to be misread.
//!
//! Three kinds of records are asked for, and aliases are understood in answers. A pointer in a name leads backwards only, so that every name
//! comes to its end; nothing is read beyond the packet, or beyond the part of it that is a record's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::name::Name;

const HEADER: usize = 12;
const ALIAS: u16 = 5;
/// The internet.
const CLASS: u16 = 1;
/// A name has not more labels than that, and there is no need for a pointer between any two.
const MOST_POINTERS: usize = 127;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    V4,
    V6,
    Service,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Query {
    /// Nobody else is to know it.
    pub(super) id: u16,
    pub(super) name: Name,
    pub(super) kind: Kind,
}

/// What was answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Records {
        answers: Vec<Record>,
        /// What may be asked for next, told in advance.
        besides: Vec<Record>,
    },
    /// There is no such name.
    NoName,
    /// There is more than a packet has room for.
    Truncated,
    /// The server cannot tell, or does not want to.
    Refused(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) name: Name,
    /// For how many seconds it holds.
    pub(super) ttl: u32,
    pub(super) data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    Address(IpAddr),
    Alias(Name),
    Service { port: u16, target: Name },
}

/// Why a packet is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reject {
    /// It is none to this question. Somebody may be guessing.
    Foreign,
    /// It cannot be read.
    Malformed,
}

impl Kind {
    fn code(self) -> u16 {
        match self {
            Self::V4 => 1,
            Self::V6 => 28,
            Self::Service => 33,
        }
    }
}

impl Data {
    pub(super) fn is(&self, kind: Kind) -> bool {
        match self {
            Self::Address(IpAddr::V4(_)) => kind == Kind::V4,
            Self::Address(IpAddr::V6(_)) => kind == Kind::V6,
            Self::Service { .. } => kind == Kind::Service,
            Self::Alias(_) => false,
        }
    }
}

impl Query {
    /// As it is sent: one question, and the wish that the server finds out what it does not know.
    pub(super) fn write(&self) -> Vec<u8> {
        let [high, low] = self.id.to_be_bytes();
        let mut packet = vec![high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        self.name.write(&mut packet);
        packet.extend(self.kind.code().to_be_bytes());
        packet.extend(CLASS.to_be_bytes());
        packet
    }

    /// What a packet answers to this.
    pub(super) fn read(&self, packet: &[u8]) -> Result<Reply, Reject> {
        let (Some(header), mut reader) = (packet.first_chunk::<HEADER>(), Reader { packet, at: HEADER }) else {
            return Err(Reject::Foreign);
        };
        let [_, _, flags, code, ..] = *header;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        // An answer, to a question of the usual sort.
        if number(0) != self.id || flags & 0b1111_1000 != 0b1000_0000 {
            return Err(Reject::Foreign);
        }
        let code = code & 0b1111;
        match number(4) {
            1 => {
                let asked = (reader.name(), reader.u16(), reader.u16());
                if asked != (Ok(self.name.clone()), Ok(self.kind.code()), Ok(CLASS)) {
                    return Err(Reject::Foreign);
                }
            }
            // Who did not understand the question may not repeat it.
            0 if code != 0 && code != 3 => return Ok(Reply::Refused(code)),
            _ => return Err(Reject::Foreign),
        }
        if flags & 0b10 != 0 {
            return Ok(Reply::Truncated);
        }
        match code {
            0 => {
                let answers = reader.records(number(6))?;
                reader.records(number(8))?;
                let besides = reader.records(number(10))?;
                Ok(Reply::Records { answers, besides })
            }
            3 => Ok(Reply::NoName),
            code => Ok(Reply::Refused(code)),
        }
    }
}

/// Reads a packet from the front.
struct Reader<'a> {
    packet: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Reject> {
        let bytes = self.packet.get(self.at..).and_then(|rest| rest.get(..count)).ok_or(Reject::Malformed)?;
        self.at += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Reject> {
        self.bytes(N)?.try_into().map_err(|_| Reject::Malformed)
    }

    fn u16(&mut self) -> Result<u16, Reject> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn name(&mut self) -> Result<Name, Reject> {
        let mut name = Name::default();
        // Where it goes on after this name: behind the first pointer, if there is one.
        let (mut after, mut pointers) = (None, 0);
        loop {
            let here = self.at;
            let [length] = self.array()?;
            match length >> 6 {
                0 if length == 0 => break,
                0 => name.push(self.bytes(usize::from(length))?).map_err(|_| Reject::Malformed)?,
                0b11 => {
                    let [low] = self.array()?;
                    after.get_or_insert(self.at);
                    pointers += 1;
                    let target = usize::from(u16::from_be_bytes([length & 0b0011_1111, low]));
                    // Labels make a name longer and pointers lead backwards, so this ends; and soon, however many a packet is full of.
                    if target >= here || pointers > MOST_POINTERS {
                        return Err(Reject::Malformed);
                    }
                    self.at = target;
                }
                _ => return Err(Reject::Malformed),
            }
        }
        self.at = after.unwrap_or(self.at);
        Ok(name)
    }

    /// So many records, of which those are returned that anybody understands.
    fn records(&mut self, count: u16) -> Result<Vec<Record>, Reject> {
        let mut records = Vec::new();
        for _ in 0..count {
            records.extend(self.record()?);
        }
        Ok(records)
    }

    fn record(&mut self) -> Result<Option<Record>, Reject> {
        let name = self.name()?;
        let (kind, class) = (self.u16()?, self.u16()?);
        let ttl = u32::from_be_bytes(self.array()?);
        let length = usize::from(self.u16()?);
        let end = self.at + length;
        let of_record = self.packet.get(..end).ok_or(Reject::Malformed)?;
        let data = Reader { packet: of_record, at: self.at };
        self.at = end;
        let data = match kind {
            _ if class != CLASS => return Ok(None),
            ALIAS => Data::Alias(data.whole(Reader::name)?),
            1 => Data::Address(data.whole(|data| Ok(Ipv4Addr::from(data.array::<4>()?)))?.into()),
            28 => Data::Address(data.whole(|data| Ok(Ipv6Addr::from(data.array::<16>()?)))?.into()),
            33 => data.whole(|data| {
                // Priority and weight are of no interest.
                let [_, _, port] = [data.u16()?, data.u16()?, data.u16()?];
                Ok(Data::Service { port, target: data.name()? })
            })?,
            _ => return Ok(None),
        };
        // More than half of what fits means none at all.
        let ttl = if ttl > i32::MAX as u32 { 0 } else { ttl };
        Ok(Some(Record { name, ttl, data }))
    }

    /// Reads something that is all that is left.
    fn whole<T>(mut self, read: impl FnOnce(&mut Self) -> Result<T, Reject>) -> Result<T, Reject> {
        let value = read(&mut self)?;
        if self.at == self.packet.len() { Ok(value) } else { Err(Reject::Malformed) }
    }
}
