//! `raddle pool serve`, of a program that has nothing to serve. Programs with routines are
//! tested in `crates/raddle/tests/serve`.

use crate::world::World;

#[test]
fn a_program_without_routines_says_so() {
    let world = World::new();
    let ran = world
        .raddle(["pool", "serve"])
        .code(2)
        .stderr_contains("has no routines")
        .stderr_contains("myapp pool serve");
    assert_eq!(ran.text(), "");
}
