//! Servers that lie, that are slow, and that say nothing.

use std::{
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use tokio::net::TcpSocket;

use super::{
    super::{
        conf::Conf,
        lookup::lookup,
        message::{Kind, Query},
    },
    packets::{Packet, wire},
    *,
};

/// A server that answers as it is told: to each question with any number of packets. It is gone with this.
struct Liar {
    place: SocketAddr,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Liar {
    /// For each question: what is sent back, and from another place if that is said.
    fn start(mut answer: impl FnMut(&Query) -> Vec<(bool, Vec<u8>)> + Send + 'static) -> Self {
        let [socket, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let place = socket.local_addr().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 512];
            while !is_done.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut packet) else { continue };
                for (from_elsewhere, reply) in answer(&question(&packet[..length])) {
                    let socket = if from_elsewhere { &other } else { &socket };
                    let _ = socket.send_to(&reply, from);
                }
            }
        });
        Self { place, done, thread: Some(thread) }
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

/// What was asked: always of a name with two labels.
fn question(packet: &[u8]) -> Query {
    let kind = match packet[packet.len() - 3] {
        1 => Kind::V4,
        28 => Kind::V6,
        _ => Kind::Service,
    };
    Query { id: u16::from_be_bytes([packet[0], packet[1]]), name: "w.test".parse().unwrap(), kind }
}

/// An honest answer.
fn honest(query: &Query, last: u8) -> Vec<u8> {
    match query.kind {
        Kind::V4 => Packet::to(query, 0).answer(1, 1, &[10, 0, 0, last]).done(),
        _ => Packet::to(query, 0).done(),
    }
}

#[tokio::test]
async fn who_answers_in_the_place_of_a_server_is_not_heard() {
    let liar = Liar::start(|query| {
        let mut packets: Vec<_> = (1..50).map(|n| Query { id: query.id.wrapping_add(n), ..query.clone() }).collect();
        packets.push(Query { name: "v.test".parse().unwrap(), ..query.clone() });
        packets.push(Query { kind: Kind::Service, ..query.clone() });
        let mut packets: Vec<_> = packets.iter().map(|query| (false, honest(query, 66))).collect();
        // Who knows all, and sends from somewhere else.
        packets.push((true, honest(query, 66)));
        packets.push((false, query.write()));
        packets.push((false, b"\0".to_vec()));
        packets.push((false, Vec::new()));
        packets.push((false, honest(query, 1)));
        packets
    });
    let mut subscription = subscribe(&discovery("w.test:1", liar.place)).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
    nothing(&mut subscription).await;
}

#[tokio::test]
async fn what_cannot_be_read_takes_nobody_away_and_is_borne_with() {
    let mut count = 0;
    let liar = Liar::start(move |query| {
        let good = honest(query, 1);
        count += 1;
        let start = query.write().len() as u8;
        let looped = Packet::to(query, 0).record(6, &[0xC0, start], 1, 1, &[10, 0, 0, 66]).done();
        let bad = match count % 8 {
            0 => good[..good.len() - 1].to_vec(),
            1 => looped,
            2 => Packet::to(query, 0).answer(1, 1, &[10, 0, 0, 66, 0]).done(),
            3 => Packet::to(query, 2).done(),
            4 => Packet::to(query, 5).done(),
            5 => {
                let mut many = good.clone();
                (many[6], many[7]) = (0xFF, 0xFF);
                many
            }
            _ => good,
        };
        vec![(false, bad)]
    });
    let mut subscription = subscribe(&discovery("w.test:1", liar.place)).await;
    if ready(&mut subscription).is_empty() {
        assert_eq!(next(&mut subscription).await, "+10.0.0.1:1");
    }
    nothing(&mut subscription).await;
}

#[tokio::test]
async fn that_there_is_nobody_is_not_believed_at_once() {
    let is_down = Arc::new(AtomicBool::new(false));
    let (down, mut said) = (Arc::clone(&is_down), 0);
    let liar = Liar::start(move |query| {
        // Once and twice it is forgetful; each look asks for both kinds of addresses then.
        if down.load(Ordering::Relaxed) {
            said += 1;
            let is_over = said > 4;
            return vec![(false, if is_over { honest(query, 2) } else { Packet::to(query, 3).done() })];
        }
        vec![(false, honest(query, 1))]
    });
    let mut subscription = subscribe(&discovery("w.test:1", liar.place)).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
    is_down.store(true, Ordering::Relaxed);
    assert_eq!(next(&mut subscription).await, "-10.0.0.1:1");
    assert_eq!(ready(&mut subscription), ["+10.0.0.2:1"], "at the same time: nobody was never believed");
}

#[tokio::test]
async fn an_alias_of_itself_and_addresses_of_nobody_are_no_workers() {
    let liar = Liar::start(|query| {
        let round = [query.name.clone()].map(|name| {
            let mut bytes = Vec::new();
            name.write(&mut bytes);
            bytes
        });
        let reply = match query.kind {
            Kind::V4 => {
                Packet::to(query, 0).answer(1, 1, &[0; 4]).answer(1, 1, &[224, 0, 0, 1]).answer(1, 1, &[255; 4])
            }
            Kind::V6 => Packet::to(query, 0).answer(5, 1, &round[0]),
            Kind::Service => Packet::to(query, 0).answer(33, 1, &[&[0; 6][..], &wire("w.test")].concat()),
        };
        vec![(false, reply.done())]
    });
    for discovery in [discovery("w.test:1", liar.place), discovery("w.test:1", liar.place).prefer_ipv6()] {
        let mut subscription = subscribe(&discovery).await;
        assert_eq!(ready(&mut subscription), [""; 0]);
        nothing(&mut subscription).await;
    }
}

/// One that sends its packets on to a stream that comes to nothing.
#[tokio::test]
async fn a_stream_that_comes_to_nothing_is_given_up() {
    let start = || {
        Liar::start(|query| {
            let mut reply = Packet::to(query, 0).done();
            reply[2] |= 0b10;
            vec![(false, reply)]
        })
    };
    // A number that nobody else has for streams either, now or later.
    let (liar, port) = std::iter::repeat_with(start)
        .take(20)
        .find_map(|liar| {
            let port = TcpSocket::new_v4().unwrap();
            port.bind(liar.place).ok().map(|()| (liar, port))
        })
        .unwrap();
    let conf = Conf { timeout: Duration::from_millis(200), attempts: 1, ..Conf::of_servers(vec![liar.place]) };
    let name = "w.test".parse().unwrap();
    let ask = || soon(lookup(&conf, &name, true, Kind::V4));
    // Nobody listens there.
    assert!(ask().await.unwrap_err().to_string().contains("does not answer for w.test A: "));
    let listener = port.listen(128).unwrap().into_std().unwrap();
    listener.set_nonblocking(false).unwrap();
    // Somebody does, and says nothing.
    let error = ask().await.unwrap_err().to_string();
    assert!(error.contains("timed out"), "{error}");
    // Or something else, or only the beginning of it.
    for said in [&b"\0\x04junk"[..], b"\xFF\xFFjunk", b"\0\0", b"\0"] {
        let answering = std::thread::spawn({
            let listener = listener.try_clone().unwrap();
            move || {
                // The one before may not have been taken.
                let (mut stream, _) = listener.accept().unwrap();
                let _ = std::io::Write::write_all(&mut stream, said);
            }
        });
        assert!(ask().await.is_err(), "{said:?}");
        answering.join().unwrap();
    }
}

#[tokio::test]
async fn the_next_server_is_asked_and_all_of_them_again() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let refusing = Liar::start(|query| vec![(false, Packet::to(query, 5).done())]);
    let good = Liar::start(|query| vec![(false, honest(query, 1))]);
    let name = "w.test".parse().unwrap();
    let conf = |servers: &[SocketAddr]| Conf {
        timeout: Duration::from_millis(100),
        attempts: 2,
        search: vec!["below".parse().unwrap()],
        ..Conf::of_servers(servers.to_vec())
    };
    let silence = silent.local_addr().unwrap();
    let asked = conf(&[silence, refusing.place, good.place]);
    assert_eq!(soon(lookup(&asked, &name, false, Kind::V4)).await.unwrap().unwrap().data.len(), 1);
    // Whoever answers at all is named.
    let asked = conf(&[refusing.place, silence]);
    let began = std::time::Instant::now();
    let error = soon(lookup(&asked, &name, true, Kind::V4)).await.unwrap_err().to_string();
    assert_eq!(error, format!("{} answers REFUSED for w.test A", refusing.place));
    let asked = conf(&[silence]);
    let error = soon(lookup(&asked, &name, false, Kind::V6)).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("{silence} does not answer for w.test AAAA: ")), "{error}");
    // Twice each, and not again for another name.
    assert!((400..2000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn names_are_looked_for_where_the_system_says() {
    // A server that knows the name below another one.
    let server = super::server::Server::start("host-record=w.ns.test,10.0.0.1\nhost-record=whole.test,10.0.0.2\n");
    let conf = Conf {
        search: vec!["x.test".parse().unwrap(), "ns.test".parse().unwrap()],
        ..Conf::of_servers(vec![server.place()])
    };
    let found = async |name: &str, is_absolute| {
        let found = soon(lookup(&conf, &name.parse().unwrap(), is_absolute, Kind::V4)).await.unwrap();
        found.map(|found| found.data)
    };
    let address = |last| Some(vec![super::super::message::Data::Address([10, 0, 0, last].into())]);
    assert_eq!(found("w", false).await, address(1));
    assert_eq!(found("whole.test", false).await, address(2));
    assert_eq!(found("w.ns.test", true).await, address(1));
    assert_eq!(found("w.test", true).await, None);
}
