//! Workers and callers in Python: those of `examples/python-worker`, unchanged.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod callers;
mod python;
#[path = "../calls/routines.rs"]
mod routines;
mod secure;
mod shutdown;
#[path = "../support/waits.rs"]
mod waits;
mod workers;

use std::path::Path;

use raddle::{WorkerPool, discovery::FileDiscovery};

use self::{
    routines::FindError,
    waits::{wait_until, within},
};

// The routines of the Python worker.

#[raddle::routine(name = "py.embed")]
async fn embed(text: String) -> Vec<f32>;

#[raddle::routine(name = "py.words")]
fn words(text: String) -> impl raddle::Stream<Item = String>;

#[raddle::routine(name = "py.ticks")]
fn ticks(seconds: f64, path: std::path::PathBuf) -> impl raddle::Stream<Item = u64>;

#[raddle::routine(name = "py.find")]
async fn find(name: String) -> Result<u32, FindError>;

#[raddle::routine(name = "py.explode")]
async fn explode(why: String);

#[raddle::routine(name = "py.sleep")]
async fn sleep(seconds: f64) -> f64;

#[raddle::routine(name = "py.block")]
async fn block(seconds: f64) -> f64;

#[raddle::routine(name = "py.echo")]
async fn echo(value: serde_json::Value) -> serde_json::Value;

#[raddle::routine(name = "py.infinity")]
async fn infinity() -> f64;

#[raddle::routine(name = "py.tenant")]
async fn tenant() -> Option<String>;

/// A pool of the workers that are published in this directory.
async fn durable(directory: &Path) -> WorkerPool {
    let discovery = FileDiscovery::new(directory).unwrap();
    WorkerPool::builder()
        .discovery(discovery)
        .start()
        .await
        .unwrap()
}

/// The files in a directory.
fn entries(directory: &Path) -> Vec<String> {
    let entries = directory
        .read_dir()
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}
