//! Metrics and readiness of standalone workers.

use raddle_rpc::{
    standalone::{ServicePhase, ServiceStatus, StandaloneHandle},
    worker::{CallCounts, REASONS},
};
use raddle_telemetry::metrics::MetricsPage;
use raddle_web::{Readiness, Router};

/// The pages of standalone workers.
pub(super) fn page(workers: &StandaloneHandle) -> Router {
    let (handle, health) = (workers.clone(), workers.clone());
    let metrics = raddle_web::metrics(move || {
        let workers = handle.clone();
        async move {
            let counts = workers.call_counts().await;
            render(workers.status(), &counts)
        }
    });
    metrics.merge(raddle_web::health(move || readiness(health.status())))
}

fn render(now: ServiceStatus, counts: &CallCounts) -> String {
    let mut page = MetricsPage::default();
    page.gauge(
        "raddle_pool_workers",
        "The wanted number of workers.",
        now.wanted as f64,
    );
    page.gauge(
        "raddle_pool_workers_serving",
        "Workers that serve.",
        now.serving as f64,
    );
    page.gauge(
        "raddle_pool_backing_off",
        "Whether starts are delayed because workers exit right after their start.",
        f64::from(u8::from(now.is_backing_off)),
    );
    let losses = "Workers that have exited unexpectedly, or could not be started.";
    page.count("raddle_pool_worker_losses_total", losses, now.losses);
    page.gauge(
        "raddle_pool_calls_in_flight",
        "Calls that have been accepted and have not ended.",
        counts.in_flight as f64,
    );
    page.count(
        "raddle_pool_calls_accepted_total",
        "Calls that were accepted.",
        counts.taken,
    );
    let refused = REASONS.map(|reason| (reason, counts.refused_for(reason)));
    page.counts(
        "raddle_pool_refused_total",
        "Callers and calls that were refused, by reason.",
        "reason",
        refused,
    );
    page.into_text()
}

/// Ready when all workers serve for the first time; after that, one is enough.
fn readiness(now: ServiceStatus) -> Readiness {
    let serve = format!("{} of {} workers serve", now.serving, now.wanted);
    match now.phase {
        ServicePhase::Serving if now.serving > 0 => Readiness::Ready(serve),
        ServicePhase::Starting | ServicePhase::Serving => Readiness::Unready(serve),
        ServicePhase::Stopping => Readiness::Unready("stopping: no more calls are taken".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_once_all_workers_serve_and_while_one_does() {
        let status = |phase, serving| ServiceStatus {
            phase,
            wanted: 2,
            serving,
            losses: 0,
            is_backing_off: false,
        };
        let is_ready =
            |phase, serving| matches!(readiness(status(phase, serving)), Readiness::Ready(_));
        assert!(!is_ready(ServicePhase::Starting, 1) && is_ready(ServicePhase::Serving, 2));
        assert!(is_ready(ServicePhase::Serving, 1) && !is_ready(ServicePhase::Serving, 0));
        assert!(!is_ready(ServicePhase::Stopping, 2));
    }
}
