//! The documented gRPC service, called by a plain tonic client.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use raddle::{
    CallError,
    pool::{
        balancer::{Balancer, BalancerContext, RoundRobin},
        connection::{CallRequest, ReplyStream},
    },
};
use raddle_wire::{
    Message,
    v1::{self, exception::Kind, reply::What, worker_client::WorkerClient},
};
use tonic::{Code, transport::Channel};

use crate::{CALLEE, pool, routines, within};

pub(crate) async fn client(pool: &raddle::WorkerPool) -> WorkerClient<Channel> {
    let address = format!("http://{}", pool.workers()[0].address);
    let endpoint = tonic::transport::Endpoint::from_shared(address).expect("a host and a port");
    WorkerClient::new(endpoint.connect().await.expect("the worker listens"))
}

fn call(routine: &str, arguments: &'static [u8]) -> v1::Call {
    v1::Call {
        protocol: 1,
        routine: routine.into(),
        arguments: arguments.into(),
        ..v1::Call::default()
    }
}

async fn replies(
    client: &mut WorkerClient<Channel>,
    call: v1::Call,
) -> Result<Vec<What>, tonic::Status> {
    let mut stream = client.dispatch(call).await?.into_inner();
    let mut replies = Vec::new();
    while let Some(v1::Reply { what: Some(what) }) = stream.message().await? {
        replies.push(what);
    }
    Ok(replies)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_an_ack_results_and_at_most_one_exception() {
    within(120, async {
        let at_port = |tags: &_| {
            raddle::pool::worker::LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0")
        };
        let pool = pool(1).worker(at_port).start().await.unwrap();
        let mut client = client(&pool).await;
        // An array of two numbers, then an array of one.
        let sum = replies(&mut client, call("add", b"\x92\x01\x02"))
            .await
            .unwrap();
        assert_eq!(
            sum,
            [
                What::Ack(v1::Ack {}),
                What::Result(b"\x03".as_slice().into())
            ]
        );
        let items = replies(&mut client, call("count", b"\x91\x03"))
            .await
            .unwrap();
        let expected: Vec<_> = [b"\x00", b"\x01", b"\x02"]
            .map(|n| What::Result(n.as_slice().into()))
            .into();
        assert_eq!(items, [vec![What::Ack(v1::Ack {})], expected].concat());
        // More items than a flow-control window.
        assert_eq!(
            replies(&mut client, call("count", b"\x91\xcd\x10\x00"))
                .await
                .unwrap()
                .len(),
            4097
        );
        // Large items too: five of 1 MiB, each of which needs new credit.
        let large = replies(
            &mut client,
            call(
                "texts",
                b"\x91\x95\xce\0\x10\0\0\xce\0\x10\0\0\xce\0\x10\0\0\xce\0\x10\0\0\xce\0\x10\0\0",
            ),
        );
        assert_eq!(large.await.unwrap().len(), 6);
        let bang = replies(&mut client, call("explode", b"\x91\xa1x"))
            .await
            .unwrap();
        let panicked = |thrown: &v1::Exception| thrown.kind() == Kind::Panicked;
        assert!(
            matches!(&bang[..], [What::Ack(_), What::Exception(thrown)] if panicked(thrown)),
            "{bang:?}"
        );
        for (invalid, code) in [
            (call("no-such", b"\x90"), Code::NotFound),
            (
                v1::Call {
                    protocol: 99,
                    ..call("add", b"\x92\x01\x02")
                },
                Code::FailedPrecondition,
            ),
            (call("add", b"\x91\x01"), Code::InvalidArgument),
            (call("add", b"nonsense"), Code::InvalidArgument),
        ] {
            assert_eq!(
                replies(&mut client, invalid).await.unwrap_err().code(),
                code
            );
        }
        // The last refused call may still be counted for a moment.
        client.idle(v1::IdleRequest {}).await.unwrap();
        let info = client.info(v1::InfoRequest {}).await.unwrap().into_inner();
        assert!(
            info.routines.contains(&"add".to_owned()) && info.in_flight == 0 && info.taken >= 4,
            "{info:?}"
        );
        client.stop(v1::StopRequest { timeout: 0.0 }).await.unwrap();
    })
    .await;
}

/// A caller that received an `Ack` knows that the routine may have begun, and does not try another
/// worker.
#[tokio::test(flavor = "multi_thread")]
async fn sends_the_ack_before_the_first_poll() {
    within(120, async {
        let at_port = |tags: &_| {
            raddle::pool::worker::LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0")
        };
        // An `async fn` and a plain function.
        for death in (0..3).flat_map(|_| [call("exit", b"\x91\x00"), call("abort", b"\x90")]) {
            let pool = pool(1).worker(at_port).start().await.unwrap();
            let mut replies = client(&pool)
                .await
                .dispatch(death)
                .await
                .unwrap()
                .into_inner();
            let first = replies.message().await.unwrap();
            assert_eq!(
                first,
                Some(v1::Reply {
                    what: Some(What::Ack(v1::Ack {}))
                })
            );
            replies.message().await.unwrap_err();
        }
        // Over a link, with a balancer that would try another worker after a refusal.
        for death in [routines::exit(0), routines::abort()] {
            let outcomes = Outcomes::default();
            let pool = pool(2).balancer(outcomes.clone()).start().await.unwrap();
            let error = death.on(&pool).await.unwrap_err();
            assert!(error.may_have_begun(), "{error:?}");
            assert_eq!(*outcomes.0.lock().unwrap(), [true]);
        }
    })
    .await;
}

/// Records whether each call was acknowledged.
#[derive(Clone, Default)]
struct Outcomes(Arc<Mutex<Vec<bool>>>);

#[raddle::async_trait]
impl Balancer for Outcomes {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        let outcome = RoundRobin.dispatch(call, context, timeout).await;
        self.0.lock().unwrap().push(outcome.is_ok());
        outcome
    }
}

fn json(routine: &str, arguments: &'static str) -> v1::Call {
    v1::Call {
        encoding: v1::Encoding::Json.into(),
        ..call(routine, arguments.as_bytes())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_json_calls_in_json() {
    within(120, async {
        let at_port = |tags: &_| {
            raddle::pool::worker::LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0")
        };
        let pool = pool(1).worker(at_port).start().await.unwrap();
        let mut client = client(&pool).await;
        for (call, result) in [
            (
                json("add", "[18446744073709551614, 1]"),
                "18446744073709551615",
            ),
            (
                json("flip", r#"[{"a": {"x": 0.1, "y": -2}}]"#),
                r#"[{"x":-2.0,"y":0.1}]"#,
            ),
            (json("echo", "[\"ä\\u0000\"]"), "\"ä\\u0000\""),
            (json("find", r#"["it"]"#), "1"),
        ] {
            let replies = replies(&mut client, call).await.unwrap();
            assert_eq!(
                replies.last(),
                Some(&What::Result(result.as_bytes().into()))
            );
        }
        let items = replies(&mut client, json("count", "[3]")).await.unwrap();
        assert_eq!(
            items[1..],
            ["0", "1", "2"].map(|n| What::Result(n.as_bytes().into()))
        );
        let missing = replies(&mut client, json("find", r#"["that"]"#))
            .await
            .unwrap();
        let Some(What::Exception(thrown)) = missing.last() else {
            panic!("{missing:?}")
        };
        assert_eq!(
            (thrown.kind(), thrown.message.as_str()),
            (Kind::Failed, "that is missing")
        );
        assert_eq!(thrown.value.as_ref(), br#"{"Missing":{"missing":"that"}}"#);
        // The context is read, and passed on to nested calls.
        let context = [("tenant".to_owned(), br#""acme""#.as_slice().into())];
        for routine in ["surroundings", "surroundings_below"] {
            let call = v1::Call {
                context: context.clone().into(),
                route: route(&pool).into(),
                ..json(routine, "[]")
            };
            let replies = replies(&mut client, call).await.unwrap();
            assert_eq!(
                replies.last(),
                Some(&What::Result(br#"["acme",null,false]"#.as_slice().into())),
                "{routine}"
            );
        }
        for (invalid, expected) in [
            (json("add", "[1]"), "it takes 2 and was given 1"),
            (
                json("add", r#"[1, "two"]"#),
                "'b': invalid type: string \"two\", expected u64",
            ),
            (json("add", r#"{"a": 1, "b": 2}"#), "they are not an array"),
            (json("add", "[1, 2"), "they are not an array: EOF"),
            (json("add", "[NaN, 2]"), "expected value"),
        ] {
            let status = replies(&mut client, invalid).await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains(expected), "{}", status.message());
        }
        let later = v1::Call {
            encoding: 77,
            ..json("add", "[1, 2]")
        };
        let status = replies(&mut client, later).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(
            status.metadata().get("raddle-encodings").unwrap(),
            "messagepack,json"
        );
        let info = client.info(v1::InfoRequest {}).await.unwrap().into_inner();
        assert_eq!(
            info.encodings().collect::<Vec<_>>(),
            [v1::Encoding::MessagePack, v1::Encoding::Json]
        );
        assert_eq!(info.worker.unwrap().encodings, info.encodings);
    })
    .await;
}

/// An encoded route to the workers of a pool.
fn route(pool: &raddle::WorkerPool) -> Vec<u8> {
    let workers = pool.workers().into_iter().map(Into::into).collect();
    v1::Route {
        workers,
        ..v1::Route::default()
    }
    .encode_to_vec()
}
