//! Tests of a link whose client is scripted by the test.

use std::{io::Read as _, os::unix::net::UnixStream};

use raddle_model::routine::Routines;
use raddle_wire::frame::Decoder;

use super::{super::executor::ExecutorSetup, *};
use crate::{proxy::Routing, stream::PeerIdentity};

#[tokio::test]
async fn client_that_connects_during_the_stop_receives_leave() {
    let executor = Executor::new(ExecutorSetup::for_test(
        Routines::default(),
        &Handle::current(),
    ));
    let links = LinkServer::new(ConnectionLimiter::new(1, Arc::default()));
    links.close_all(Duration::from_secs(1)).await;
    let (ours, mut client) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let caller = AuthorizedPeer {
        peer: PeerIdentity::SameUser,
        from: None,
        routing: Routing::Unrestricted,
    };
    links.start(LinkSocket::new(ours.into(), false, None), caller, &executor);
    let reading = tokio::task::spawn_blocking(move || {
        client
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).map(|_| bytes)
    });
    let (mut replies, bytes) = (Vec::new(), reading.await.unwrap().unwrap());
    Decoder::default()
        .take(&bytes, |frame| {
            replies.push(v1::Answer::decode(frame.head).unwrap().what)
        })
        .unwrap();
    assert_eq!(replies, [Some(answer::What::Leave(v1::Leave::default()))]);
}
