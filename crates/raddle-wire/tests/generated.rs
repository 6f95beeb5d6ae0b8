//! Checks that `generated/raddle.v1.rs` matches the `.proto`. The file is checked in, so that users
//! do not build a protobuf compiler.
//!
//! After a change of the `.proto`, run `UPDATE_GENERATED=1 cargo test -p raddle-wire --test
//! generated`.

use std::{env, fs, path::Path};

/// Type number of `bytes` in descriptors.
const BYTES: i32 = 12;

#[test]
fn the_generated_code_matches_the_proto() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut parsed = protox::compile(
        [root.join("proto/raddle/v1/worker.proto")],
        [root.join("proto")],
    )
    .expect("the .proto compiles");
    // Each call carries its route, which a worker seldom reads. With the type `bytes`, the route is
    // encoded once, and decoded only where it is needed. The wire format is the same.
    let messages = parsed
        .file
        .iter_mut()
        .flat_map(|file| &mut file.message_type);
    let fields = messages
        .filter(|message| message.name() == "Call")
        .flat_map(|call| &mut call.field);
    for route in fields.filter(|field| field.name() == "route") {
        (route.r#type, route.type_name) = (Some(BYTES), None);
    }
    let out = tempfile::tempdir().expect("a temporary directory can be made");
    // Payloads are passed on as `Bytes`, without a copy.
    tonic_prost_build::configure()
        .bytes(".")
        .out_dir(out.path())
        .compile_fds(parsed)
        .expect("code can be generated");
    let expected = fs::read_to_string(out.path().join("raddle.v1.rs"))
        .expect("the generator writes this file");

    let file = root.join("generated/raddle.v1.rs");
    if env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(&file, &expected).expect("the file can be written");
    }
    let found = fs::read_to_string(&file).expect("the file is checked in");
    assert!(
        found == expected,
        "generated/raddle.v1.rs is out of date: see the top of this test"
    );
}
