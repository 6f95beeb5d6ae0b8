//! Jumps of the wall clock.

use crate::within;

#[tokio::test]
async fn calls_survive_clock_jumps() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_raddle-test-clock"));
    program
        .env("RADDLE_TEST_CLOCK", directory.path().join("clock"))
        .kill_on_drop(true);
    let output = within(120, program.output()).await.unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.ends_with("ok\n"), "{stdout}{stderr}");
}
