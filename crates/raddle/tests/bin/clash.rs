//! A program with two routines of the same name.

#[raddle::routine(name = "twice")]
fn first() {}

#[raddle::routine(name = "twice")]
fn second() {}

#[raddle::main]
async fn main() {
    println!("never reached");
}
