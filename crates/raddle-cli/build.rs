//! Has the linker put what a run calls side by side in the program: `order.ld`, which `cargo xtask order` writes.

use std::env;

/// Set, to anything, by who links with something that the flags do not tell of: `mold -run`, or a compiler that calls another linker by itself.
const WITHOUT: &str = "RADDLE_UNORDERED";

fn main() {
    println!("cargo::rerun-if-changed=order.ld");
    println!("cargo::rerun-if-env-changed={WITHOUT}");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    // Where `cargo xtask order` works, and Rust brings the linker.
    let target = [("OS", "linux"), ("ENV", "gnu"), ("ARCH", "x86_64")];
    let is_this_target = target.iter().all(|(part, value)| is(&format!("CARGO_CFG_TARGET_{part}"), value));
    // With other flags, functions have other names, and another linker may not read it. Who has chosen either does without.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let is_ours = flags.contains("symbol-mangling-version=v0") && !flags.contains("link");
    let is_chosen = ["RUSTC_LINKER", WITHOUT].iter().any(|name| env::var_os(name).is_some());
    if is("PROFILE", "release")
        && is_this_target
        && is_ours
        && !is_chosen
        && let Ok(folder) = env::var("CARGO_MANIFEST_DIR")
    {
        println!("cargo::rustc-link-arg-bin=raddle=-T{folder}/order.ld");
    }
}
