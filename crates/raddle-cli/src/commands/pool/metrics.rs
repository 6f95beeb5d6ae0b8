//! Metrics and readiness of standalone workers.

use raddle_rpc::{
    standalone::{ServicePhase, ServiceStatus, StandaloneHandle},
    worker::{CallCounts, REASONS},
};
use raddle_telemetry::metrics::MetricsPage;
use raddle_web::{Readiness, Router};

/// The pages of standalone workers.
pub(super) fn page(workers: &StandaloneHandle) -> Router {
    let (shown, asked) = (workers.clone(), workers.clone());
    let metrics = raddle_web::metrics(move || {
        let workers = shown.clone();
        async move {
            let tally = workers.call_counts().await;
            rendered(workers.status(), &tally)
        }
    });
    metrics.merge(raddle_web::health(move || ready(asked.status())))
}

fn rendered(now: ServiceStatus, tally: &CallCounts) -> String {
    let mut page = MetricsPage::default();
    page.gauge(
        "raddle_pool_workers",
        "Workers that there are to be.",
        now.wanted as f64,
    );
    page.gauge(
        "raddle_pool_workers_serving",
        "Workers that serve.",
        now.serving as f64,
    );
    page.gauge(
        "raddle_pool_braking",
        "Whether workers are held back because those before them have ended too soon.",
        f64::from(u8::from(now.is_backing_off)),
    );
    let losses = "Workers that have ended without having been told to, or could not be started.";
    page.count("raddle_pool_worker_losses_total", losses, now.losses);
    page.gauge(
        "raddle_pool_calls_in_flight",
        "Calls that have been taken and have not ended.",
        tally.in_flight as f64,
    );
    page.count(
        "raddle_pool_calls_taken_total",
        "Calls that were taken.",
        tally.taken,
    );
    let refused = REASONS.map(|reason| (reason, tally.refused_for(reason)));
    page.counts(
        "raddle_pool_refused_total",
        "Callers and calls that were refused, by why.",
        "reason",
        refused,
    );
    page.into_text()
}

/// Ready when all workers serve for the first time; after that, one is enough.
fn ready(now: ServiceStatus) -> Readiness {
    let serve = format!("{} of {} workers serve", now.serving, now.wanted);
    match now.phase {
        ServicePhase::Serving if now.serving > 0 => Readiness::Ready(serve),
        ServicePhase::Starting | ServicePhase::Serving => Readiness::Unready(serve),
        ServicePhase::Stopping => Readiness::Unready("no more calls are taken".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_once_all_have_served_and_while_one_does() {
        let standing = |phase, serving| ServiceStatus {
            phase,
            wanted: 2,
            serving,
            losses: 0,
            is_backing_off: false,
        };
        let is_ready =
            |phase, serving| matches!(ready(standing(phase, serving)), Readiness::Ready(_));
        assert!(!is_ready(ServicePhase::Starting, 1) && is_ready(ServicePhase::Serving, 2));
        assert!(is_ready(ServicePhase::Serving, 1) && !is_ready(ServicePhase::Serving, 0));
        assert!(!is_ready(ServicePhase::Stopping, 2));
    }
}
