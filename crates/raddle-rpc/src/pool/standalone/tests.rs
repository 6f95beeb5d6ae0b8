//! Tests of addresses, options and shutdown. Those with processes are in
//! `crates/raddle/tests/serve`.

use futures_util::FutureExt;
use raddle_discovery::Address;

use super::{advertise::*, *};
use crate::{
    PoolError,
    worker::{ProcessSettings, StopMode},
};

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

#[test]
fn workers_listen_on_consecutive_ports() {
    let ports = |bind: &str, slot| listen_address(&address(bind), slot).map(|at| at.to_string());
    assert_eq!(ports("10.0.0.7:7070", 0).unwrap(), "10.0.0.7:7070");
    assert_eq!(ports("10.0.0.7:7070", 3).unwrap(), "10.0.0.7:7073");
    assert_eq!(ports("[::]:65535", 0).unwrap(), "[::]:65535");
    assert!(
        ports("[::]:65535", 1)
            .unwrap_err()
            .contains("not enough ports")
    );
    assert_eq!(ports("0.0.0.0:0", 9).unwrap(), "0.0.0.0:0");
    assert_eq!(ports("unix:/run/w", 0).unwrap(), "unix:/run/w");
    assert!(
        ports("unix:/run/w", 1)
            .unwrap_err()
            .contains("only one worker")
    );
}

#[test]
fn exposed_address_needs_credentials_or_insecure() {
    for (bind, is) in [
        ("0.0.0.0:0", true),
        ("[::]:7070", true),
        ("10.0.0.7:1", true),
        ("[::ffff:10.0.0.7]:1", true),
        ("127.0.0.1:0", false),
        ("[::1]:0", false),
        ("[::ffff:127.0.0.1]:0", false),
        ("unix-abstract:w", false),
    ] {
        assert_eq!(is_exposed(&address(bind)), is, "{bind}");
        let options = Options {
            bind: Some(address(bind)),
            workers: 1,
            ..Options::new("test")
        };
        let refused =
            matches!(options.check(), Err(PoolError::Invalid(why)) if why.contains("credentials"));
        assert_eq!(refused, is, "{bind}");
        let insecure = ProcessSettings {
            insecure: true,
            ..ProcessSettings::default()
        };
        assert!(
            Options {
                process: insecure,
                ..options
            }
            .check()
            .is_ok(),
            "{bind}"
        );
    }
}

#[test]
fn advertised_address_follows_the_port() {
    let found = |advertise: &str, served: &str, bind: &str| {
        let advertise: Advertise = advertise.parse().unwrap();
        let bind = address(bind);
        advertise
            .check(Some(&bind))
            .map(|()| advertise.public_address(served, Some(&bind)))
    };
    assert_eq!(
        found("10.0.0.7", "0.0.0.0:41234", "0.0.0.0:0").unwrap(),
        "10.0.0.7:41234"
    );
    assert_eq!(
        found("w.internal", "0.0.0.0:7072", "0.0.0.0:7070").unwrap(),
        "w.internal:7072"
    );
    assert_eq!(
        found("w.internal:80", "0.0.0.0:7072", "0.0.0.0:7070").unwrap(),
        "w.internal:82"
    );
    assert_eq!(
        found("2001:db8::7", "[::]:5", "[::]:5").unwrap(),
        "[2001:db8::7]:5"
    );
    assert_eq!(
        found("[2001:db8::7]:90", "[::]:6", "[::]:5").unwrap(),
        "[2001:db8::7]:91"
    );
    assert!(
        found("w.internal:80", "0.0.0.0:41234", "0.0.0.0:0")
            .unwrap_err()
            .contains("any free ones")
    );
    assert!(
        found("w.internal", "unix:/w", "unix:/w")
            .unwrap_err()
            .contains("without a port")
    );
    for wrong in [
        "",
        ":80",
        "a b",
        "host:",
        "host:0",
        "host:99999",
        "0.0.0.0",
        "[::]",
        "[::]:80",
        "a/b",
        "1:2:3",
    ] {
        assert!(wrong.parse::<Advertise>().is_err(), "{wrong}");
    }
}

#[test]
fn wildcard_address_is_found_at_the_loopback() {
    for (served, found) in [
        ("0.0.0.0:7070", "127.0.0.1:7070"),
        ("[::]:7070", "[::1]:7070"),
        ("10.0.0.7:7070", "10.0.0.7:7070"),
        ("unix-abstract:w", "unix-abstract:w"),
    ] {
        assert_eq!(local_address(served), found);
    }
}

#[test]
fn invalid_options_are_reported_before_a_start() {
    for (options, why) in [
        (
            Options {
                workers: 0,
                ..Options::new("test")
            },
            "the number of workers is 0",
        ),
        (
            Options {
                bind: Some(address("unix:/w")),
                workers: 2,
                ..Options::new("test")
            },
            "only one worker",
        ),
        (
            Options {
                advertise: Some("10.0.0.7".parse().unwrap()),
                ..Options::new("test")
            },
            "without a port",
        ),
    ] {
        let error = options.check().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    // The tests of this crate have no routines.
    assert!(matches!(
        StandaloneService::new(Options::new("test")),
        Err(PoolError::NoRoutines)
    ));
    let process = ProcessSettings {
        program: Some("/bin/false".into()),
        ..ProcessSettings::default()
    };
    let nameless = Options {
        process,
        ..Options::new("two words")
    };
    assert!(matches!(
        StandaloneService::new(nameless),
        Err(PoolError::Discovery(_))
    ));
}

#[test]
fn second_drain_cancels() {
    let shutdown = Shutdown::new();
    assert_eq!(shutdown.requested().now_or_never(), None);
    shutdown.drain();
    assert_eq!(shutdown.requested().now_or_never(), Some(StopMode::Drain));
    assert_eq!(shutdown.cancel_requested().now_or_never(), None);
    shutdown.clone().drain();
    assert_eq!(shutdown.requested().now_or_never(), Some(StopMode::Cancel));
    let cancelled = Shutdown::new();
    cancelled.cancel();
    assert_eq!(cancelled.cancel_requested().now_or_never(), Some(()));
    cancelled.drain();
    assert_eq!(cancelled.requested().now_or_never(), Some(StopMode::Cancel));
}
