//! Where workers serve and are found, and how they are asked to end. With real workers it is tested in `crates/raddle/tests/serve`.

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
fn several_workers_serve_at_ports_in_a_row() {
    let ports = |bind: &str, place| at(&address(bind), place).map(|at| at.to_string());
    assert_eq!(ports("10.0.0.7:7070", 0).unwrap(), "10.0.0.7:7070");
    assert_eq!(ports("10.0.0.7:7070", 3).unwrap(), "10.0.0.7:7073");
    assert_eq!(ports("[::]:65535", 0).unwrap(), "[::]:65535");
    assert!(
        ports("[::]:65535", 1)
            .unwrap_err()
            .contains("not so many ports")
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
fn what_others_reach_needs_credentials_or_a_word() {
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
fn a_worker_is_found_where_it_is_said() {
    let found = |advertise: &str, served: &str, bind: &str| {
        let advertise: Advertise = advertise.parse().unwrap();
        let bind = address(bind);
        advertise
            .check(Some(&bind))
            .map(|()| advertise.of(served, Some(&bind)))
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
            .contains("are any")
    );
    assert!(
        found("w.internal", "unix:/w", "unix:/w")
            .unwrap_err()
            .contains("no port")
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
fn who_is_on_the_same_machine_finds_what_serves_everywhere() {
    for (served, found) in [
        ("0.0.0.0:7070", "127.0.0.1:7070"),
        ("[::]:7070", "[::1]:7070"),
        ("10.0.0.7:7070", "10.0.0.7:7070"),
        ("unix-abstract:w", "unix-abstract:w"),
    ] {
        assert_eq!(nearby(served), found);
    }
}

#[test]
fn what_makes_no_sense_is_said_before_anything_is_started() {
    for (options, why) in [
        (
            Options {
                workers: 0,
                ..Options::new("test")
            },
            "no workers",
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
            "no port",
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
fn who_asks_twice_does_not_want_to_wait() {
    let shutdown = Shutdown::new();
    assert_eq!(shutdown.asked().now_or_never(), None);
    shutdown.drain();
    assert_eq!(shutdown.asked().now_or_never(), Some(StopMode::Endless));
    assert_eq!(shutdown.hurried().now_or_never(), None);
    shutdown.clone().drain();
    assert_eq!(shutdown.asked().now_or_never(), Some(StopMode::None));
    let at_once = Shutdown::new();
    at_once.cancel();
    assert_eq!(at_once.hurried().now_or_never(), Some(()));
    at_once.drain();
    assert_eq!(at_once.asked().now_or_never(), Some(StopMode::None));
}
