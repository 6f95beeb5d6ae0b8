//! Packets that are well formed, and all others.

use proptest::prelude::*;

use super::super::{
    message::{Data, Kind, Query, Record, Reject, Reply},
    name::Name,
};

/// Writes answers as servers do, with pointers.
pub(super) struct Packet(Vec<u8>);

impl Packet {
    /// An answer to a question, with this code.
    pub(super) fn to(query: &Query, code: u8) -> Self {
        let mut packet = query.write();
        (packet[2], packet[3]) = (0b1000_0001, 0b1000_0000 | code);
        Self(packet)
    }

    fn count(mut self, section: usize) -> Self {
        let count = u16::from_be_bytes([self.0[section], self.0[section + 1]]) + 1;
        self.0[section..section + 2].copy_from_slice(&count.to_be_bytes());
        self
    }

    /// One more record, of the name that was asked for.
    pub(super) fn answer(self, kind: u16, ttl: u32, data: &[u8]) -> Self {
        self.record(6, &[0xC0, 12], kind, ttl, data)
    }

    pub(super) fn record(self, section: usize, name: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Self {
        let mut packet = self.count(section);
        packet.0.extend(name);
        packet.0.extend(kind.to_be_bytes());
        packet.0.extend(1_u16.to_be_bytes());
        packet.0.extend(ttl.to_be_bytes());
        packet.0.extend((data.len() as u16).to_be_bytes());
        packet.0.extend(data);
        packet
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

pub(super) fn wire(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    name.parse::<Name>().unwrap().write(&mut bytes);
    bytes
}

fn query(kind: Kind) -> Query {
    Query { id: 0xABCD, name: "w.x".parse().unwrap(), kind }
}

#[test]
fn a_question_is_as_it_has_to_be() {
    let header = [0xAB, 0xCD, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(query(Kind::Service).write(), [&header[..], b"\x01w\x01x\0\0\x21\0\x01"].concat());
}

#[test]
fn answers_are_read() {
    let query = query(Kind::V4);
    // A pointer in the middle of a name, and to another pointer.
    let target = [b"\x01T".as_slice(), &[0xC0, 14]].concat();
    let packet = Packet::to(&query, 0)
        .answer(1, 30, &[10, 0, 0, 1])
        .answer(28, u32::MAX, &[0xFD; 16])
        .answer(5, 31, &target)
        .answer(16, 1, b"\x04text")
        .record(8, &[0], 6, 1, b"anything")
        .record(10, &target, 33, 9, &[&[0, 1, 0, 2, 0x1B, 0x9E][..], &target].concat());
    let name: Name = "w.x".parse().unwrap();
    let other: Name = "t.x".parse().unwrap();
    let v6 = Data::Address(std::net::Ipv6Addr::from([0xFD; 16]).into());
    let answers = vec![
        Record { name: name.clone(), ttl: 30, data: Data::Address([10, 0, 0, 1].into()) },
        Record { name: name.clone(), ttl: 0, data: v6 },
        Record { name, ttl: 31, data: Data::Alias(other.clone()) },
    ];
    let besides = vec![Record { name: other.clone(), ttl: 9, data: Data::Service { port: 7070, target: other } }];
    assert_eq!(query.read(&packet.done()), Ok(Reply::Records { answers, besides }));
    let records = |answers| Ok(Reply::Records { answers, besides: Vec::new() });
    assert_eq!(query.read(&Packet::to(&query, 0).done()), records(vec![]));
    assert_eq!(query.read(&Packet::to(&query, 3).done()), Ok(Reply::NoName));
    assert_eq!(query.read(&Packet::to(&query, 2).done()), Ok(Reply::Refused(2)));
    let mut truncated = Packet::to(&query, 0).done();
    truncated[2] |= 0b10;
    assert_eq!(query.read(&truncated), Ok(Reply::Truncated));
    // Of another class.
    let mut chaos = Packet::to(&query, 0).answer(1, 30, &[10, 0, 0, 1]).done();
    let class = chaos.len() - 11;
    chaos[class] = 3;
    assert_eq!(query.read(&chaos), records(vec![]));
}

#[test]
fn what_is_no_answer_to_this_is_none() {
    let query = query(Kind::V4);
    let good = Packet::to(&query, 0).answer(1, 30, &[10, 0, 0, 1]).done();
    let changed = |at: usize, byte: u8| {
        let mut packet = good.clone();
        packet[at] = byte;
        query.read(&packet)
    };
    assert!(changed(13, b'W').is_ok(), "names are not told apart by their case");
    // Id, question and not answer, sort of question, no question, another name, kind and class.
    for (at, byte) in [(0, 0), (1, 0), (2, 1), (2, 0b1010_0001), (5, 0), (5, 2), (13, b'v'), (18, 28), (20, 3)] {
        assert_eq!(changed(at, byte), Err(Reject::Foreign), "{at}");
    }
    for length in 0..good.len() {
        let part = query.read(&good[..length]);
        assert!(part == Err(Reject::Foreign) || part == Err(Reject::Malformed), "{length}: {part:?}");
    }
    // Whoever did not understand the question may leave it out, but not say anything else then.
    let mut blank = good[..12].to_vec();
    (blank[5], blank[7]) = (0, 0);
    for (code, reply) in [(1, Ok(Reply::Refused(1))), (0, Err(Reject::Foreign)), (3, Err(Reject::Foreign))] {
        blank[3] = code;
        assert_eq!(query.read(&blank), reply);
    }
}

#[test]
fn names_that_never_end_are_none() {
    let query = query(Kind::V4);
    let read = |name: &[u8]| query.read(&Packet::to(&query, 0).record(6, name, 1, 1, &[10, 0, 0, 1]).done());
    let start = query.write().len() as u8;
    let long = [&[63; 64][..]; 4].concat();
    for name in [
        // To itself, forwards, round and round, out of the packet.
        &[0xC0, start][..],
        &[0xC0, start + 2],
        &[1, b'a', 0xC0, start],
        &[0xFF, 0xFF],
        // Kinds of labels that there are not.
        &[0x40],
        &[0x80, 0],
        &long,
        b"",
    ] {
        assert_eq!(read(name), Err(Reject::Malformed), "{name:?}");
    }
    // A chain of pointers, each to the one before it, would have to be walked for each record.
    let mut chain = Packet::to(&query, 0);
    for place in 0..200_u16 {
        let before = if place == 0 { 12 } else { u16::from(start) + 13 * (place - 1) };
        chain = chain.record(10, &(0xC000 | before).to_be_bytes(), 16, 1, &[0]);
    }
    assert_eq!(query.read(&chain.done()), Err(Reject::Malformed));
}

#[test]
fn records_keep_to_their_part_of_the_packet() {
    let query = query(Kind::V4);
    let [name, service] = [wire("t"), [&[0; 6][..], &wire("t")].concat()];
    let longer = |data: &[u8]| [data, &[0]].concat();
    for (kind, data) in [(1, &[10, 0, 0, 1][..]), (28, &[1; 16]), (5, &name), (33, &service)] {
        let read = |data: &[u8]| query.read(&Packet::to(&query, 0).answer(kind, 1, data).done());
        assert!(matches!(read(data), Ok(Reply::Records { answers, .. }) if answers.len() == 1), "{kind}");
        for wrong in [&longer(data), &data[..data.len() - 1], &[]] {
            assert_eq!(read(wrong), Err(Reject::Malformed), "{kind}, {wrong:?}");
        }
    }
}

proptest! {
    #[test]
    fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let query = query(Kind::V4);
        let _ = query.read(&bytes);
        // Somebody knows the question.
        let _ = query.read(&[Packet::to(&query, 0).done(), bytes].concat());
    }

    #[test]
    fn an_answer_that_was_tampered_with_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
    ) {
        let query = query(Kind::Service);
        let target = [b"\x01t".as_slice(), &[0xC0, 12]].concat();
        let mut packet = Packet::to(&query, 0)
            .answer(33, 5, &[&[0; 6][..], &target].concat())
            .answer(5, 5, &target)
            .record(10, &target, 1, 5, &[10, 0, 0, 1])
            .record(10, &target, 28, 5, &[1; 16])
            .done();
        for (at, byte) in changes {
            // The header's counts, too.
            let at = 4 + at.index(packet.len() - 4);
            packet[at] = byte;
        }
        let _ = query.read(&packet);
        let _ = query.read(&packet[..length.index(packet.len())]);
    }

    #[test]
    fn what_is_written_of_a_name_is_read(labels in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..63), 1..6)) {
        let mut name = Name::default();
        prop_assume!(labels.iter().all(|label| name.push(label).is_ok()));
        let query = Query { id: 7, name: name.clone(), kind: Kind::V4 };
        let packet = Packet::to(&query, 0).answer(1, 1, &[10, 0, 0, 1]).done();
        let address = Data::Address([10, 0, 0, 1].into());
        let answers = vec![Record { name, ttl: 1, data: address }];
        prop_assert_eq!(query.read(&packet), Ok(Reply::Records { answers, besides: Vec::new() }));
    }
}
