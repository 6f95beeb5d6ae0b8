//! `cargo xtask test`: everything that must hold before a change lands.

use std::{
    process::{Command, ExitCode},
    time::Duration,
};

use crate::{
    DEV, built,
    count::{self, Count},
    crates, install, step,
};

/// What the tests of this package need on top of what it needs to run them, and what is off unless somebody asks for it.
const FEATURES: &str = "xtask/chaos,raddle-cli/kubernetes,raddle-cli/otlp,raddle-cli/tls";
/// A short campaign: half a minute of breaking and settling.
const CAMPAIGN: &str = "--tasks 2000 --minutes 0.25 --kills 30";

/// How long the database of advisories may take to arrive.
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

/// Runs all steps, also after one has failed: one run shows everything there is to mend.
pub(crate) fn run(options: &Options) -> ExitCode {
    let mut run = Run::default();
    run.check("needed programs", install::programs());
    run.check("an old redis-server", install::old_redis());
    run.check("Python packages", install::python_packages());
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
            // The benchmarks are not built here otherwise.
            &format!("{FEATURES},xtask/bench"),
            "--",
            "-D",
            "warnings",
        ]),
    );
    if !options.quick {
        // Code behind a feature is easily used without it. Other sets of features would build most of their dependencies again.
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
    deny(&mut run);
    run.check("number of crates", crates::are_few());

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
    let tested = count::nextest(&run.step("tests", nextest));
    let shown = if options.quick {
        Count::default()
    } else {
        // With the same features, so that nothing is built another time.
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
    let broken = if options.quick || options.filter.is_some() {
        Count::default()
    } else {
        chaos(&mut run)
    };
    run.close(tested + shown + broken)
}

/// Two short campaigns on each engine: a plan that is known, so that what breaks it is a change, and one that nobody has tried.
fn chaos(run: &mut Run) -> Count {
    // As the tests were built, so that nothing is built another time.
    let as_tested = [
        "--workspace",
        "--bins",
        "--tests",
        "--examples",
        "--features",
        FEATURES,
    ];
    let Ok(program) = built(&as_tested, "raddle-chaos", DEV) else {
        run.check("chaos", false);
        return Count {
            passed: 0,
            failed: 1,
        };
    };
    let campaigns = [
        ("chaos, sqlite, the known plan", "--engine sqlite --seed 1"),
        ("chaos, sqlite, a new plan", "--engine sqlite"),
        ("chaos, redis, the known plan", "--engine redis --seed 1"),
        ("chaos, redis, a new plan", "--engine redis"),
        (
            "chaos, redis, a server that forgets",
            "--engine redis --losses 4",
        ),
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

/// Licences, bans and sources. Nobody has to build the tool for a look at their own change; continuous integration does.
fn deny(run: &mut Run) {
    if install::deny() {
        run.step(
            "dependencies",
            step::cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"]),
        );
        advisories(run);
    } else {
        println!("\n==> dependencies: passed over, cargo-deny is not installed");
        run.check("cargo-deny", !install::is_ci());
    }
}

/// Known vulnerabilities. Their database is fetched from GitHub, which not every machine reaches.
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
            "==> advisories: NOT CHECKED, their database cannot be fetched here. Where it can: cargo deny check advisories"
        );
    }
}

/// The steps so far.
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

    /// Runs a command and returns what it wrote.
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
        // A step may fail without a test that does.
        let failed = count.failed.max(self.failed.len() as u64);
        println!("{} passed, {failed} failed", count.passed);
        if failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
