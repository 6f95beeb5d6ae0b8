//! Invalid routines do not compile, and the error points at the mistake.
//!
//! Each case is compiled against the libraries of this test, because a build by Cargo would take
//! minutes. `BLESS=1` updates the expected errors.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const CASES: &str = "tests/refusals/cases";

/// The directories of the libraries that were built for this test and for the compiler (macros).
fn directories() -> [PathBuf; 2] {
    let test_deps = env::current_exe()
        .expect("the build directory is unchanged")
        .parent()
        .expect("the build directory is unchanged")
        .to_owned();
    let profile = test_deps
        .parent()
        .expect("the build directory is unchanged")
        .file_name()
        .expect("the build directory is unchanged");
    // Each target directory has such a tag, and the directory above them too.
    let target = test_deps
        .ancestors()
        .filter(|directory| directory.join("CACHEDIR.TAG").exists())
        .last()
        .expect("the build directory is unchanged");
    [test_deps.clone(), target.join(profile).join("deps")]
}

/// The newest library of this name that is older than this test: the one that it was linked with.
/// Newer ones may exist.
fn library(directory: &Path, name: &str) -> PathBuf {
    let modified = |path: &Path| {
        path.metadata()
            .and_then(|found| found.modified())
            .expect("the build directory is unchanged")
    };
    let test_built = modified(&env::current_exe().expect("the build directory is unchanged"));
    let begins = format!("lib{name}-");
    let found = fs::read_dir(directory)
        .expect("the build directory is unchanged")
        .map(|entry| entry.expect("the build directory is unchanged").path());
    let libraries = found.filter(|path| {
        let file = path
            .file_name()
            .expect("the build directory is unchanged")
            .to_string_lossy();
        file.starts_with(&begins) && file.ends_with(".rlib") && modified(path) <= test_built
    });
    libraries
        .max_by_key(|path| modified(path))
        .expect("the library was built for this test")
}

/// The errors of the compiler for a case.
fn compiler_errors(case: &Path) -> String {
    let [test_deps, host_deps] = directories();
    let out = tempfile::tempdir().expect("the build directory is unchanged");
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let mut command = Command::new(compiler);
    // `--verbose` prints long types in full instead of to a file.
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
        .expect("the build directory is unchanged");
    assert!(!output.status.success(), "{} compiles", case.display());
    // The count of errors and the help links are not compared.
    let stderr = String::from_utf8(output.stderr).expect("the build directory is unchanged");
    let ends = [
        "error: aborting due to",
        "error: could not compile",
        "For more information",
        "Some errors have",
    ];
    // The printed length of a path depends on other types of that name.
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
        .expect("the build directory is unchanged")
        .map(|entry| entry.expect("the build directory is unchanged").path());
    let cases: Vec<PathBuf> = cases
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .collect();
    assert!(!cases.is_empty());
    for case in cases {
        let (stderr, file) = (compiler_errors(&case), case.with_extension("stderr"));
        if env::var_os("BLESS").is_some() {
            fs::write(&file, format!("{}\n", stderr.trim()))
                .expect("the build directory is unchanged");
        }
        let expected = fs::read_to_string(&file).expect("the build directory is unchanged");
        assert!(
            stderr.trim() == expected.trim(),
            "{}: the compiler printed\n{stderr}\ninstead of\n{expected}",
            case.display()
        );
    }
}
