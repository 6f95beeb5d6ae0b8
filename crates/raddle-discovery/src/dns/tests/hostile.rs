//! Tests with servers that forge answers or never answer: resources stay bounded, and known workers
//! stay.

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

/// A server that answers each query with any packets. It ends on drop.
struct ForgingServer {
    address: SocketAddr,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ForgingServer {
    /// `answer` returns the packets to send, and whether each is sent from another socket.
    fn start(mut answer: impl FnMut(&Message) -> Vec<(bool, Vec<u8>)> + Send + 'static) -> Self {
        let [socket, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let address = socket.local_addr().unwrap();
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
            address,
            done,
            thread: Some(thread),
        }
    }

    /// One packet per query.
    fn answering(mut answer: impl FnMut(&Message) -> Vec<u8> + Send + 'static) -> Self {
        Self::start(move |question| vec![(false, answer(question))])
    }
}

impl Drop for ForgingServer {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn query_type(question: &Message) -> RecordType {
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

/// A correct answer with one host, `10.0.0.LAST`.
fn correct_answer(question: &Message, last: u8) -> Vec<u8> {
    let records: &[RData] = if query_type(question) == RecordType::A {
        &[v4([10, 0, 0, last])]
    } else {
        &[]
    };
    bytes(&reply(question, ResponseCode::NoError, records))
}

#[tokio::test]
async fn answers_to_other_queries_are_ignored() {
    let server = ForgingServer::start(|question| {
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
            .map(|question| (false, correct_answer(question, 66)))
            .collect();
        // A matching answer, from another socket.
        packets.push((true, correct_answer(question, 66)));
        packets.push((false, correct_answer(question, 1)));
        packets
    });
    let mut subscription = subscribe(&discovery("w.test:1", server.address)).await;
    let first = match ready(&mut subscription) {
        none if none.is_empty() => next(&mut subscription).await,
        events => events.join(" "),
    };
    assert_eq!(first, "+10.0.0.1:1");
    expect_no_event(&mut subscription).await;
}

#[tokio::test]
async fn malformed_answers_remove_no_workers() {
    let mut count = 0;
    let server = ForgingServer::answering(move |question| {
        let good = correct_answer(question, 1);
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
    let mut subscription = subscribe(&discovery("w.test:1", server.address)).await;
    if ready(&mut subscription).is_empty() {
        assert_eq!(next(&mut subscription).await, "+10.0.0.1:1");
    }
    expect_no_event(&mut subscription).await;
}

#[tokio::test]
async fn empty_answer_does_not_count_at_once() {
    let is_down = Arc::new(AtomicBool::new(false));
    let (down, mut answers) = (Arc::clone(&is_down), 0);
    let server = ForgingServer::answering(move |question| {
        // Each of the two empty lookups queries both address families.
        if down.load(Ordering::Relaxed) {
            answers += 1;
            let is_back = answers > 4;
            return if is_back {
                correct_answer(question, 2)
            } else {
                bytes(&reply(question, ResponseCode::NXDomain, &[]))
            };
        }
        correct_answer(question, 1)
    });
    let mut subscription = subscribe(&discovery("w.test:1", server.address)).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
    is_down.store(true, Ordering::Relaxed);
    assert_eq!(next(&mut subscription).await, "-10.0.0.1:1");
    assert_eq!(
        ready(&mut subscription),
        ["+10.0.0.2:1"],
        "in one step: the pool was never empty"
    );
}

#[tokio::test]
async fn cname_loop_and_invalid_addresses_are_no_workers() {
    let server = ForgingServer::answering(|question| {
        let name = question.queries[0].name().clone();
        let records = match query_type(question) {
            RecordType::A => vec![v4([0; 4]), v4([224, 0, 0, 1]), v4([255; 4])],
            _ => vec![RData::CNAME(rdata::CNAME(name))],
        };
        bytes(&reply(question, ResponseCode::NoError, &records))
    });
    for discovery in [
        discovery("w.test:1", server.address),
        discovery("w.test:1", server.address).prefer_ipv6(),
    ] {
        let mut subscription = subscribe(&discovery).await;
        assert_eq!(ready(&mut subscription), [""; 0]);
        expect_no_event(&mut subscription).await;
    }
}

#[tokio::test]
async fn unresponsive_server_is_skipped() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let refusing =
        ForgingServer::answering(|question| bytes(&reply(question, ResponseCode::Refused, &[])));
    let good = ForgingServer::answering(|question| correct_answer(question, 1));
    let servers = [silent.local_addr().unwrap(), refusing.address, good.address];
    let discovery = discovery("w.test:1", good.address).name_servers(servers);
    let mut subscription = subscribe(&discovery).await;
    let first = match ready(&mut subscription) {
        none if none.is_empty() => next(&mut subscription).await,
        events => events.join(" "),
    };
    assert_eq!(first, "+10.0.0.1:1");
}

#[test]
fn packet_parser_never_panics() {
    // The parser belongs to the crate, but its input comes from the network, so its panics would be
    // ours.
    use proptest::prelude::*;
    proptest!(|(bytes in prop::collection::vec(any::<u8>(), 0..600))| {
        let _ = Message::from_vec(&bytes);
    });
}

#[tokio::test]
async fn absolute_name_is_looked_up_unchanged() {
    let server = super::server::Server::start("host-record=w.ns.test,10.0.0.1\n");
    let mut subscription = subscribe(&discovery("w.ns.test.:1", server.address())).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
}
