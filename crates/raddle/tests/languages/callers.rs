//! A Python caller of Rust workers.

use std::process::Output;

use raddle::{WorkerPool, pool::worker::LocalWorker};

use crate::{python::Python, wait_until, within};

const CALLEE: &str = env!("CARGO_BIN_EXE_raddle-test-callee");

/// Standard output, standard error and exit code.
fn output_parts(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_in_python_calls_rust_routines() {
    within(120, async {
        let python = Python::new().await;
        let pool = WorkerPool::builder()
            .size(1)
            .worker(|tags: &_| LocalWorker::new(tags).program(CALLEE));
        let pool = pool.start().await.unwrap();
        // An abstract socket.
        let address = pool.workers()[0].address.clone();
        for (call, results) in [
            (
                &["add", "18446744073709551614", "1"][..],
                "18446744073709551615\n",
            ),
            (
                &["flip", r#"{"a": {"x": 1, "y": 2.5}}"#],
                "[{\"x\": 2.5, \"y\": 1.0}]\n",
            ),
            (&["count", "3"], "0\n1\n2\n"),
            (&["count", "1000000", "--first", "2"], "0\n1\n"),
            (
                &[
                    "surroundings",
                    "--context",
                    "tenant=\"acme\"",
                    "--timeout",
                    "20",
                ],
                "[\"acme\", null, true]\n",
            ),
        ] {
            let output = python.call(&[&[address.as_str()], call].concat()).await;
            assert_eq!(
                output_parts(&output),
                (results.to_owned(), String::new(), Some(0))
            );
        }
        for (call, expected, code) in [
            (
                &["find", "\"that\""][..],
                "FAILED: that is missing\n{\"Missing\": {\"missing\": \"that\"}}\n",
                1,
            ),
            (&["explode", "\"fun\""], "PANICKED: exploded for fun\n", 1),
            (&["rest", "60000", "--timeout", "0.2"], "TIMED_OUT: \n", 1),
            (
                &["add", "1"],
                "INVALID_ARGUMENT: the arguments do not fit: it takes 2 and was given 1\n",
                2,
            ),
            (
                &["no-such"],
                "NOT_FOUND: the worker has no routine 'no-such'\n",
                2,
            ),
        ] {
            let output = python.call(&[&[address.as_str()], call].concat()).await;
            assert_eq!(
                output_parts(&output),
                (String::new(), expected.to_owned(), Some(code))
            );
        }
        // A reader that stops ends an endless stream.
        let dropped = python.file("dropped");
        let path = serde_json::to_string(&dropped).unwrap();
        let output = python
            .call(&[&address, "endless", &path, "--first", "1"])
            .await;
        assert_eq!(
            output_parts(&output),
            ("0\n".to_owned(), String::new(), Some(0))
        );
        wait_until("the destructor runs", async || dropped.exists()).await;
        assert_eq!(pool.workers().len(), 1);
    })
    .await;
}
