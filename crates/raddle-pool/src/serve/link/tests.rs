//! A link whose client is played by the test.

use std::{io::Read as _, os::unix::net::UnixStream};

use raddle_core::routine::Routines;
use raddle_wire::frame::Decoder;

use super::{super::executor::Setup, *};
use crate::{proxy::Routing, stream::Peer};

#[tokio::test]
async fn who_comes_when_the_worker_leaves_is_told_so() {
    let executor = Executor::new(Setup::for_test(Routines::default(), &Handle::current()));
    let links = Links::new(Guests::new(1, Arc::default()));
    links.leave(Duration::from_secs(1)).await;
    let (ours, mut client) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let caller = Caller { peer: Peer::User, from: None, routing: Routing::Anywhere };
    links.begin(Socket::new(ours.into(), false, None), caller, &executor);
    let reading = tokio::task::spawn_blocking(move || {
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).map(|_| bytes)
    });
    let (mut heard, bytes) = (Vec::new(), reading.await.unwrap().unwrap());
    Decoder::default().take(&bytes, |frame| heard.push(v1::Answer::decode(frame.head).unwrap().what)).unwrap();
    assert_eq!(heard, [Some(answer::What::Leave(v1::Leave::default()))]);
}
