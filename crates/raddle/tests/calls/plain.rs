//! The documented protocol, by a client that knows nothing else.

use raddle_wire::v1::{self, exception::Kind, reply::What, worker_client::WorkerClient};
use tonic::{Code, transport::Channel};

use crate::{CALLEE, pool, within};

pub(crate) async fn client(pool: &raddle::WorkerPool) -> WorkerClient<Channel> {
    let address = format!("http://{}", pool.workers()[0].address);
    let endpoint = tonic::transport::Endpoint::from_shared(address).expect("a host and a port");
    WorkerClient::new(endpoint.connect().await.expect("it listens"))
}

fn call(routine: &str, arguments: &'static [u8]) -> v1::Call {
    v1::Call { protocol: 1, routine: routine.into(), arguments: arguments.into(), ..v1::Call::default() }
}

async fn replies(client: &mut WorkerClient<Channel>, call: v1::Call) -> Result<Vec<What>, tonic::Status> {
    let mut stream = client.dispatch(call).await?.into_inner();
    let mut replies = Vec::new();
    while let Some(v1::Reply { what: Some(what) }) = stream.message().await? {
        replies.push(what);
    }
    Ok(replies)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_an_ack_results_and_at_most_one_exception() {
    within(30, async {
        let at_port = |tags: &_| raddle::pool::worker::LocalWorker::new(tags).program(CALLEE).address_of("127.0.0.1:0");
        let pool = pool(1).worker(at_port).start().await.unwrap();
        let mut client = client(&pool).await;
        // An array of two numbers; and of one.
        let sum = replies(&mut client, call("add", b"\x92\x01\x02")).await.unwrap();
        assert_eq!(sum.last(), Some(&What::Result(b"\x03".as_slice().into())));
        let items = replies(&mut client, call("count", b"\x91\x03")).await.unwrap();
        let expected: Vec<_> = [b"\x00", b"\x01", b"\x02"].map(|n| What::Result(n.as_slice().into())).into();
        assert_eq!(items, [vec![What::Ack(v1::Ack {})], expected].concat());
        // More than a window of them.
        assert_eq!(replies(&mut client, call("count", b"\x91\xcd\x10\x00")).await.unwrap().len(), 4097);
        // Large ones too: five times a mebibyte, for each of which there must be room again.
        let large = replies(
            &mut client,
            call("texts", b"\x91\x95\xce\0\x10\0\0\xce\0\x10\0\0\xce\0\x10\0\0\xce\0\x10\0\0\xce\0\x10\0\0"),
        );
        assert_eq!(large.await.unwrap().len(), 6);
        let bang = replies(&mut client, call("explode", b"\x91\xa1x")).await.unwrap();
        assert!(matches!(bang.last(), Some(What::Exception(thrown)) if thrown.kind() == Kind::Panicked), "{bang:?}");
        for (wrong, code) in [
            (call("no-such", b"\x90"), Code::NotFound),
            (v1::Call { protocol: 99, ..call("add", b"\x92\x01\x02") }, Code::FailedPrecondition),
            (call("add", b"\x91\x01"), Code::InvalidArgument),
            (call("add", b"nonsense"), Code::InvalidArgument),
        ] {
            assert_eq!(replies(&mut client, wrong).await.unwrap_err().code(), code);
        }
        let info = client.info(v1::InfoRequest {}).await.unwrap().into_inner();
        assert!(info.routines.contains(&"add".to_owned()) && info.in_flight == 0 && info.taken >= 4, "{info:?}");
        client.idle(v1::IdleRequest {}).await.unwrap();
        client.stop(v1::StopRequest { timeout: 0.0 }).await.unwrap();
    })
    .await;
}
