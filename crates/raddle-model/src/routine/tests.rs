use std::task::{Context, Poll, Waker};

use serde_json::json;

use super::*;

fn job(args: Value, kwargs: Value) -> RoutineInput<'static> {
    let spec = json!({ "target": { "routine": "r" }, "args": args, "kwargs": kwargs });
    RoutineInput::Job(Box::new(AttemptInput::new(
        "1763000123456789012".parse().unwrap(),
        1,
        serde_json::from_value(spec).unwrap(),
    )))
}

fn pair(given: RoutineInput<'_>) -> Result<(u32, String), String> {
    let read = || {
        let mut given = Arguments::decode(given, 2)?;
        Ok((given.next("number")?, given.next("text")?))
    };
    read().map_err(|failure: RoutineFailure| {
        let error = ReportedError::from(failure);
        assert!(error.permanent);
        error.message
    })
}

#[test]
fn reads_arguments_by_position_and_by_name() {
    assert_eq!(pair(job(json!([1, "a"]), json!({}))), Ok((1, "a".into())));
    assert_eq!(
        pair(job(json!([1]), json!({ "text": "a" }))),
        Ok((1, "a".into()))
    );
    assert_eq!(
        pair(job(json!([]), json!({ "text": "a", "number": 1 }))),
        Ok((1, "a".into()))
    );
    let packed = EncodedArgs::new(2)
        .argument("number", &1)
        .argument("text", &"a")
        .finish()
        .unwrap();
    assert_eq!(
        pair(RoutineInput::Call(Encoding::MessagePack, &packed)),
        Ok((1, "a".into()))
    );
    assert_eq!(
        pair(RoutineInput::Call(Encoding::Json, b" [ 1 , \"a\" ] ")),
        Ok((1, "a".into()))
    );
}

#[test]
fn byte_vector_arguments_are_copied() {
    let bytes = vec![200_u8; 70_000];
    let packed = EncodedArgs::new(2)
        .argument("first", &bytes)
        .argument("second", &"a")
        .finish()
        .unwrap();
    assert_eq!(packed.len(), 1 + 5 + bytes.len() + 2);
    let mut arguments =
        Arguments::decode(RoutineInput::Call(Encoding::MessagePack, &packed), 2).unwrap();
    assert_eq!(arguments.next::<Vec<u8>>("first"), Ok(bytes.clone()));
    assert_eq!(arguments.next::<String>("second"), Ok("a".into()));
    let Ok(RoutineOutput::Bytes(answer)) = OutputForm::Call(Encoding::MessagePack).value(&bytes)
    else {
        panic!("another form")
    };
    assert_eq!(answer.len(), 5 + bytes.len());
}

#[test]
fn errors_name_the_mismatched_argument() {
    assert!(
        pair(job(json!([1]), json!({})))
            .unwrap_err()
            .ends_with("it takes 2 and was given 1")
    );
    assert!(
        pair(job(json!([1]), json!({ "txt": "a" })))
            .unwrap_err()
            .ends_with("'text' is missing")
    );
    assert!(
        pair(job(json!([-1, "a"]), json!({})))
            .unwrap_err()
            .contains("'number': invalid value")
    );
    let packed = |numbers: &[i32]| {
        let all = numbers
            .iter()
            .fold(EncodedArgs::new(numbers.len()), |all, number| {
                all.argument("n", number)
            });
        pair(RoutineInput::Call(
            Encoding::MessagePack,
            &all.finish().unwrap(),
        ))
        .unwrap_err()
    };
    assert!(packed(&[1]).ends_with("it takes 2 and was given 1"));
    assert!(packed(&[1, 2]).contains("'text': invalid type"));
    for nonsense in [&b""[..], b"\x92", b"\x92\x01", b"\xc0", b"\x92\xff\xff\xff"] {
        pair(RoutineInput::Call(Encoding::MessagePack, nonsense)).unwrap_err();
    }
}

#[test]
fn errors_name_the_mismatched_json_argument() {
    let json = |text: &str| pair(RoutineInput::Call(Encoding::Json, text.as_bytes())).unwrap_err();
    for (text, message) in [
        ("[1]", "it takes 2 and was given 1"),
        ("[]", "it takes 2 and was given 0"),
        (
            r#"[1, "a", null, {"more": []}]"#,
            "it takes 2 and was given 4",
        ),
        ("[1, 2]", "'text': invalid type"),
        (r#"[-1, "a"]"#, "'number': invalid value"),
        ("null", "they are not an array: invalid type: null"),
        (
            r#"{"number": 1, "text": "a"}"#,
            "they are not an array: invalid type: map",
        ),
        (
            r#"[1, "a"] 3"#,
            "they are not an array: trailing characters",
        ),
        (r#"[1, "a""#, "they are not an array: EOF"),
        ("", "they are not an array: EOF"),
        ("\u{0}", "they are not an array: expected value"),
    ] {
        assert!(json(text).contains(message), "{text}: {}", json(text));
    }
    let many = format!("[{}1]", "1,".repeat(1_000_000));
    assert!(json(&many).ends_with("it takes 2 and was given 1000001"));
    pair(RoutineInput::Call(Encoding::Json, b"[1, \"\xff\"]")).unwrap_err();
}

#[test]
fn transcodes_arguments_with_and_without_types() {
    use std::net::Ipv4Addr;
    let packed = EncodedArgs::new(2)
        .argument("place", &Ipv4Addr::LOCALHOST)
        .argument("size", &1.5);
    let rewrite = packed.rewrite();
    assert_eq!(
        rewrite(&packed.clone().finish().unwrap()).unwrap(),
        b"[[127,0,0,1],1.5]"
    );
    let packed = packed.rewritten_by(|packed| {
        let mut rewriting = TranscodedArgs::new(packed, 2)?;
        rewriting.next::<Ipv4Addr>("place")?;
        rewriting.next::<f64>("size")?;
        Ok(rewriting.finish())
    });
    let rewrite = packed.rewrite();
    assert_eq!(
        rewrite(&packed.finish().unwrap()).unwrap(),
        br#"["127.0.0.1",1.5]"#
    );
    let nan = EncodedArgs::new(2)
        .argument("place", &Ipv4Addr::LOCALHOST)
        .argument("size", &f64::NAN)
        .finish()
        .unwrap();
    let message = rewrite(&nan).unwrap_err();
    assert!(
        message.starts_with("the argument 'size' cannot be written in JSON: NaN"),
        "{message}"
    );
    assert_eq!(TranscodedArgs::new(b"\x90", 0).unwrap().finish(), b"[]");
}

#[test]
fn values_round_trip() {
    let value = (
        u64::MAX,
        f64::MIN_POSITIVE,
        "text".to_owned(),
        Some(vec![(); 3]),
    );
    for encoding in Encoding::ALL {
        let RoutineOutput::Bytes(bytes) = OutputForm::Call(encoding).value(&value).unwrap() else {
            panic!("another form")
        };
        assert_eq!(encoding.read(&bytes), Ok(value.clone()));
        encoding.read::<u64>(&bytes).unwrap_err();
    }
    assert_eq!(
        OutputForm::Task.value(&value),
        Ok(RoutineOutput::Json(json!(value)))
    );
    let unwritable = OutputForm::Call(Encoding::Json).value(&f64::NAN);
    assert!(
        matches!(unwritable, Err(RoutineFailure::Unwritable(_))),
        "{unwritable:?}"
    );
}

/// A stream of ready items that returns `Pending` once before each.
struct Ready<T>(Vec<T>, bool);

impl<T: Unpin> Stream for Ready<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.1 = !self.1;
        if self.1 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready((!self.0.is_empty()).then(|| self.0.remove(0)))
    }
}

fn run_gather(items: RoutineStream) -> Result<Value, RoutineFailure> {
    let mut gathering = Box::pin(gather(items));
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(all) = gathering.as_mut().poll(&mut cx) {
            return all;
        }
    }
}

#[test]
fn gathers_the_items_of_a_task() {
    let of = |form, numbers: &[u8]| run_gather(items(form, Ready(numbers.to_vec(), false)));
    assert_eq!(of(OutputForm::Task, &[]), Ok(json!([])));
    assert_eq!(of(OutputForm::Task, &[2, 1]), Ok(json!([2, 1])));
    of(OutputForm::Call(Encoding::Json), &[1]).expect_err("it is not what a task asks for");
}

#[test]
fn the_first_failed_item_ends_the_stream() {
    let broken = RoutineFailure::Unwritable("broken".into());
    let all = vec![
        OutputForm::Task.value(&2),
        Err(broken.clone()),
        OutputForm::Task.value(&1),
    ];
    assert_eq!(run_gather(Box::pin(Ready(all, false))), Err(broken));
}

#[test]
fn reported_errors_keep_the_serialized_value() {
    let value = OutputForm::Task.value(&["no", "space"]).ok();
    let error = ReportedError::from(RoutineFailure::Failed {
        message: "full".into(),
        value,
    });
    assert_eq!(
        (error.message.as_str(), error.permanent, error.value),
        ("full", false, Some(json!(["no", "space"])))
    );
}

#[test]
fn refuses_duplicate_routine_names() {
    let routine = |place| Routine {
        name: "r",
        place,
        isolation: crate::spec::Isolation::Shared,
        run: RoutineFn::Plain(|_| Ok(RoutineOutput::Json(Value::Null))),
    };
    let clash = Routines::new([routine("a.rs:1"), routine("b.rs:2")])
        .unwrap_err()
        .to_string();
    assert!(clash.contains("'r', at a.rs:1 and at b.rs:2"), "{clash}");
    assert_eq!(
        Routines::new([routine("a.rs:1")])
            .unwrap()
            .names()
            .collect::<Vec<_>>(),
        ["r"]
    );
}
