//! A command in a sandbox, against a bare spawn.

use std::time::Instant;

use raddle::exec::{ExecRequest, Runner, RunnerEvent, RunnerOptions, SandboxConfig};
use raddle_model::{ExitStatus, Tid};

use crate::{
    Plan, floor,
    project_dir::{ProjectDir, binary},
    stats::{Requirement, median, micros, print_rounds, ratio},
};

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let times = if plan.quick { 20 } else { 100 };
    let (mut bare, mut plain, mut sandboxed) = (Vec::new(), Vec::new(), Vec::new());
    let project = ProjectDir::new();
    for _ in 0..plan.rounds {
        let spawns: Vec<f64> = (0..times).map(|_| micros(floor::spawns(1, 1))).collect();
        bare.push(median(&spawns));
        plain.push(project.wait(attempts(times, false)));
        sandboxed.push(project.wait(attempts(times, true)));
    }
    print_rounds("bare posix_spawn + wait of /bin/true, p50", "us", &bare);
    print_rounds("attempt of 'true' by a runner, p50", "us", &plain);
    print_rounds("attempt of 'true' in a sandbox, p50", "us", &sandboxed);
    vec![Requirement::at_most(
        "'true' in a sandbox, of a bare spawn",
        ratio(&sandboxed, &bare),
        5.0,
    )]
}

/// The median time of an attempt, from the request to its report, in a runner that is already
/// running.
async fn attempts(times: usize, sandboxed: bool) -> f64 {
    let options = RunnerOptions {
        program: binary(),
        ..RunnerOptions::default()
    };
    let mut runner = Runner::spawn(&options)
        .await
        .expect("the release binary is a runner");
    let tid = Tid::from_u64(1_763_000_123_456_789_012).expect("an id");
    let request = ExecRequest {
        sandbox: sandboxed.then(SandboxConfig::default),
        ..ExecRequest::command(tid, "true", ["/bin/true"])
    };
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        let began = Instant::now();
        runner.start(&request).await.expect("the runner listens");
        loop {
            if let RunnerEvent::Done(done) = runner.next().await.expect("the runner answers") {
                assert_eq!(done.exit, ExitStatus::Code { code: 0 }, "it runs");
                break;
            }
        }
        took.push(micros(began.elapsed()));
    }
    runner.close().await;
    median(&took)
}
