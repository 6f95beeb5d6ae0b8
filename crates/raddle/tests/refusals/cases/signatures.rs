//! Mistakes that the attributes detect.

#![allow(unused)]

#[raddle::routine]
fn borrowing(text: &str) {}

#[raddle::routine]
fn lending() -> &'static str {
    "text"
}

#[raddle::routine]
fn any(of: impl Clone) {}

#[raddle::routine]
async fn generic<T>(of: T) {}

#[raddle::routine]
fn many(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8, j: u8, k: u8, l: u8, m: u8) {}

#[raddle::routine(nmae = "misspelt")]
fn misspelt() {}

#[raddle::routine]
async fn elsewhere(text: String) -> u8;

struct Counter;

impl Counter {
    #[raddle::routine]
    fn alone(self) {}
}

#[raddle::routines]
impl Counter {
    #[raddle::routine]
    fn count(&mut self) {}
}

#[raddle::routines]
impl Clone for Counter {
    #[raddle::routine]
    fn clone(&self) -> Self {
        Self
    }
}

fn main() {}
