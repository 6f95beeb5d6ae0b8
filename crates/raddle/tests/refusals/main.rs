//! What cannot be a routine does not compile, and the compiler says why, at the place where it stands.
//!
//! Each case is given to the compiler with the libraries that this test was built with: to have Cargo build them anew for that would take
//! minutes. `BLESS=1` writes down what the compiler says now.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const CASES: &str = "tests/refusals/cases";

/// Where libraries are that were built for this test, and for the compiler itself: macros are among those.
fn directories() -> [PathBuf; 2] {
    let test_deps = env::current_exe()
        .expect("the build is where it was")
        .parent()
        .expect("the build is where it was")
        .to_owned();
    let profile = test_deps
        .parent()
        .expect("the build is where it was")
        .file_name()
        .expect("the build is where it was");
    // Each target has such a mark, and the directory of all of them.
    let target = test_deps
        .ancestors()
        .filter(|directory| directory.join("CACHEDIR.TAG").exists())
        .last()
        .expect("the build is where it was");
    [test_deps.clone(), target.join(profile).join("deps")]
}

/// The library of this name that was built last before this test was: the one that it was built with. Others may have come since.
fn library(directory: &Path, name: &str) -> PathBuf {
    let modified = |path: &Path| {
        path.metadata()
            .and_then(|found| found.modified())
            .expect("the build is where it was")
    };
    let test_built = modified(&env::current_exe().expect("the build is where it was"));
    let begins = format!("lib{name}-");
    let found = fs::read_dir(directory)
        .expect("the build is where it was")
        .map(|entry| entry.expect("the build is where it was").path());
    let libraries = found.filter(|path| {
        let file = path
            .file_name()
            .expect("the build is where it was")
            .to_string_lossy();
        file.starts_with(&begins) && file.ends_with(".rlib") && modified(path) <= test_built
    });
    libraries
        .max_by_key(|path| modified(path))
        .expect("it was built for this test")
}

/// What the compiler says to a case.
fn compiler_errors(case: &Path) -> String {
    let [test_deps, host_deps] = directories();
    let out = tempfile::tempdir().expect("the build is where it was");
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let mut command = Command::new(compiler);
    // Types with long names are written whole, and not to a file.
    command.args([
        "--edition",
        "2024",
        "--emit",
        "metadata",
        "--color",
        "never",
        "--verbose",
    ]);
    command.arg("--out-dir").arg(out.path());
    for directory in [&test_deps, &host_deps] {
        command
            .arg("-L")
            .arg(format!("dependency={}", directory.display()));
    }
    for name in ["raddle", "futures_util", "tokio"] {
        command
            .arg("--extern")
            .arg(format!("{name}={}", library(&test_deps, name).display()));
    }
    let output = command
        .arg(case)
        .output()
        .expect("the build is where it was");
    assert!(!output.status.success(), "{} compiles", case.display());
    // How many errors there were, and where to read more, is nothing of ours.
    let stderr = String::from_utf8(output.stderr).expect("the build is where it was");
    let ends = [
        "error: aborting due to",
        "error: could not compile",
        "For more information",
        "Some errors have",
    ];
    // How much of a type's name is written depends on what else there is of that name.
    let stderr = stderr
        .replace("std::option::", "")
        .replace("std::result::", "");
    stderr
        .lines()
        .filter(|line| !ends.iter().any(|end| line.starts_with(end)))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn invalid_routines_do_not_compile() {
    let cases = fs::read_dir(CASES)
        .expect("the build is where it was")
        .map(|entry| entry.expect("the build is where it was").path());
    let cases: Vec<PathBuf> = cases
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .collect();
    assert!(!cases.is_empty());
    for case in cases {
        let (stderr, file) = (compiler_errors(&case), case.with_extension("stderr"));
        if env::var_os("BLESS").is_some() {
            fs::write(&file, format!("{}\n", stderr.trim())).expect("the build is where it was");
        }
        let expected = fs::read_to_string(&file).expect("the build is where it was");
        assert!(
            stderr.trim() == expected.trim(),
            "{}: the compiler says\n{stderr}\nand not\n{expected}",
            case.display()
        );
    }
}
