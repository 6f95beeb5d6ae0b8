//! Tests with a real name server whose records change.

use super::{server::Server, *};

/// Simultaneous events have no defined order.
fn sorted(mut events: Vec<String>) -> Vec<String> {
    events.sort();
    events
}

#[tokio::test]
async fn reports_all_addresses_and_their_changes() {
    let server = Server::start("local-ttl=1");
    server.reload("10.0.0.1 w.test\n10.0.0.2 w.test\n");
    let discovery = discovery("w.test:7070", server.address());
    let mut subscription = loop {
        // The server reloads its hosts file asynchronously.
        let mut subscription = subscribe(&discovery).await;
        let events = ready(&mut subscription);
        if !events.is_empty() {
            assert_eq!(sorted(events), ["+10.0.0.1:7070", "+10.0.0.2:7070"]);
            break subscription;
        }
    };
    expect_no_event(&mut subscription).await;
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
async fn recheck_overrides_a_long_ttl() {
    let server = Server::start("local-ttl=3600");
    server.reload("10.0.0.1 w.test\n");
    let often_polled = discovery("w.test:7070", server.address());
    let mut subscription = subscribe(&often_polled).await;
    if ready(&mut subscription).is_empty() {
        next(&mut subscription).await;
    }
    let rarely_polled = often_polled
        .clone()
        .poll_between(INTERVAL, Duration::from_secs(3600));
    let mut subscription = subscribe(&rarely_polled).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:7070"]);
    server.reload("10.0.0.2 w.test\n");
    expect_no_event(&mut subscription).await;
    rarely_polled.recheck_now();
    assert_eq!(next(&mut subscription).await, "-10.0.0.1:7070");
    assert_eq!(next(&mut subscription).await, "+10.0.0.2:7070");
    expect_no_event(&mut subscription).await;
    // A worker that could not be reached has the same effect.
    server.reload("10.0.0.3 w.test\n");
    expect_no_event(&mut subscription).await;
    rarely_polled.request_recheck(&rarely_polled.0.worker(([10, 0, 0, 2], 7070).into()));
    assert_eq!(next(&mut subscription).await, "-10.0.0.2:7070");
    assert_eq!(next(&mut subscription).await, "+10.0.0.3:7070");
}

#[tokio::test]
async fn next_lookup_follows_the_ttl() {
    let server = Server::start("local-ttl=2\nhost-record=w.test,10.0.0.1");
    let discovery =
        discovery("w.test:7070", server.address()).poll_between(INTERVAL, Duration::from_secs(60));
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
async fn srv_records_give_address_and_port_of_each_worker() {
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
    let of_service = discovery("_raddle._tcp.w.test.", server.address());
    let mut subscription = subscribe(&of_service).await;
    let events = sorted(ready(&mut subscription));
    // A host with IPv4 and IPv6 addresses is one worker.
    assert_eq!(
        events,
        ["+10.0.0.1:1", "+10.0.0.1:2", "+10.0.0.2:1", "+[fd00::3]:1"]
    );
    let mut sixth = subscribe(&of_service.clone().prefer_ipv6()).await;
    let events = sorted(ready(&mut sixth));
    assert_eq!(
        events,
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
    // `d.test` has no address, which does not affect the others.
    assert_eq!(gone, ["-10.0.0.1:1", "-10.0.0.2:1", "-[fd00::3]:1"]);
    // An SRV target of `.` means that the service is not available.
    server.change("srv-host=_raddle._tcp.w.test,.,0\n");
    assert_eq!(next(&mut subscription).await, "-10.0.0.1:2");
}

#[tokio::test]
async fn cname_records_are_followed() {
    let server = Server::start("cname=w.test,real.test\nhost-record=real.test,10.0.0.1,fd00::1\n");
    let mut subscription = subscribe(&discovery("W.Test:1", server.address())).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
}

#[tokio::test]
async fn large_answer_arrives_over_tcp() {
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
        let mut subscription = subscribe(&discovery(name, server.address())).await;
        let mut events = ready(&mut subscription);
        while events.len() < count {
            events.push(next(&mut subscription).await);
        }
        assert!(
            events.len() == count && events.iter().all(|event| event.starts_with('+')),
            "{events:?}"
        );
    }
}

#[tokio::test]
async fn stopped_server_removes_no_workers() {
    let records = "host-record=w.test,10.0.0.1\n";
    let mut server = Server::start(records);
    // The first of the two servers never exists.
    let missing = SocketAddr::from(([127, 0, 0, 1], server::free_port()));
    let discovery =
        discovery("w.test:1", server.address()).name_servers([missing, server.address()]);
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription), ["+10.0.0.1:1"]);
    server.stop();
    expect_no_event(&mut subscription).await;
    // A new subscriber starts with no workers, and sees them when the server is back.
    let mut late = subscribe(&discovery).await;
    assert_eq!(ready(&mut late), [""; 0]);
    server.change(&format!("{records}host-record=w.test,10.0.0.2\n"));
    assert_eq!(next(&mut subscription).await, "+10.0.0.2:1");
    let events = vec![next(&mut late).await, next(&mut late).await];
    assert_eq!(sorted(events), ["+10.0.0.1:1", "+10.0.0.2:1"]);
}
