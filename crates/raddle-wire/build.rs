//! Makes Rust of the `.proto`, without a compiler from elsewhere.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let (file, folder) = ("proto/raddle/v1/worker.proto", "proto");
    println!("cargo:rerun-if-changed={file}");
    let parsed = protox::compile([file], [folder])?;
    // Payloads are handed on as they were read, not copied once more.
    tonic_prost_build::configure().bytes(".").compile_fds(parsed)?;
    Ok(())
}
