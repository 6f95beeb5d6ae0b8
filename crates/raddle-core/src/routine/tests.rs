use std::task::{Context, Poll, Waker};

use serde_json::json;

use super::*;

fn job(args: Value, kwargs: Value) -> Given<'static> {
    let spec = json!({ "target": { "routine": "r" }, "args": args, "kwargs": kwargs });
    Given::Job(Box::new(Job::new("1763000123456789012".parse().unwrap(), 1, serde_json::from_value(spec).unwrap())))
}

fn pair(given: Given<'_>) -> Result<(u32, String), String> {
    let read = || {
        let mut given = Arguments::of(given, 2)?;
        Ok((given.next("number")?, given.next("text")?))
    };
    read().map_err(|failure: Failure| {
        let fault = Fault::from(failure);
        assert!(fault.permanent);
        fault.message
    })
}

#[test]
fn arguments_come_by_position_and_by_name() {
    assert_eq!(pair(job(json!([1, "a"]), json!({}))), Ok((1, "a".into())));
    assert_eq!(pair(job(json!([1]), json!({ "text": "a" }))), Ok((1, "a".into())));
    assert_eq!(pair(job(json!([]), json!({ "text": "a", "number": 1 }))), Ok((1, "a".into())));
    let packed = Packed::new(2).argument("number", &1).argument("text", &"a").finish().unwrap();
    assert_eq!(pair(Given::Call(Encoding::MessagePack, &packed)), Ok((1, "a".into())));
    assert_eq!(pair(Given::Call(Encoding::Json, b" [ 1 , \"a\" ] ")), Ok((1, "a".into())));
}

#[test]
fn an_argument_that_is_a_vec_of_bytes_is_copied() {
    let bytes = vec![200_u8; 70_000];
    let packed = Packed::new(2).argument("first", &bytes).argument("second", &"a").finish().unwrap();
    assert_eq!(packed.len(), 1 + 5 + bytes.len() + 2);
    let mut arguments = Arguments::of(Given::Call(Encoding::MessagePack, &packed), 2).unwrap();
    assert_eq!(arguments.next::<Vec<u8>>("first"), Ok(bytes.clone()));
    assert_eq!(arguments.next::<String>("second"), Ok("a".into()));
    let Ok(Answer::Bytes(answer)) = Form::Call(Encoding::MessagePack).value(&bytes) else { panic!("another form") };
    assert_eq!(answer.len(), 5 + bytes.len());
}

#[test]
fn arguments_that_do_not_fit_are_named() {
    assert!(pair(job(json!([1]), json!({}))).unwrap_err().ends_with("it takes 2 and was given 1"));
    assert!(pair(job(json!([1]), json!({ "txt": "a" }))).unwrap_err().ends_with("'text' is missing"));
    assert!(pair(job(json!([-1, "a"]), json!({}))).unwrap_err().contains("'number': invalid value"));
    let packed = |numbers: &[i32]| {
        let all = numbers.iter().fold(Packed::new(numbers.len()), |all, number| all.argument("n", number));
        pair(Given::Call(Encoding::MessagePack, &all.finish().unwrap())).unwrap_err()
    };
    assert!(packed(&[1]).ends_with("it takes 2 and was given 1"));
    assert!(packed(&[1, 2]).contains("'text': invalid type"));
    for nonsense in [&b""[..], b"\x92", b"\x92\x01", b"\xc0", b"\x92\xff\xff\xff"] {
        pair(Given::Call(Encoding::MessagePack, nonsense)).unwrap_err();
    }
}

#[test]
fn arguments_in_json_that_do_not_fit_are_named() {
    let json = |text: &str| pair(Given::Call(Encoding::Json, text.as_bytes())).unwrap_err();
    for (text, said) in [
        ("[1]", "it takes 2 and was given 1"),
        ("[]", "it takes 2 and was given 0"),
        (r#"[1, "a", null, {"more": []}]"#, "it takes 2 and was given 4"),
        ("[1, 2]", "'text': invalid type"),
        (r#"[-1, "a"]"#, "'number': invalid value"),
        ("null", "they are not an array: invalid type: null"),
        (r#"{"number": 1, "text": "a"}"#, "they are not an array: invalid type: map"),
        (r#"[1, "a"] 3"#, "they are not an array: trailing characters"),
        (r#"[1, "a""#, "they are not an array: EOF"),
        ("", "they are not an array: EOF"),
        ("\u{0}", "they are not an array: expected value"),
    ] {
        assert!(json(text).contains(said), "{text}: {}", json(text));
    }
    let many = format!("[{}1]", "1,".repeat(1_000_000));
    assert!(json(&many).ends_with("it takes 2 and was given 1000001"));
    pair(Given::Call(Encoding::Json, b"[1, \"\xff\"]")).unwrap_err();
}

#[test]
fn arguments_are_written_in_json_by_their_types_or_as_they_are() {
    use std::net::Ipv4Addr;
    let packed = Packed::new(2).argument("place", &Ipv4Addr::LOCALHOST).argument("size", &1.5);
    let rewrite = packed.rewrite();
    assert_eq!(rewrite(&packed.clone().finish().unwrap()).unwrap(), b"[[127,0,0,1],1.5]");
    let packed = packed.rewritten_by(|packed| {
        let mut rewriting = Rewriting::of(packed, 2)?;
        rewriting.next::<Ipv4Addr>("place")?;
        rewriting.next::<f64>("size")?;
        Ok(rewriting.finish())
    });
    let rewrite = packed.rewrite();
    assert_eq!(rewrite(&packed.finish().unwrap()).unwrap(), br#"["127.0.0.1",1.5]"#);
    let nan = Packed::new(2).argument("place", &Ipv4Addr::LOCALHOST).argument("size", &f64::NAN).finish().unwrap();
    let said = rewrite(&nan).unwrap_err();
    assert!(said.starts_with("the argument 'size' cannot be written in JSON: NaN"), "{said}");
    assert_eq!(Rewriting::of(b"\x90", 0).unwrap().finish(), b"[]");
}

#[test]
fn values_come_back_as_they_were() {
    let value = (u64::MAX, f64::MIN_POSITIVE, "text".to_owned(), Some(vec![(); 3]));
    for encoding in Encoding::ALL {
        let Answer::Bytes(bytes) = Form::Call(encoding).value(&value).unwrap() else { panic!("another form") };
        assert_eq!(encoding.read(&bytes), Ok(value.clone()));
        encoding.read::<u64>(&bytes).unwrap_err();
    }
    assert_eq!(Form::Task.value(&value), Ok(Answer::Json(json!(value))));
    let unwritable = Form::Call(Encoding::Json).value(&f64::NAN);
    assert!(matches!(unwritable, Err(Failure::Unwritable(_))), "{unwritable:?}");
}

/// Some that are all there, but for a pause before each.
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

fn gathered(items: Items) -> Result<Value, Failure> {
    let mut gathering = Box::pin(gather(items));
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(all) = gathering.as_mut().poll(&mut cx) {
            return all;
        }
    }
}

#[test]
fn items_of_a_task_are_gathered() {
    let of = |form, numbers: &[u8]| gathered(items(form, Ready(numbers.to_vec(), false)));
    assert_eq!(of(Form::Task, &[]), Ok(json!([])));
    assert_eq!(of(Form::Task, &[2, 1]), Ok(json!([2, 1])));
    of(Form::Call(Encoding::Json), &[1]).expect_err("it is not what a task asks for");
}

#[test]
fn the_first_item_that_failed_is_the_end() {
    let broken = Failure::Unwritable("broken".into());
    let all = vec![Form::Task.value(&2), Err(broken.clone()), Form::Task.value(&1)];
    assert_eq!(gathered(Box::pin(Ready(all, false))), Err(broken));
}

#[test]
fn an_error_goes_into_a_fault_with_what_it_can_be_made_from_again() {
    let value = Form::Task.value(&["no", "space"]).ok();
    let fault = Fault::from(Failure::Failed { message: "full".into(), value });
    assert_eq!((fault.message.as_str(), fault.permanent, fault.value), ("full", false, Some(json!(["no", "space"]))));
}

#[test]
fn two_routines_of_one_name_are_refused() {
    let routine = |place| Routine { name: "r", place, run: Run::Plain(|_| Ok(Answer::Json(Value::Null))) };
    let clash = Routines::new([routine("a.rs:1"), routine("b.rs:2")]).unwrap_err().to_string();
    assert!(clash.contains("'r', at a.rs:1 and at b.rs:2"), "{clash}");
    assert_eq!(Routines::new([routine("a.rs:1")]).unwrap().names().collect::<Vec<_>>(), ["r"]);
}
