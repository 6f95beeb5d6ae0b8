//! The table at the end.

use std::time::Duration;

use crate::{
    check::{Fault, Figures, Verdict},
    monkey::Deed,
    options::Options,
    plan::What,
};

/// How many faults are shown; with one mistake come thousands.
const SHOWN: usize = 40;

/// What the campaign itself did.
pub(crate) struct Effort {
    pub(crate) breaking: Duration,
    pub(crate) settling: Duration,
    pub(crate) submitters_killed: u32,
    pub(crate) missed: u32,
    /// Connections that the proxy ended or held.
    pub(crate) connections_hit: u64,
    pub(crate) refused: usize,
}

/// Prints the figures as a table that can stand in the documents, then the faults.
pub(crate) fn print(options: &Options, effort: &Effort, deeds: &[Deed], verdict: &Verdict) {
    let Verdict { figures, faults } = verdict;
    let rows = rows(effort, deeds, figures, faults);
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
    let unhurt = figures.taken_from_the_unhurt.iter().take(SHOWN);
    unhurt.for_each(|(tid, attempt)| {
        println!("{tid} attempt {attempt}: taken from a worker that nothing was done to")
    });
    faults
        .iter()
        .take(SHOWN)
        .for_each(|fault| println!("{fault}"));
    if faults.len() > SHOWN {
        println!("… and {} more", faults.len() - SHOWN);
    }
}

fn rows(
    effort: &Effort,
    deeds: &[Deed],
    figures: &Figures,
    faults: &[Fault],
) -> Vec<(&'static str, String)> {
    let done = |is_it: fn(What) -> bool| deeds.iter().filter(|deed| is_it(deed.what)).count();
    let faults_of = |is_it: fn(&Fault) -> bool| {
        faults
            .iter()
            .filter(|fault| is_it(fault))
            .count()
            .to_string()
    };
    let [managers, members] = [
        done(|what| what == What::KillManager),
        done(|what| what == What::KillMember),
    ];
    let [workers, runners, commands, servers] = [
        done(|what| what == What::KillWorker),
        done(|what| what == What::KillRunner),
        done(|what| what == What::KillCommand),
        done(|what| matches!(what, What::KillServer(_))),
    ];
    let kills = managers
        + members
        + workers
        + runners
        + commands
        + servers
        + effort.submitters_killed as usize;
    let stops = done(|what| matches!(what, What::StopWorker(_) | What::StopRunner(_)));
    let leaves = done(|what| matches!(what, What::Drain | What::GiveBack));
    let forgotten = done(|what| matches!(what, What::LosePower { .. } | What::FailOver { .. }));
    let nets = done(|what| matches!(what, What::Net(..)));
    let mut rows = vec![
        (
            "broken for, then settled in",
            format!("{:.0?}, {:.0?}", effort.breaking, effort.settling),
        ),
        ("kills with -9", kills.to_string()),
        (
            "… of workers, runners, commands",
            format!("{workers}, {runners}, {commands}"),
        ),
        (
            "… of managers that were spawned or have groups, processes of groups",
            format!("{managers}, {members}"),
        ),
        (
            "… of submitters at work",
            effort.submitters_killed.to_string(),
        ),
        ("… of the server", servers.to_string()),
        (
            "moments that the server forgot, by power cuts and failovers",
            forgotten.to_string(),
        ),
        (
            "… tasks submitted then and forgotten, as documented",
            figures.forgotten.to_string(),
        ),
        (
            "… attempts whose number was given out twice, as documented",
            figures.overlaps.to_string(),
        ),
        ("stopped past the lease", stops.to_string()),
        ("workers told to leave", leaves.to_string()),
        ("troubles of the network", nets.to_string()),
        (
            "… connections that they hit",
            effort.connections_hit.to_string(),
        ),
        ("blows that found nobody", effort.missed.to_string()),
        ("submits that were refused", effort.refused.to_string()),
        ("accepted", figures.accepted.to_string()),
        (
            "stored without a word of it",
            figures.unannounced.to_string(),
        ),
        (
            "finished",
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
            "follow-ups, each once and after a success",
            figures.followed.to_string(),
        ),
        (
            "messages that are one task each",
            figures.letters.to_string(),
        ),
        ("due times that were fired once", figures.ticks.to_string()),
        (
            "given up with the third manager that was killed, as documented",
            figures.given_up.to_string(),
        ),
        ("**lost**", format!("**{}**", faults_of(Fault::is_loss))),
        ("attempts begun", figures.attempts.to_string()),
        (
            "tasks that ran again for no failure of theirs",
            figures.ran_again.to_string(),
        ),
        (
            "… of which came to their end twice",
            figures.ended_again.to_string(),
        ),
        (
            "second ends recorded",
            faults_of(|fault| matches!(fault, Fault::SecondEnd(_))),
        ),
        (
            "follow-ups that should not be",
            faults_of(|fault| matches!(fault, Fault::Misfollowed(..))),
        ),
        (
            "messages read twice, due times fired twice",
            faults_of(|fault| matches!(fault, Fault::ReadTwice(..) | Fault::FiredTwice(_))),
        ),
        (
            "overlapping attempts",
            faults_of(|fault| matches!(fault, Fault::Overlap(..) | Fault::BegunTwice(..))),
        ),
        ("stale writes refused", figures.stale_refused.to_string()),
        (
            "stale writes accepted",
            faults_of(|fault| matches!(fault, Fault::StaleWrite(..))),
        ),
        (
            "kill to taken back, p50 / p99 / max",
            spread(&figures.taken_back),
        ),
        (
            "… with the server or the way to it out of order",
            spread(&figures.taken_back_after_outage),
        ),
        (
            "kill to running again, p50 / p99 / max",
            spread(&figures.running_again),
        ),
        (
            "taken from workers that were cut off",
            figures.taken_from_the_cut_off.to_string(),
        ),
        (
            "taken from workers that nothing was done to",
            figures.taken_from_the_unhurt.len().to_string(),
        ),
        (
            "processes left",
            faults_of(|fault| matches!(fault, Fault::Survivor(_) | Fault::Outlived(..))),
        ),
    ];
    // What an engine does not have is not counted.
    let of_servers = [
        "… of the server",
        "moments that the server forgot, by power cuts and failovers",
        "… tasks submitted then and forgotten, as documented",
        "… attempts whose number was given out twice, as documented",
        "troubles of the network",
        "… connections that they hit",
        "… with the server or the way to it out of order",
        "taken from workers that were cut off",
    ];
    rows.retain(|(name, value)| {
        !matches!(value.as_str(), "0" | "none") || !of_servers.contains(name)
    });
    rows
}

/// Of times in their order.
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
    fn times_are_shown_with_their_tail() {
        let times: Vec<_> = (0..=100).map(Duration::from_secs).collect();
        assert_eq!(spread(&times), "50.00 / 99.00 / 100.00 s (101)");
        assert_eq!(spread(&times[..1]), "0.00 / 0.00 / 0.00 s (1)");
        assert_eq!(spread(&[]), "none");
    }
}
