use serde_json::json;

use super::*;

fn job(args: Value, kwargs: Value) -> Job {
    let spec = json!({ "target": { "routine": "r" }, "args": args, "kwargs": kwargs });
    Job::new("1763000123456789012".parse().unwrap(), 1, serde_json::from_value(spec).unwrap())
}

fn pair(args: Value, kwargs: Value) -> Result<(u32, String), String> {
    let read = || {
        let mut given = Arguments::of(job(args, kwargs), 2)?;
        Ok((given.next("number")?, given.next("text")?))
    };
    read().map_err(|fault: Fault| {
        assert!(fault.permanent);
        fault.message
    })
}

#[test]
fn arguments_come_by_position_and_by_name() {
    assert_eq!(pair(json!([1, "a"]), json!({})), Ok((1, "a".into())));
    assert_eq!(pair(json!([1]), json!({ "text": "a" })), Ok((1, "a".into())));
    assert_eq!(pair(json!([]), json!({ "text": "a", "number": 1 })), Ok((1, "a".into())));
}

#[test]
fn arguments_that_do_not_fit_are_named() {
    assert!(pair(json!([1]), json!({})).unwrap_err().ends_with("it takes 2 and was given 1"));
    assert!(pair(json!([1]), json!({ "txt": "a" })).unwrap_err().ends_with("'text' is missing"));
    assert!(pair(json!([-1, "a"]), json!({})).unwrap_err().contains("'number': invalid value"));
}

#[test]
fn two_routines_of_one_name_are_refused() {
    let routine = |place| Routine { name: "r", place, run: Run::Plain(|_| Ok(Value::Null)) };
    let clash = Routines::new([routine("a.rs:1"), routine("b.rs:2")]).unwrap_err().to_string();
    assert!(clash.contains("'r', at a.rs:1 and at b.rs:2"), "{clash}");
    assert_eq!(Routines::new([routine("a.rs:1")]).unwrap().names().collect::<Vec<_>>(), ["r"]);
}
