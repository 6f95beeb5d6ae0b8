//! Mistakes that the compiler detects: types that cannot cross to another process.

#![allow(unused)]

struct Local;
struct Silent;

#[raddle::routine]
fn takes(number: u8, local: Local) {}

#[raddle::routine]
async fn gives() -> Option<Local> {
    None
}

#[raddle::routine]
fn streams() -> impl raddle::Stream<Item = Local> {
    futures_util::stream::empty()
}

#[raddle::routine]
fn fails() -> Result<u8, Silent> {
    Err(Silent)
}

struct Counter;

#[raddle::routines]
impl Counter {
    #[raddle::routine]
    fn count(self) -> u8 {
        0
    }
}

fn main() {}
