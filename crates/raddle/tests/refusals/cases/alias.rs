//! An error is only an error where it can be seen that there may be one.

#![allow(unused)]

type Outcome = Result<u8, String>;

#[raddle::routine]
fn hidden() -> Outcome {
    Ok(1)
}

fn main() {}
