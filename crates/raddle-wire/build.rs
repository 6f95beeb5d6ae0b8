//! Makes Rust of the `.proto`, without a compiler from elsewhere.

use std::error::Error;

/// The number of the type `bytes` in descriptors.
const BYTES: i32 = 12;

fn main() -> Result<(), Box<dyn Error>> {
    let (file, folder) = ("proto/raddle/v1/worker.proto", "proto");
    println!("cargo:rerun-if-changed={file}");
    let mut parsed = protox::compile([file], [folder])?;
    // Where a call's own calls go is sent with each call, and seldom read: it is written once, and read by whoever needs it. As bytes it
    // looks the same on the wire.
    let messages = parsed.file.iter_mut().flat_map(|file| &mut file.message_type);
    let fields = messages.filter(|message| message.name() == "Call").flat_map(|call| &mut call.field);
    for route in fields.filter(|field| field.name() == "route") {
        (route.r#type, route.type_name) = (Some(BYTES), None);
    }
    // Payloads are handed on as they were read, not copied once more.
    tonic_prost_build::configure().bytes(".").compile_fds(parsed)?;
    Ok(())
}
