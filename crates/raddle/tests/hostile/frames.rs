//! What is no frame, or none of ours, and what is no word at all.

use raddle_wire::{
    frame::{GREETING, MAX_BODY, MAX_HEAD},
    v1::{answer, request::What},
};

use crate::{
    Honest, Raw, Site,
    raw::{call, header, request},
    site::SECRET,
    within,
};

/// Numbers without any order, the same each time.
struct Dice(u64);

impl Dice {
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
async fn who_sends_what_is_no_frame_is_hung_up_on() {
    within(120, async {
        let site = Site::plain().await;
        let honest = Honest::begin(&site).await;
        let nonsense = [
            // Larger than any.
            header(MAX_HEAD as u32 + 1, 0, 0),
            header(1, 0, MAX_BODY as u32 + 1),
            header(u32::MAX, u32::MAX, u32::MAX),
            // More of a body of which nobody has heard, and more than was said.
            header(0, 1, 1),
            header(1, 2, 1),
            // A head that is none, with something that is nobody's business.
            [
                header(4 + SECRET.len() as u32, 0, 0),
                vec![0xff; 4],
                SECRET.into(),
            ]
            .concat(),
        ];
        for (count, bytes) in (1..).zip(&nonsense) {
            let mut raw = Raw::link(site.address()).unwrap();
            raw.send(bytes).unwrap();
            let said = tokio::task::spawn_blocking(|| raw.hangs_up())
                .await
                .unwrap();
            assert!(said.is_empty(), "{said:?}");
            site.tells(&["malformed"], count).await;
        }
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_none_is_refused_and_others_of_the_link_go_on() {
    within(120, async {
        let site = Site::plain().await;
        let honest = Honest::begin(&site).await;
        let mut raw = Raw::link(site.address()).unwrap();
        let answered = tokio::task::spawn_blocking(move || {
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
        let answers = answered.await.unwrap();
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
        site.tells(&["unknown_routine"], 1).await;
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_come_to_nothing() {
    within(120, async {
        let mut dice = Dice(0x5eed);
        for site in [Site::plain().await, Site::secure(&[]).await] {
            let honest = Honest::begin(&site).await;
            for round in 0..60 {
                let mut raw = Raw::connect(site.address());
                // As they come, after a greeting, and in frames as they are to be.
                let (size, greeting) = (
                    dice.bytes(2),
                    if round % 3 == 0 { &[][..] } else { &GREETING },
                );
                let mut bytes = dice.bytes(1 + usize::from(size[0]) * 64);
                // Whoever begins as a link does has to go on like one.
                bytes[0] = bytes[0].saturating_add(u8::from(bytes[0] == GREETING[0]));
                let head = if round % 3 == 2 {
                    header(bytes.len() as u32, 0, 0)
                } else {
                    Vec::new()
                };
                // It may be hung up on in the middle.
                let _ = raw.send(&[greeting, &head, &bytes].concat());
                let _ = raw.0.shutdown(std::net::Shutdown::Write);
                tokio::task::spawn_blocking(|| raw.hangs_up())
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
            crate::until("all are counted", async || {
                site.refused(&reasons).await >= 50
            })
            .await;
            assert!(
                site.log().contains("somebody was refused"),
                "{}",
                site.log()
            );
            honest.was_served().await;
            site.ends().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_endless_credit_is_hung_up_on() {
    within(120, async {
        let site = Site::plain().await;
        let honest = Honest::begin(&site).await;
        let mut raw = Raw::link(site.address()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory
            .path()
            .join("dropped")
            .to_str()
            .unwrap()
            .to_owned();
        let arguments = [&[0x91, 0xd9, path.len() as u8][..], path.as_bytes()].concat();
        let said = tokio::task::spawn_blocking(move || {
            raw.send(&call(1, "endless", &arguments)).unwrap();
            raw.answer();
            for _ in 0..100 {
                let _ = raw.send(&request(1, What::Credit(u32::MAX), &[]));
            }
            raw.hangs_up().len()
        });
        assert!(said.await.unwrap() < 64 << 20);
        site.tells(&["malformed"], 1).await;
        crate::until("the stream is ended", async || {
            directory.path().join("dropped").exists()
        })
        .await;
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}
