//! A program that gave two routines the same name.

#[raddle::routine(name = "twice")]
fn first() {}

#[raddle::routine(name = "twice")]
fn second() {}

#[raddle::main]
async fn main() {
    println!("never reached");
}
