//! Tasks that the submitting process runs itself.

use std::time::Duration;

use raddle_model::{CapSet, worker::WorkerInfo};

use super::{
    claim::claim,
    reclaim::reclaim,
    registry::enter,
    submit::{PreparedTask, find_key_holder, submit},
    tx::{Tx, TxError, find_done},
};
use raddle_broker::{ClaimRequest, SubmitAndClaimOutcome};

/// Stores a task, registers an ephemeral worker and claims the task for it.
pub(super) fn submit_and_claim(
    tx: &mut Tx<'_>,
    task: PreparedTask,
    worker: &WorkerInfo,
    lease: Duration,
) -> Result<SubmitAndClaimOutcome, TxError> {
    // Reclaim now: where only short-lived workers run, no worker stays to do it.
    reclaim(tx)?;
    if find_key_holder(tx, &task)?.is_some() {
        return Ok(SubmitAndClaimOutcome {
            submitted: submit(tx, vec![task])?[0],
            worker: None,
            claim: None,
        });
    }
    let owner = tx.next_id();
    enter(tx, owner, worker, lease, true)?;
    let submitted = submit(tx, vec![task])?[0];
    let only = Some(submitted.tid());
    let request = ClaimRequest {
        owner,
        caps: CapSet::new(),
        queues: Vec::new(),
        only,
        max: 1,
        wait: Duration::ZERO,
    };
    let (mut claims, _) = claim(tx, &request)?;
    // If the task had expired, it was ended, and its worker removed.
    let worker = find_done(tx.db(), submitted.tid())?
        .is_none()
        .then_some(owner);
    Ok(SubmitAndClaimOutcome {
        submitted,
        worker,
        claim: claims.pop(),
    })
}
