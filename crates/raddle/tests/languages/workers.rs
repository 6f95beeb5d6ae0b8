//! Python workers, called by a Rust pool.

use std::{collections::BTreeMap, time::Duration};

use raddle::{
    Call, CallError, WorkerProxy,
    core::routine::EncodedArgs,
    pool::{Encoding, WorkerMetadata},
};
use serde_json::json;

use crate::{
    durable, echo, embed, entries, explode, find, infinity,
    python::Python,
    routines::{FindError, TENANT},
    sleep, tenant, ticks, wait_until, within, words,
};

#[tokio::test(flavor = "multi_thread")]
async fn calls_functions_and_streams_of_a_python_worker() {
    within(120, async {
        let python = Python::new().await;
        let worker = python.worker(&["--tag", "py"]).await;
        let pool = durable(&python.workers()).await;
        let known = &pool.workers()[0];
        assert_eq!((known.address.as_str(), known.pid), (worker.address.as_str(), worker.pid()));
        assert_eq!((&known.encodings, &known.tags), (&[Encoding::Json].into(), &["py".to_owned()].into()));
        pool.scope(async {
            let vector = embed("abba".into()).await.unwrap();
            assert_eq!((vector.len(), vector[0], vector[2]), (26, 0.5_f32.sqrt(), 0.0));
            let mut stream = words("three short words".into());
            for word in ["three", "short", "words"] {
                assert_eq!(stream.next().await, Some(Ok(word.to_owned())));
            }
            assert_eq!(stream.next().await, None);
            assert_eq!(find("it".into()).await, Ok(1));
            let missing = CallError::Failed(FindError::Missing { missing: "that".into() });
            assert_eq!(find("that".into()).await, Err(missing));
            let error = explode("fun".into()).await.unwrap_err();
            let CallError::Panicked { message, place, backtrace } = error else { panic!("{error:?}") };
            assert_eq!(message, "ValueError: exploded for fun");
            assert!(place.contains("worker.py:"), "{place}");
            assert!(backtrace.contains("in explode") && backtrace.starts_with("Traceback"), "{backtrace}");
            let value = json!({ "ä": [u64::MAX, i64::MIN, 0.1, true, null, "\u{0}"] });
            assert_eq!(echo(value.clone()).await, Ok(value));
            assert!(matches!(infinity().await, Err(CallError::Result(message)) if message.contains("JSON")));
            assert_eq!(TENANT.scope("acme".into(), async { tenant().await }).await, Ok(Some("acme".into())));
            assert_eq!(tenant().await, Ok(None));
        })
        .await;
        let info = worker.control().info().await.unwrap();
        assert!(info.routines.contains(&"py.embed".to_owned()) && info.taken >= 9, "{info:?}");
        assert!(info.encodings().eq([raddle::wire::v1::Encoding::Json]), "{info:?}");
        assert!(!info.stopping && info.uptime > 0.0, "{info:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_invalid_calls_and_keeps_the_worker() {
    within(120, async {
        let python = Python::new().await;
        let _worker = python.worker(&[]).await;
        let pool = durable(&python.workers()).await;
        let calls: [(&str, EncodedArgs, &str); 3] = [
            (
                "py.embed",
                EncodedArgs::new(0),
                "missing a required argument: 'text'",
            ),
            (
                "py.embed",
                EncodedArgs::new(2).argument("a", &"a").argument("b", &"b"),
                "too many positional arguments",
            ),
            (
                "py.echo",
                EncodedArgs::new(1).argument("value", &f64::NAN),
                "NaN",
            ),
        ];
        for (routine, arguments, expected) in calls {
            let error = Call::<Vec<f32>>::new(routine, arguments)
                .on(&pool)
                .await
                .unwrap_err();
            assert!(
                matches!(&error, CallError::Arguments(message) if message.contains(expected)),
                "{error:?}"
            );
            assert!(!error.may_have_begun());
        }
        // The type shows that it cannot be a JSON key.
        let keys = BTreeMap::from([((1, 2), 3)]);
        let error = Call::<()>::new("py.echo", EncodedArgs::new(1).argument("value", &keys))
            .on(&pool)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, CallError::Arguments(message) if message.contains("key")),
            "{error:?}"
        );
        let error = Call::<u8>::new("py.nothing", EncodedArgs::new(0))
            .on(&pool)
            .await
            .unwrap_err();
        assert!(matches!(&error, CallError::UnknownRoutine(_)), "{error:?}");
        let error = Call::<u8>::new("py.echo", EncodedArgs::new(1).argument("value", &"text"))
            .on(&pool)
            .await
            .unwrap_err();
        assert!(matches!(&error, CallError::Result(_)), "{error:?}");
        assert_eq!(find("it".into()).on(&pool).await, Ok(1));
        assert_eq!(pool.workers().len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn negotiates_the_encoding_with_an_unknown_worker() {
    within(120, async {
        let python = Python::new().await;
        let worker = python.worker(&[]).await;
        let known = durable(&python.workers()).await.workers().remove(0);
        let unknown = WorkerMetadata {
            encodings: [].into(),
            ..known
        };
        let proxy = WorkerProxy::of_workers([unknown]).start().await.unwrap();
        for _ in 0..2 {
            assert_eq!(find("it".into()).on(&proxy).await, Ok(1));
        }
        assert_eq!(
            worker.control().info().await.unwrap().taken,
            2,
            "calls in an unknown encoding are refused"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_call_cancels_it_in_python() {
    within(120, async {
        let python = Python::new().await;
        let worker = python.worker(&[]).await;
        let pool = durable(&python.workers()).await;
        let ended = python.file("ended");
        let mut numbers = ticks(0.01, ended.clone()).on(&pool);
        for number in 0..3 {
            assert_eq!(numbers.next().await, Some(Ok(number)));
        }
        assert!(!ended.exists());
        drop(numbers);
        wait_until("the generator ends", async || ended.exists()).await;
        let call = tokio::spawn(sleep(600.0).on(&pool));
        worker.wait_for_in_flight(1).await;
        call.abort();
        worker.wait_for_in_flight(0).await;
        // The worker enforces the deadline too.
        let brief = Duration::from_millis(300);
        assert_eq!(
            sleep(600.0).timeout(brief).on(&pool).await,
            Err(CallError::TimedOut)
        );
        worker.wait_for_in_flight(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_many_concurrent_calls() {
    within(120, async {
        let python = Python::new().await;
        let (_one, _other) = tokio::join!(python.worker(&[]), python.worker(&[]));
        let pool = durable(&python.workers()).await;
        assert_eq!(
            (pool.workers().len(), entries(&python.workers()).len()),
            (2, 2)
        );
        let calls = (0..300).map(|n| echo(json!(n)).on(&pool));
        let all = futures_util::future::join_all(calls).await;
        assert!(
            all.into_iter()
                .enumerate()
                .all(|(n, outcome)| outcome == Ok(json!(n)))
        );
        // Larger than the default message limit of gRPC.
        let large = json!("x".repeat(20 << 20));
        assert_eq!(echo(large.clone()).on(&pool).await, Ok(large));
    })
    .await;
}
