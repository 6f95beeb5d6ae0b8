//! Servers that lie, and servers that say nothing: our use of the resolver stays bounded and keeps what is known.

use std::{
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use hickory_resolver::proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{RData, Record, RecordType, rdata},
};

use super::*;

/// A server that answers each question with any number of packets. It is gone with this.
struct Liar {
    place: SocketAddr,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Liar {
    /// For each question: the packets that are sent back, from another socket if that is said.
    fn start(mut answer: impl FnMut(&Message) -> Vec<(bool, Vec<u8>)> + Send + 'static) -> Self {
        let [socket, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let place = socket.local_addr().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 4096];
            while !is_done.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut packet) else {
                    continue;
                };
                let Ok(question) = Message::from_vec(&packet[..length]) else {
                    continue;
                };
                for (from_elsewhere, reply) in answer(&question) {
                    let socket = if from_elsewhere { &other } else { &socket };
                    let _ = socket.send_to(&reply, from);
                }
            }
        });
        Self {
            place,
            done,
            thread: Some(thread),
        }
    }

    /// One packet for each question.
    fn saying(mut answer: impl FnMut(&Message) -> Vec<u8> + Send + 'static) -> Self {
        Self::start(move |question| vec![(false, answer(question))])
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn kind(question: &Message) -> RecordType {
    question.queries[0].query_type()
}

/// An answer with these records.
fn reply(question: &Message, code: ResponseCode, records: &[RData]) -> Message {
    let mut reply = question.clone();
    reply.edns = None;
    (reply.metadata.message_type, reply.metadata.response_code) = (MessageType::Response, code);
    let name = question.queries[0].name();
    reply.add_answers(
        records
            .iter()
            .map(|data| Record::from_rdata(name.clone(), 1, data.clone())),
    );
    reply
}

fn bytes(message: &Message) -> Vec<u8> {
    message.to_vec().unwrap()
}

fn v4(address: impl Into<Ipv4Addr>) -> RData {
    RData::A(rdata::A(address.into()))
}

/// The answer of a server that has one host, `10.0.0.LAST`.
fn honest(question: &Message, last: u8) -> Vec<u8> {
    let records: &[RData] = if kind(question) == RecordType::A {
        &[v4([10, 0, 0, last])]
    } else {
        &[]
    };
    bytes(&reply(question, ResponseCode::NoError, records))
}

#[tokio::test]
async fn answers_that_do_not_fit_the_question_are_not_believed() {
    let liar = Liar::start(|question| {
        let mut forged: Vec<_> = (1..20)
            .map(|n| {
                let mut other = question.clone();
                other.metadata.id = question.metadata.id.wrapping_add(n);
                other
            })
            .collect();
        let mut other_name = question.clone();
        other_name.queries[0].set_name("v.test.".parse().unwrap());
        forged.push(other_name);
        let mut packets: Vec<_> = forged
            .iter()
            .map(|question| (false, honest(question, 66)))
            .collect();
        // The right answer, from another socket.
        packets.push((true, honest(question, 66)));
        packets.push((false, honest(question, 1)));
        packets
    });
    let mut subscription = subscribe(&discovery("w.test:1", liar.place)).await;
    let first = match ready(&mut subscription) {
        none if none.is_empty() => next(&mut subscription).await,
        told => told.join(" "),
    };
    assert_eq!(first, "+10.0.0.1:1");
    nothing(&mut subscription).await;
}

#[tokio::test]
async fn unreadable_answers_take_no_workers_away() {
    let mut count = 0;
    let liar = Liar::saying(move |question| {
        let good = honest(question, 1);
        count += 1;
        match count % 6 {
            0 => good[..good.len() - 1].to_vec(),
            1 => bytes(&reply(question, ResponseCode::ServFail, &[])),
            2 => bytes(&reply(question, ResponseCode::Refused, &[])),
            3 => {
                let mut many = good;
                (many[6], many[7]) = (0xFF, 0xFF);
                many
            }
            _ => good,
        }
    });
    let mut subscription = subscribe(&discovery("w.test:1", liar.place)).await;
    if ready(&mut subscription).is_empty() {
        assert_eq!(next(&mut subscription).await, "+10.0.0.1:1");
    }
    nothing(&mut subscription).await;
}

#[tokio::test]
async fn an_empty_answer_is_not_believed_at_once() {
    let is_down = Arc::new(AtomicBool::new(false));
    let (down, mut said) = (Arc::clone(&is_down), 0);
    let liar = Liar::saying(move |question| {
        // Each of the two looks that find nothing asks for both kinds of addresses.
        if down.load(Ordering::Relaxed) {
            said += 1;
            let is_over = said > 4;
            return if is_over {
                honest(question, 2)
            } else {
                bytes(&reply(question, ResponseCode::NXDomain, &[]))
            };
        }
        honest(question, 1)
    });
    let mut subscription = subscribe(&discovery("w.test:1", liar.place)).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
    is_down.store(true, Ordering::Relaxed);
    assert_eq!(next(&mut subscription).await, "-10.0.0.1:1");
    assert_eq!(
        ready(&mut subscription),
        ["+10.0.0.2:1"],
        "at the same time: the pool was never empty"
    );
}

#[tokio::test]
async fn an_alias_of_itself_and_addresses_of_no_host_are_no_workers() {
    let liar = Liar::saying(|question| {
        let name = question.queries[0].name().clone();
        let records = match kind(question) {
            RecordType::A => vec![v4([0; 4]), v4([224, 0, 0, 1]), v4([255; 4])],
            _ => vec![RData::CNAME(rdata::CNAME(name))],
        };
        bytes(&reply(question, ResponseCode::NoError, &records))
    });
    for discovery in [
        discovery("w.test:1", liar.place),
        discovery("w.test:1", liar.place).prefer_ipv6(),
    ] {
        let mut subscription = subscribe(&discovery).await;
        assert_eq!(ready(&mut subscription), [""; 0]);
        nothing(&mut subscription).await;
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_passed_over() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let refusing = Liar::saying(|question| bytes(&reply(question, ResponseCode::Refused, &[])));
    let good = Liar::saying(|question| honest(question, 1));
    let servers = [silent.local_addr().unwrap(), refusing.place, good.place];
    let discovery = discovery("w.test:1", good.place).name_servers(servers);
    let mut subscription = subscribe(&discovery).await;
    let first = match ready(&mut subscription) {
        none if none.is_empty() => next(&mut subscription).await,
        told => told.join(" "),
    };
    assert_eq!(first, "+10.0.0.1:1");
}

#[test]
fn junk_is_no_packet() {
    // The parser is that of the crate; it is fed by the network, so that a panic in it would be ours.
    use proptest::prelude::*;
    proptest!(|(bytes in prop::collection::vec(any::<u8>(), 0..600))| {
        let _ = Message::from_vec(&bytes);
    });
}

#[tokio::test]
async fn names_with_a_dot_at_their_end_are_taken_as_they_are() {
    let server = super::server::Server::start("host-record=w.ns.test,10.0.0.1\n");
    let mut subscription = subscribe(&discovery("w.ns.test.:1", server.place())).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
}
