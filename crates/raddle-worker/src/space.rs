//! Waiting for space: until a full disk or a full server has room again.
//!
//! A worker or manager waits instead of exiting: its supervisor would restart it again and again.

use std::{fmt::Display, future::Future, time::Duration};

use raddle_model::ExponentialBackoff;
use tokio::time::sleep;

/// Pauses between tries. The longest is the delay after there is space again.
pub(crate) const BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// Repeats `step` while it fails with an error that `is_full` accepts. Logs the start and the end
/// of the wait.
pub async fn wait_for_space<T, E: Display, F>(
    is_full: impl Fn(&E) -> bool,
    mut step: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut failures = 0;
    loop {
        match step().await {
            Err(error) if is_full(&error) => {
                if failures == 0 {
                    tracing::error!(%error, "waiting for space");
                }
                failures += 1;
                sleep(BACKOFF.pause(failures)).await;
            }
            done => {
                if failures > 0 && done.is_ok() {
                    tracing::warn!("there is space again");
                }
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_longer_until_there_is_space() {
        let began = tokio::time::Instant::now();
        let mut tried_at = Vec::new();
        let step = || {
            tried_at.push(began.elapsed().as_millis());
            std::future::ready(if tried_at.len() < 7 {
                Err("full")
            } else {
                Ok(())
            })
        };
        assert_eq!(
            wait_for_space(|error: &&str| *error == "full", step).await,
            Ok(())
        );
        assert_eq!(tried_at, [0, 500, 1500, 3500, 7500, 12_500, 17_500]);
    }

    #[tokio::test(start_paused = true)]
    async fn returns_other_errors_at_once() {
        let step = || std::future::ready(Err::<(), _>("damaged"));
        assert_eq!(
            wait_for_space(|error: &&str| *error == "full", step).await,
            Err("damaged")
        );
    }
}
