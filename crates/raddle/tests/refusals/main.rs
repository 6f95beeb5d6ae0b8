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
    let ours = env::current_exe()
        .expect("the build is where it was")
        .parent()
        .expect("the build is where it was")
        .to_owned();
    let profile = ours
        .parent()
        .expect("the build is where it was")
        .file_name()
        .expect("the build is where it was");
    // Each target has such a mark, and the directory of all of them.
    let target = ours
        .ancestors()
        .filter(|directory| directory.join("CACHEDIR.TAG").exists())
        .last()
        .expect("the build is where it was");
    [ours.clone(), target.join(profile).join("deps")]
}

/// The library of this name that was built last before this test was: the one that it was built with. Others may have come since.
fn library(directory: &Path, name: &str) -> PathBuf {
    let built = |path: &Path| {
        path.metadata()
            .and_then(|found| found.modified())
            .expect("the build is where it was")
    };
    let own = built(&env::current_exe().expect("the build is where it was"));
    let begins = format!("lib{name}-");
    let found = fs::read_dir(directory)
        .expect("the build is where it was")
        .map(|entry| entry.expect("the build is where it was").path());
    let libraries = found.filter(|path| {
        let file = path
            .file_name()
            .expect("the build is where it was")
            .to_string_lossy();
        file.starts_with(&begins) && file.ends_with(".rlib") && built(path) <= own
    });
    libraries
        .max_by_key(|path| built(path))
        .expect("it was built for this test")
}

/// What the compiler says to a case.
fn refusal(case: &Path) -> String {
    let [ours, host] = directories();
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
    for directory in [&ours, &host] {
        command
            .arg("-L")
            .arg(format!("dependency={}", directory.display()));
    }
    for name in ["raddle", "futures_util", "tokio"] {
        command
            .arg("--extern")
            .arg(format!("{name}={}", library(&ours, name).display()));
    }
    let output = command
        .arg(case)
        .output()
        .expect("the build is where it was");
    assert!(!output.status.success(), "{} compiles", case.display());
    // How many errors there were, and where to read more, is nothing of ours.
    let said = String::from_utf8(output.stderr).expect("the build is where it was");
    let ends = [
        "error: aborting due to",
        "error: could not compile",
        "For more information",
        "Some errors have",
    ];
    // How much of a type's name is written depends on what else there is of that name.
    let said = said
        .replace("std::option::", "")
        .replace("std::result::", "");
    said.lines()
        .filter(|line| !ends.iter().any(|end| line.starts_with(end)))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn what_cannot_be_a_routine_is_refused_where_it_stands() {
    let cases = fs::read_dir(CASES)
        .expect("the build is where it was")
        .map(|entry| entry.expect("the build is where it was").path());
    let cases: Vec<PathBuf> = cases
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .collect();
    assert!(!cases.is_empty());
    for case in cases {
        let (said, file) = (refusal(&case), case.with_extension("stderr"));
        if env::var_os("BLESS").is_some() {
            fs::write(&file, format!("{}\n", said.trim())).expect("the build is where it was");
        }
        let expected = fs::read_to_string(&file).expect("the build is where it was");
        assert!(
            said.trim() == expected.trim(),
            "{}: the compiler says\n{said}\nand not\n{expected}",
            case.display()
        );
    }
}
