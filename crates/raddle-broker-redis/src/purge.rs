//! Deletion of records that are past their retention.

use std::str::FromStr;

use raddle_model::{QueueName, Tid};

use super::{Redis, connection::Certainty, script, value::arg};
use raddle_broker::{
    Result,
    operations::OPERATIONS_KEPT,
    queues::{AUDIT_KEPT, AUDIT_QUEUE},
};

/// The most tasks deleted by one script, so that other calls do not wait long.
const AT_ONCE: u32 = 500;

impl Redis {
    pub(super) async fn purge_expired(&self) -> Result<u64> {
        self.link()
            .change(&script::PURGE, self.purge_args(), Certainty::Done)
            .await
    }

    /// Deletes finished tasks early, some per script.
    pub(super) async fn delete_records(&self, mut tids: Vec<Tid>) -> Result<u64> {
        let mut deleted = 0;
        tids.sort_unstable();
        tids.dedup();
        for tids in tids.chunks(AT_ONCE as usize) {
            let mut args = self.purge_args();
            args.extend(tids.iter().map(arg));
            deleted += self
                .link()
                .change::<u64>(&script::PURGE, args, Certainty::Done)
                .await?;
        }
        Ok(deleted)
    }

    fn purge_args(&self) -> Vec<Vec<u8>> {
        let audit = QueueName::from_str(AUDIT_QUEUE).expect("it is the name of a queue");
        vec![
            arg(AT_ONCE),
            arg(self.core.keys.queue(&audit).key),
            arg(AUDIT_KEPT),
            arg(OPERATIONS_KEPT),
        ]
    }

    /// Deletes stored replies that are so old that no call can ask for them.
    pub(super) async fn delete_old_replies(&self) {
        let mut cursor = "0".to_owned();
        loop {
            match self
                .link()
                .run_idempotent::<String>(&script::DELETE_REPLIES, vec![arg(&cursor)])
                .await
            {
                Ok(next) if next != "0" => cursor = next,
                Ok(_) => return,
                Err(error) => return tracing::debug!(%error, "cannot delete old replies"),
            }
        }
    }
}
