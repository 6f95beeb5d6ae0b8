//! The program of the workers in the tests of calls.
//!
//! `callee hold N` runs a pool of N workers until it is killed, and prints their pids. `callee
//! squat NAME` listens on the abstract socket of a worker; `callee knock NAME` connects to one, and
//! prints whether it was accepted.

#[path = "../calls/routines.rs"]
mod routines;

use std::{
    io::Read,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
};

use raddle::WorkerPool;

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (command, argument) = (
        arguments.next().unwrap_or_default(),
        arguments.next().unwrap_or_default(),
    );
    match command.as_str() {
        "squat" => {
            let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(argument)?)?;
            println!("ready");
            std::future::pending().await
        }
        "knock" => {
            let mut worker = UnixStream::connect_addr(&SocketAddr::from_abstract_name(argument)?)?;
            let is_closed = matches!(worker.read(&mut [0; 64]), Ok(0) | Err(_));
            println!("{}", if is_closed { "refused" } else { "accepted" });
            Ok(())
        }
        _ => {
            let pool = WorkerPool::builder()
                .size(argument.parse().unwrap_or(1))
                .start()
                .await?;
            for worker in pool.workers() {
                println!("{}", worker.pid);
            }
            println!("ready");
            std::future::pending().await
        }
    }
}
