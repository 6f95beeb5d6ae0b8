//! A real server, whose records change.

use super::{server::Server, *};

/// Of several things that happen at once, none comes first.
fn sorted(mut told: Vec<String>) -> Vec<String> {
    told.sort();
    told
}

#[tokio::test]
async fn all_addresses_of_a_name_are_workers_and_changes_are_heard_of() {
    let server = Server::start("local-ttl=1");
    server.reload("10.0.0.1 w.test\n10.0.0.2 w.test\n");
    let discovery = discovery("w.test:7070", server.place());
    let mut subscription = loop {
        // It reads its file when it gets round to it.
        let mut subscription = subscribe(&discovery).await;
        let told = ready(&mut subscription);
        if !told.is_empty() {
            assert_eq!(sorted(told), ["+10.0.0.1:7070", "+10.0.0.2:7070"]);
            break subscription;
        }
    };
    nothing(&mut subscription).await;
    server.reload("10.0.0.2 w.test\n10.0.0.3 w.test\n");
    assert_eq!(next(&mut subscription).await, "-10.0.0.1:7070");
    assert_eq!(next(&mut subscription).await, "+10.0.0.3:7070");
    server.reload("");
    let gone = [next(&mut subscription).await, next(&mut subscription).await];
    assert_eq!(sorted(gone.to_vec()), ["-10.0.0.2:7070", "-10.0.0.3:7070"]);
    server.reload("10.0.0.4 w.test\n");
    assert_eq!(next(&mut subscription).await, "+10.0.0.4:7070");
}

#[tokio::test]
async fn what_holds_for_long_is_asked_for_again_when_somebody_wants_to_know() {
    let server = Server::start("local-ttl=3600");
    server.reload("10.0.0.1 w.test\n");
    let often = discovery("w.test:7070", server.place());
    let mut subscription = subscribe(&often).await;
    if ready(&mut subscription).is_empty() {
        next(&mut subscription).await;
    }
    let seldom = often.clone().between(OFTEN, Duration::from_secs(3600));
    let mut subscription = subscribe(&seldom).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:7070"]);
    server.reload("10.0.0.2 w.test\n");
    nothing(&mut subscription).await;
    seldom.look_again();
    assert_eq!(next(&mut subscription).await, "-10.0.0.1:7070");
    assert_eq!(next(&mut subscription).await, "+10.0.0.2:7070");
    nothing(&mut subscription).await;
    // So it is when somebody was not reached.
    server.reload("10.0.0.3 w.test\n");
    nothing(&mut subscription).await;
    seldom.request_recheck(&seldom.0.worker(([10, 0, 0, 2], 7070).into()));
    assert_eq!(next(&mut subscription).await, "-10.0.0.2:7070");
    assert_eq!(next(&mut subscription).await, "+10.0.0.3:7070");
}

#[tokio::test]
async fn an_answer_holds_for_as_long_as_it_says() {
    let server = Server::start("local-ttl=2\nhost-record=w.test,10.0.0.1");
    let discovery =
        discovery("w.test:7070", server.place()).between(OFTEN, Duration::from_secs(60));
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:7070"]);
    let asked = std::time::Instant::now();
    server.reload("10.0.0.2 w.test\n");
    assert_eq!(next(&mut subscription).await, "+10.0.0.2:7070");
    assert!(
        asked.elapsed() > Duration::from_millis(1500),
        "{:?}",
        asked.elapsed()
    );
}

#[tokio::test]
async fn a_service_says_where_each_of_its_workers_serves() {
    let records = |services: &str| {
        format!(
            "host-record=a.test,10.0.0.1\nhost-record=b.test,10.0.0.2,fd00::2\nhost-record=c.test,fd00::3\n{services}"
        )
    };
    let service =
        |target: &str, port: u16| format!("srv-host=_raddle._tcp.w.test,{target},{port}\n");
    let all = [
        service("a.test", 1),
        service("a.test", 2),
        service("b.test", 1),
        service("c.test", 1),
    ]
    .concat();
    let mut server = Server::start(&records(&all));
    let of_service = discovery("_raddle._tcp.w.test.", server.place());
    let mut subscription = subscribe(&of_service).await;
    let told = sorted(ready(&mut subscription));
    // Who has addresses of both kinds is one worker.
    assert_eq!(
        told,
        ["+10.0.0.1:1", "+10.0.0.1:2", "+10.0.0.2:1", "+[fd00::3]:1"]
    );
    let mut sixth = subscribe(&of_service.clone().prefer_ipv6()).await;
    let told = sorted(ready(&mut sixth));
    assert_eq!(
        told,
        ["+10.0.0.1:1", "+10.0.0.1:2", "+[fd00::2]:1", "+[fd00::3]:1"]
    );
    server.change(&records(
        &[service("a.test", 2), service("d.test", 1)].concat(),
    ));
    let mut gone = Vec::new();
    while gone.len() < 3 {
        gone.push(next(&mut subscription).await);
    }
    let gone = sorted(gone);
    // The last one has no address, which is no reason for the others to go.
    assert_eq!(gone, ["-10.0.0.1:1", "-10.0.0.2:1", "-[fd00::3]:1"]);
    // A service that says itself that there is none of it.
    server.change("srv-host=_raddle._tcp.w.test,.,0\n");
    assert_eq!(next(&mut subscription).await, "-10.0.0.1:2");
}

#[tokio::test]
async fn an_alias_stands_for_what_it_stands_for() {
    let server = Server::start("cname=w.test,real.test\nhost-record=real.test,10.0.0.1,fd00::1\n");
    let mut subscription = subscribe(&discovery("W.Test:1", server.place())).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
}

#[tokio::test]
async fn an_answer_that_is_too_large_for_a_packet_comes_over_tcp() {
    let hosts: String = (1..=200).map(|n| format!("10.0.1.{n} w.test\n")).collect();
    let services: String = (1..=100)
        .map(|n| {
            format!(
                "srv-host=_raddle._tcp.w.test,h{n}.test,{n}\nhost-record=h{n}.test,10.0.2.{n}\n"
            )
        })
        .collect();
    let server = Server::start(&services);
    server.reload(&hosts);
    for (name, count) in [("w.test:1", 200), ("_raddle._tcp.w.test", 100)] {
        let mut subscription = subscribe(&discovery(name, server.place())).await;
        let mut heard = ready(&mut subscription);
        while heard.len() < count {
            heard.push(next(&mut subscription).await);
        }
        assert!(
            heard.len() == count && heard.iter().all(|event| event.starts_with('+')),
            "{heard:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_is_gone_takes_nobody_along() {
    let records = "host-record=w.test,10.0.0.1\n";
    let mut server = Server::start(records);
    // Two are asked: the first of them is never there.
    let nobody = SocketAddr::from(([127, 0, 0, 1], server::free_port()));
    let discovery = discovery("w.test:1", server.place()).name_servers([nobody, server.place()]);
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
    server.stop();
    nothing(&mut subscription).await;
    // Whoever comes meanwhile hears of nobody, and of those who come then.
    let mut late = subscribe(&discovery).await;
    assert_eq!(ready(&mut late), [""; 0]);
    server.change(&format!("{records}host-record=w.test,10.0.0.2\n"));
    assert_eq!(next(&mut subscription).await, "+10.0.0.2:1");
    let told = vec![next(&mut late).await, next(&mut late).await];
    assert_eq!(sorted(told), ["+10.0.0.1:1", "+10.0.0.2:1"]);
}
