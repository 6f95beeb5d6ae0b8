//! `cargo xtask test`: all checks that a change must pass.

use std::{
    process::{Command, ExitCode},
    time::Duration,
};

use crate::{
    DEV, build_program,
    count::{self, Count},
    crates, install, lint_words, python, step,
};

/// Features of the workspace that are off by default and are tested.
const FEATURES: &str = "xtask/chaos,raddle-cli/kubernetes,raddle-cli/otlp,raddle-cli/tls";
/// A short campaign: half a minute for faults and settling.
const CAMPAIGN: &str = "--tasks 2000 --minutes 0.25 --kills 30";

/// The time limit for the download of the advisory database.
const FETCH_WITHIN: &str = "60s";

/// Install what the tests need, then check and test everything.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only the tests that this nextest expression selects: 'package(raddle-model)'
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Leave out the documentation, its examples and the chaos campaigns
    #[arg(long)]
    quick: bool,
}

/// Runs all steps, also after one has failed, so that one run shows everything there is to fix.
pub(crate) fn run(options: &Options) -> ExitCode {
    let mut run = Run::default();
    run.check("needed programs", install::programs());
    run.check("an old redis-server", install::old_redis());
    run.check("Python packages", install::python_packages());
    run.check("axe-core", install::axe());
    run.check("cargo-nextest", install::nextest());
    run.step("format", step::cargo(&["fmt", "--all", "--check"]));
    run.step(
        "clippy",
        step::cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--features",
            // The benchmarks are built by this step only.
            &format!("{FEATURES},xtask/bench"),
            "--",
            "-D",
            "warnings",
        ]),
    );
    if !options.quick {
        // Code behind a feature is easily used without it. Other sets of features would rebuild
        // most dependencies.
        for features in ["worker", "pool"] {
            let fewer = [
                "check",
                "--package",
                "raddle",
                "--no-default-features",
                "--features",
                features,
                "--locked",
            ];
            run.step("fewer features", step::cargo(&fewer));
        }
        let mut doc = step::cargo(&[
            "doc",
            "--workspace",
            "--no-deps",
            "--locked",
            "--features",
            FEATURES,
        ]);
        doc.env("RUSTDOCFLAGS", "-D warnings");
        run.step("documentation", doc);
    }
    run.check("words", lint_words::check());
    deny(&mut run);
    run.check("number of crates", crates::check_number());

    let profile = if install::is_ci() { "ci" } else { "default" };
    let mut nextest = step::cargo(&[
        "nextest",
        "run",
        "--workspace",
        "--locked",
        "--features",
        FEATURES,
        "--no-fail-fast",
        "--profile",
        profile,
    ]);
    if let Some(filter) = &options.filter {
        nextest.args(["--filterset", filter]);
    }
    let test_count = count::nextest(&run.step("tests", nextest));
    let doctest_count = if options.quick {
        Count::default()
    } else {
        // With the same features, so that nothing is rebuilt.
        let doctests = [
            "test",
            "--doc",
            "--workspace",
            "--locked",
            "--no-fail-fast",
            "--features",
            FEATURES,
        ];
        count::libtest(&run.step("doctests", step::cargo(&doctests)))
    };
    let chaos_count = if options.quick || options.filter.is_some() {
        Count::default()
    } else {
        chaos(&mut run)
    };
    let python_count = if options.filter.is_some() {
        Count::default()
    } else {
        python_tests(&mut run)
    };
    run.close(test_count + doctest_count + chaos_count + python_count)
}

/// The arguments of the test build, so that nothing is rebuilt.
const TEST_BUILD: [&str; 6] = [
    "--workspace",
    "--bins",
    "--tests",
    "--examples",
    "--features",
    FEATURES,
];

/// The tests of the Python package, with the binary of this build.
fn python_tests(run: &mut Run) -> Count {
    let command = build_program(&TEST_BUILD, "raddle", DEV)
        .ok()
        .and_then(|program| python::test_command(&program));
    match command {
        Some(command) => count::pytest(&run.step("python", command)),
        None => {
            run.check("python", python::may_skip());
            Count::default()
        }
    }
}

/// Two short campaigns on each engine: one with a fixed plan, so that a failure is due to a change,
/// and one with a random plan.
fn chaos(run: &mut Run) -> Count {
    let Ok(program) = build_program(&TEST_BUILD, "raddle-chaos", DEV) else {
        run.check("chaos", false);
        return Count {
            passed: 0,
            failed: 1,
        };
    };
    let campaigns = [
        ("chaos, sqlite, fixed plan", "--engine sqlite --seed 1"),
        ("chaos, sqlite, random plan", "--engine sqlite"),
        ("chaos, redis, fixed plan", "--engine redis --seed 1"),
        ("chaos, redis, random plan", "--engine redis"),
        ("chaos, redis, lost writes", "--engine redis --losses 4"),
    ];
    let mut count = Count::default();
    for (name, args) in campaigns {
        let mut campaign = Command::new(&program);
        campaign.args(CAMPAIGN.split(' ')).args(args.split(' '));
        let failed_before = run.failed.len();
        run.step(name, campaign);
        if run.failed.len() == failed_before {
            count.passed += 1
        } else {
            count.failed += 1
        }
    }
    count
}

/// Licences, bans and sources. CI needs cargo-deny; elsewhere the step is skipped without it.
fn deny(run: &mut Run) {
    if install::deny() {
        run.step(
            "dependencies",
            step::cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"]),
        );
        advisories(run);
    } else {
        println!("\n==> dependencies: skipped, cargo-deny is not installed");
        run.check("cargo-deny", !install::is_ci());
    }
}

/// Known vulnerabilities. Their database is fetched from GitHub, which may be unreachable.
fn advisories(run: &mut Run) {
    let mut fetch = Command::new("timeout");
    fetch.args([FETCH_WITHIN, "cargo", "deny", "fetch", "db"]);
    if step::run("database of advisories", fetch).ok {
        run.step(
            "advisories",
            step::cargo(&["deny", "--locked", "check", "--disable-fetch", "advisories"]),
        );
    } else {
        println!(
            "==> advisories: NOT CHECKED, because their database cannot be fetched. With access to GitHub, run: cargo deny check advisories"
        );
    }
}

/// The steps that have run.
#[derive(Default)]
struct Run {
    failed: Vec<&'static str>,
    took: Duration,
}

impl Run {
    fn check(&mut self, name: &'static str, ok: bool) {
        if !ok {
            self.failed.push(name);
        }
    }

    /// Runs a command and returns its output.
    fn step(&mut self, name: &'static str, command: std::process::Command) -> String {
        let outcome = step::run(name, command);
        self.took += outcome.took;
        self.check(name, outcome.ok);
        outcome.output
    }

    fn close(self, count: Count) -> ExitCode {
        println!("\n==> all steps in {:.1} s", self.took.as_secs_f64());
        if !self.failed.is_empty() {
            println!("==> failed steps: {}", self.failed.join(", "));
        }
        // A step may fail without a failed test.
        let failed = count.failed.max(self.failed.len() as u64);
        println!("{} passed, {failed} failed", count.passed);
        if failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
