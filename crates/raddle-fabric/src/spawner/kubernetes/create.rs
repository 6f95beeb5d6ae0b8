//! Making a pod, and removing one.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use raddle_core::Tid;
use tokio::time::{Instant, sleep};

use super::{
    super::{
        Class,
        launcher::{Id, LaunchError, Obstacle},
    },
    fault::Backoff,
    pods::{Event, Yard},
};

/// How long a launch is tried: then it has failed, and the brake decides about the next.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// Chance does not make as many clashes: somebody else does.
const MOST_CLASHES: u32 = 5;

/// A name that nobody has: chance decides, for other spawners name theirs too.
pub(super) fn name(class: &Class) -> String {
    class.container(RandomState::new().hash_one(0u8) as u32)
}

/// Makes a pod, and tells how that went.
pub(super) async fn create(yard: Arc<Yard>, id: Id, mut name: String, spawner: Tid) {
    let _turn = yard.turns.acquire().await.expect("never closed");
    let begun = Instant::now();
    let (mut backoff, mut clashes, mut is_open) = (Backoff::default(), 0, false);
    let event = loop {
        match yard.api.create(&yard.model.pod(&name, spawner)).await {
            Ok(()) => break Event::Created { id, at: Instant::now() },
            // The answer to an earlier try was lost.
            Err(fault) if fault.is_taken() && is_open => break Event::Created { id, at: Instant::now() },
            Err(fault) if fault.is_taken() && clashes < MOST_CLASHES => {
                clashes += 1;
                name = self::name(&yard.model.class);
                // Before it is made: what happens to it is heard of afterwards.
                yard.tell(Event::Renamed { id: id.clone(), name: name.clone() });
            }
            Err(fault) if fault.is_passing() && begun.elapsed() < GIVE_UP_AFTER => {
                is_open |= fault.is_open();
                sleep(backoff.after(Some(&fault))).await;
            }
            Err(fault) if fault.is_taken() => {
                let reason = format!("every name for a pod is taken, the last was {name}");
                break Event::NotCreated { id, error: LaunchError::new(Obstacle::Refused, reason) };
            }
            Err(fault) => break Event::NotCreated { id, error: LaunchError::from(&fault) },
        }
    };
    yard.tell(event);
}

/// Removes a pod; what runs in it may take so many seconds, or as long as its spec says. A server that is away is waited for.
pub(super) async fn remove(yard: &Yard, name: &str, grace: Option<u32>) {
    let mut backoff = Backoff::default();
    while let Err(fault) = yard.api.delete(name, grace).await {
        let is_passing = fault.is_passing();
        if backoff.is_fresh() || !is_passing {
            tracing::warn!(pod = name, error = %fault, "a pod cannot be removed{}", if is_passing { " yet" } else { "" });
        }
        if !is_passing {
            return;
        }
        sleep(backoff.after(Some(&fault))).await;
    }
}
