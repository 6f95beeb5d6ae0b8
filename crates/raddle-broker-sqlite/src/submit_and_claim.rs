//! Tasks that run where they are submitted.

use std::time::Duration;

use raddle_model::{CapSet, worker::WorkerInfo};

use super::{
    claim::claim,
    reclaim::reclaim,
    registry::enter,
    submit::{PreparedTask, key_holder, submit},
    tx::{Tx, TxError, find_done},
};
use raddle_broker::{ClaimRequest, SubmitAndClaimOutcome};

/// Stores a task and gives it to a worker of its own.
pub(super) fn submit_and_claim(
    tx: &mut Tx<'_>,
    task: PreparedTask,
    worker: &WorkerInfo,
    lease: Duration,
) -> Result<SubmitAndClaimOutcome, TxError> {
    // Where no worker stays, the tasks of those that are gone have no one else to find them.
    reclaim(tx)?;
    if key_holder(tx, &task)?.is_some() {
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
    // One that has expired was ended with its worker.
    let worker = find_done(tx.db(), submitted.tid())?
        .is_none()
        .then_some(owner);
    Ok(SubmitAndClaimOutcome {
        submitted,
        worker,
        claim: claims.pop(),
    })
}
