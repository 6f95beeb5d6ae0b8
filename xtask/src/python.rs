//! The tests of the Python package, with the types of its public functions.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{install, step};

/// Packages of the tests.
const REQUIREMENTS: &str = "python/tests/requirements.txt";
/// The environment that the tests run in.
const ENVIRONMENT: &str = "target/python";

/// Installs the packages, and returns the command that runs the tests with a binary.
pub(crate) fn test_command(program: &Path) -> Option<Command> {
    let python = environment()?;
    let mut tests = Command::new(python);
    tests
        .args([
            "-m",
            "pytest",
            "--quiet",
            "--config-file",
            "python/pyproject.toml",
            "python/tests",
        ])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RADDLE_BINARY", program);
    Some(tests)
}

/// The interpreter of a virtual environment with the packages of the tests.
fn environment() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let directory = root.join(ENVIRONMENT);
    let (python, installed) = (
        directory.join("bin/python"),
        directory.join("installed.txt"),
    );
    let wanted = fs::read(root.join(REQUIREMENTS)).ok()?;
    if fs::read(&installed).is_ok_and(|there| there == wanted) {
        return Some(python);
    }
    let _ = fs::remove_dir_all(&directory);
    // Debian's Python creates environments only with another package; this tool needs none.
    let tools = root.join("target/python-tools");
    let pip = [
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ];
    let mut tool = Command::new("python3");
    tool.args(pip)
        .args([
            "--root-user-action=ignore",
            "virtualenv==20.31.2",
            "--upgrade",
            "--target",
        ])
        .arg(&tools);
    let mut create = Command::new("python3");
    create
        .env("PYTHONPATH", &tools)
        .args(["-m", "virtualenv", "--quiet", "--no-download"])
        .arg(&directory);
    let mut packages = Command::new(&python);
    packages
        .args(pip)
        .args(["--only-binary=:all:", "--requirement", REQUIREMENTS]);
    let is_installed = step::run("a tool for environments of Python", tool).ok
        && step::run("an environment of Python", create).ok
        && step::run("packages of the tests in Python", packages).ok
        // Written last, so that its presence means that the installation is complete.
        && fs::write(&installed, wanted).is_ok();
    if !is_installed {
        eprintln!(
            "xtask: the packages of {REQUIREMENTS} cannot be installed: the tests of the Python package need PyPI"
        );
    }
    is_installed.then_some(python)
}

/// Whether the tests may be left out: without PyPI, and not in continuous integration.
pub(crate) fn may_skip() -> bool {
    !install::is_ci()
}
