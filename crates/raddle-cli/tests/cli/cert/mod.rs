//! `raddle cert`.

mod files;
mod handshakes;
mod show;

use std::path::PathBuf;

use crate::world::World;

/// A world with a CA in the directory `certs`.
fn world_with_ca() -> World {
    let world = World::new();
    world.raddle(["cert", "ca", "--out", "certs"]).ok();
    world
}

/// Issues a certificate, and returns where it and its key are.
fn issue(world: &World, args: &[&str]) -> (PathBuf, PathBuf) {
    let ran = world
        .raddle([&["cert", "issue", "--ca", "certs"], args].concat())
        .ok();
    let lines = ran.lines();
    (world.path().join(lines[0]), world.path().join(lines[1]))
}
