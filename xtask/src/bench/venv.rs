//! Python environments with packages from PyPI, for rivals.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Creates a virtual environment with these packages. Returns its Python.
pub(crate) fn install(directory: &Path, packages: &[&str]) -> PathBuf {
    let run = |program: &Path, args: &[&str]| {
        let status = Command::new(program)
            .args(args)
            .stdout(Stdio::null())
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "{} {args:?}",
            program.display()
        );
    };
    let venv = directory.join("venv");
    run(
        Path::new("python3"),
        &["-m", "venv", &venv.to_string_lossy()],
    );
    let python = venv.join("bin/python");
    run(
        &python,
        &[&["-m", "pip", "install", "--quiet"], packages].concat(),
    );
    python
}
