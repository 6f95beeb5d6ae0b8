//! Malformed frames, invalid calls and random bytes.

use raddle_wire::{
    frame::{GREETING, MAX_BODY, MAX_HEAD},
    v1::{answer, request::What},
};

use crate::{
    HonestCaller, Raw, TargetServer,
    raw::{call, header, request},
    target::SECRET,
    within,
};

/// A random generator with a fixed seed.
struct Rng(u64);

impl Rng {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 as u8
        };
        (0..count).map(|_| next()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnects_a_peer_that_sends_malformed_frames() {
    within(120, async {
        let target = TargetServer::plain().await;
        let honest = HonestCaller::begin(&target).await;
        let malformed = [
            // Larger than the limits.
            header(MAX_HEAD as u32 + 1, 0, 0),
            header(1, 0, MAX_BODY as u32 + 1),
            header(u32::MAX, u32::MAX, u32::MAX),
            // A continuation of an unknown body, and more bytes than announced.
            header(0, 1, 1),
            header(1, 2, 1),
            // An invalid head that contains a secret.
            [
                header(4 + SECRET.len() as u32, 0, 0),
                vec![0xff; 4],
                SECRET.into(),
            ]
            .concat(),
        ];
        for (count, bytes) in (1..).zip(&malformed) {
            let mut raw = Raw::link(target.address()).unwrap();
            raw.send(bytes).unwrap();
            let reply = tokio::task::spawn_blocking(|| raw.read_until_closed())
                .await
                .unwrap();
            assert!(reply.is_empty(), "{reply:?}");
            target.wait_until_refused(&["malformed"], count).await;
        }
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_an_invalid_call_and_keeps_the_link() {
    within(120, async {
        let target = TargetServer::plain().await;
        let honest = HonestCaller::begin(&target).await;
        let mut raw = Raw::link(target.address()).unwrap();
        let answers = tokio::task::spawn_blocking(move || {
            let mut answers = Vec::new();
            for (id, routine, arguments) in [
                (1, "add", SECRET.as_bytes()),
                (2, "no\u{1b}[2Jsuch\n", b"\x90"),
                (3, "add", b"\x92\x01\x02"),
            ] {
                raw.send(&call(id, routine, arguments)).unwrap();
                answers.push(raw.answer());
            }
            answers.push(raw.answer());
            answers
        });
        let answers = answers.await.unwrap();
        assert!(
            matches!(&answers[0], answer::What::Refusal(_)),
            "{answers:?}"
        );
        assert!(
            matches!(&answers[1], answer::What::Refusal(_)),
            "{answers:?}"
        );
        assert!(matches!(&answers[2], answer::What::Ack(_)), "{answers:?}");
        assert!(
            matches!(&answers[3], answer::What::Result(_)),
            "{answers:?}"
        );
        target.wait_until_refused(&["unknown_routine"], 1).await;
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn survives_random_bytes() {
    within(120, async {
        let mut rng = Rng(0x5eed);
        for target in [TargetServer::plain().await, TargetServer::secure(&[]).await] {
            let honest = HonestCaller::begin(&target).await;
            for round in 0..60 {
                let mut raw = Raw::connect(target.address());
                // Plain, after a greeting, and in a valid frame header.
                let (size, greeting) = (
                    rng.bytes(2),
                    if round % 3 == 0 { &[][..] } else { &GREETING },
                );
                let mut bytes = rng.bytes(1 + usize::from(size[0]) * 64);
                // Bytes that begin like a greeting would have to continue like one.
                bytes[0] = bytes[0].saturating_add(u8::from(bytes[0] == GREETING[0]));
                let head = if round % 3 == 2 {
                    header(bytes.len() as u32, 0, 0)
                } else {
                    Vec::new()
                };
                // The worker may disconnect during the write.
                let _ = raw.send(&[greeting, &head, &bytes].concat());
                let _ = raw.0.shutdown(std::net::Shutdown::Write);
                tokio::task::spawn_blocking(|| raw.read_until_closed())
                    .await
                    .unwrap();
            }
            let reasons = [
                "protocol",
                "malformed",
                "not_tls",
                "hung_up",
                "other",
                "version",
            ];
            crate::wait_until("all refusals are counted", async || {
                target.refused(&reasons).await >= 50
            })
            .await;
            assert!(target.log().contains("refused: "), "{}", target.log());
            honest.assert_served().await;
            target.assert_healthy_and_stop().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnects_a_peer_that_grants_excessive_credit() {
    within(120, async {
        let target = TargetServer::plain().await;
        let honest = HonestCaller::begin(&target).await;
        let mut raw = Raw::link(target.address()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory
            .path()
            .join("dropped")
            .to_str()
            .unwrap()
            .to_owned();
        let arguments = [&[0x91, 0xd9, path.len() as u8][..], path.as_bytes()].concat();
        let reply = tokio::task::spawn_blocking(move || {
            raw.send(&call(1, "endless", &arguments)).unwrap();
            raw.answer();
            for _ in 0..100 {
                let _ = raw.send(&request(1, What::Credit(u32::MAX), &[]));
            }
            raw.read_until_closed().len()
        });
        assert!(reply.await.unwrap() < 64 << 20);
        target.wait_until_refused(&["malformed"], 1).await;
        crate::wait_until("the stream is ended", async || {
            directory.path().join("dropped").exists()
        })
        .await;
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}
