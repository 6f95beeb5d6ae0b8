//! A worker's threads pass a routine from one to the other.

#![allow(unused)]

#[raddle::routine]
async fn stays() {
    let mine = std::rc::Rc::new(1);
    tokio::task::yield_now().await;
    drop(mine);
}

fn main() {}
