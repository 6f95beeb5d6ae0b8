//! The table at the end of a campaign.

use std::time::Duration;

use crate::{
    check::{CheckResult, Figures, Violation},
    fault_injector::InjectedFault,
    options::Options,
    plan::FaultKind,
};

/// The number of violations that are printed; one bug causes thousands.
const MAX_SHOWN: usize = 40;

/// Counters of the campaign itself.
pub(crate) struct CampaignStats {
    pub(crate) injecting: Duration,
    pub(crate) settling: Duration,
    pub(crate) submitters_killed: u32,
    pub(crate) missed: u32,
    /// Connections that the proxy closed or held.
    pub(crate) connections_hit: u64,
    pub(crate) refused: usize,
}

/// Prints the figures as a Markdown table, then the violations.
pub(crate) fn print(
    options: &Options,
    stats: &CampaignStats,
    injected_faults: &[InjectedFault],
    verdict: &CheckResult,
) {
    let CheckResult {
        figures,
        violations,
    } = verdict;
    let rows = rows(stats, injected_faults, figures, violations);
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    println!(
        "\n| {:<width$} | {} seed {} |",
        "campaign",
        options.engine.name(),
        options.seed
    );
    println!("| {:-<width$} | --- |", "");
    rows.iter()
        .for_each(|(name, value)| println!("| {name:<width$} | {value} |"));
    println!();
    let reclaimed = figures.reclaimed_from_healthy.iter().take(MAX_SHOWN);
    reclaimed.for_each(|(tid, attempt)| {
        println!("{tid} attempt {attempt}: reclaimed from a worker without an injected fault")
    });
    violations
        .iter()
        .take(MAX_SHOWN)
        .for_each(|violation| println!("{violation}"));
    if violations.len() > MAX_SHOWN {
        println!("… and {} more", violations.len() - MAX_SHOWN);
    }
}

fn rows(
    stats: &CampaignStats,
    injected_faults: &[InjectedFault],
    figures: &Figures,
    violations: &[Violation],
) -> Vec<(&'static str, String)> {
    let count_injected = |is_it: fn(FaultKind) -> bool| {
        injected_faults
            .iter()
            .filter(|injected| is_it(injected.kind))
            .count()
    };
    let count_violations = |is_it: fn(&Violation) -> bool| {
        violations
            .iter()
            .filter(|violation| is_it(violation))
            .count()
            .to_string()
    };
    let [managers, group_processes] = [
        count_injected(|kind| kind == FaultKind::KillManager),
        count_injected(|kind| kind == FaultKind::KillGroupProcess),
    ];
    let [workers, runners, commands, servers] = [
        count_injected(|kind| kind == FaultKind::KillWorker),
        count_injected(|kind| kind == FaultKind::KillRunner),
        count_injected(|kind| kind == FaultKind::KillCommand),
        count_injected(|kind| matches!(kind, FaultKind::KillServer(_))),
    ];
    let hosts = count_injected(|kind| kind == FaultKind::KillHost);
    let suspended = count_injected(|kind| matches!(kind, FaultKind::StopHost(_)));
    let kills = managers
        + hosts
        + group_processes
        + workers
        + runners
        + commands
        + servers
        + stats.submitters_killed as usize;
    let stops =
        count_injected(|kind| matches!(kind, FaultKind::StopWorker(_) | FaultKind::StopRunner(_)));
    let stops_requested =
        count_injected(|kind| matches!(kind, FaultKind::Drain | FaultKind::StopNow));
    let forgotten = count_injected(|kind| {
        matches!(
            kind,
            FaultKind::LoseLastWrites { .. } | FaultKind::Failover { .. }
        )
    });
    let nets = count_injected(|kind| matches!(kind, FaultKind::Net(..)));
    let mut rows = vec![
        (
            "injection time, settling time",
            format!("{:.0?}, {:.0?}", stats.injecting, stats.settling),
        ),
        ("kills with -9", kills.to_string()),
        (
            "… of workers, runners, commands",
            format!("{workers}, {runners}, {commands}"),
        ),
        (
            "… of spawned or group managers, of group processes",
            format!("{managers}, {group_processes}"),
        ),
        (
            "… of hosts; hosts suspended",
            format!("{hosts}; {suspended}"),
        ),
        (
            "… of running submitters",
            stats.submitters_killed.to_string(),
        ),
        ("… of the server", servers.to_string()),
        (
            "lost writes of the server, by power cuts and failovers",
            forgotten.to_string(),
        ),
        (
            "… tasks submitted then and forgotten, as documented",
            figures.forgotten.to_string(),
        ),
        (
            "… attempts whose number was used twice, as documented",
            figures.overlaps.to_string(),
        ),
        ("processes stopped past the lease", stops.to_string()),
        ("workers asked to stop", stops_requested.to_string()),
        ("network faults", nets.to_string()),
        ("… connections affected", stats.connections_hit.to_string()),
        ("faults without a target", stats.missed.to_string()),
        ("submits refused", stats.refused.to_string()),
        ("tasks accepted", figures.accepted.to_string()),
        (
            "tasks stored without an acknowledgement",
            figures.unacknowledged.to_string(),
        ),
        (
            "tasks finished",
            (figures.completed + figures.failed + figures.killed).to_string(),
        ),
        (
            "… completed, failed, killed",
            format!(
                "{}, {}, {}",
                figures.completed, figures.failed, figures.killed
            ),
        ),
        (
            "chained tasks, each once and after a success",
            figures.followed.to_string(),
        ),
        (
            "messages that became one task each",
            figures.messages.to_string(),
        ),
        ("due times fired once", figures.trigger_tasks.to_string()),
        (
            "given up after the third killed manager, as documented",
            figures.given_up.to_string(),
        ),
        (
            "**lost**",
            format!("**{}**", count_violations(Violation::is_loss)),
        ),
        ("attempts started", figures.attempts.to_string()),
        (
            "runs in hosts, of which after the death of one",
            format!("{}, {}", figures.host_runs, figures.host_reruns),
        ),
        (
            "tasks that ran again without their own failure",
            figures.reran.to_string(),
        ),
        (
            "… of which two attempts succeeded",
            figures.completed_twice.to_string(),
        ),
        (
            "events after the final state",
            count_violations(|violation| matches!(violation, Violation::EventAfterEnd(_))),
        ),
        (
            "wrong chained tasks",
            count_violations(|violation| matches!(violation, Violation::WrongFollowUp(..))),
        ),
        (
            "messages read twice, due times fired twice",
            count_violations(|violation| {
                matches!(
                    violation,
                    Violation::MessageDuplicated(..) | Violation::FiredTwice(_)
                )
            }),
        ),
        (
            "overlapping attempts",
            count_violations(|violation| {
                matches!(
                    violation,
                    Violation::Overlap(..) | Violation::BegunTwice(..)
                )
            }),
        ),
        ("stale writes refused", figures.stale_refused.to_string()),
        (
            "stale writes accepted",
            count_violations(|violation| matches!(violation, Violation::StaleWrite(..))),
        ),
        (
            "kill to reclaim, p50 / p99 / max",
            spread(&figures.reclaim_times),
        ),
        (
            "… during an outage of the server or network",
            spread(&figures.reclaim_times_with_outage),
        ),
        (
            "kill to next attempt, p50 / p99 / max",
            spread(&figures.rerun_times),
        ),
        (
            "reclaimed from disconnected workers",
            figures.reclaimed_when_disconnected.to_string(),
        ),
        (
            "reclaimed from workers without an injected fault",
            figures.reclaimed_from_healthy.len().to_string(),
        ),
        (
            "processes left",
            count_violations(|violation| {
                matches!(
                    violation,
                    Violation::Survivor(_) | Violation::OrphanAfterEnd(..)
                )
            }),
        ),
    ];
    // Rows of servers are left out where the engine has none.
    let server_rows = [
        "… of the server",
        "lost writes of the server, by power cuts and failovers",
        "… tasks submitted then and forgotten, as documented",
        "… attempts whose number was used twice, as documented",
        "network faults",
        "… connections affected",
        "… during an outage of the server or network",
        "reclaimed from disconnected workers",
    ];
    rows.retain(|(name, value)| {
        !matches!(value.as_str(), "0" | "none") || !server_rows.contains(name)
    });
    rows
}

/// Percentiles of sorted durations.
fn spread(times: &[Duration]) -> String {
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize].as_secs_f64();
    match times.len() {
        0 => "none".into(),
        count => format!(
            "{:.2} / {:.2} / {:.2} s ({count})",
            at(0.5),
            at(0.99),
            at(1.0)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_percentiles_of_durations() {
        let times: Vec<_> = (0..=100).map(Duration::from_secs).collect();
        assert_eq!(spread(&times), "50.00 / 99.00 / 100.00 s (101)");
        assert_eq!(spread(&times[..1]), "0.00 / 0.00 / 0.00 s (1)");
        assert_eq!(spread(&[]), "none");
    }
}
