//! Control messages: applied here to waiting tasks, delivered to workers otherwise.

use raddle_model::{ControlMessage, QueueName, Tid, apply_command, queue_name::TaskQueue};

use super::{
    Redis, connection::Certainty, record::flag_of, schema::MessageKeys, script, value::arg,
};
use raddle_broker::{ControlDelivery, DeliveryOutcome, Error, Result};

impl Redis {
    pub(super) async fn send_command(
        &self,
        tid: Tid,
        message: ControlMessage,
    ) -> Result<DeliveryOutcome> {
        loop {
            if let Some(delivered) = self.try_word(tid, &message).await? {
                return Ok(delivered);
            }
        }
    }

    /// Applies or stores a control message; `None` if the task was neither waiting nor claimed at
    /// that moment.
    async fn try_word(
        &self,
        tid: Tid,
        message: &ControlMessage,
    ) -> Result<Option<DeliveryOutcome>> {
        let applied = self
            .update_task(tid, Certainty::Durable, |task, draft| {
                if let Some(state) = task.end() {
                    return Err(Error::Finished(tid, state));
                }
                if task.record.is_active() {
                    return Ok(None);
                }
                draft.apply_command(message);
                Ok(Some(draft.state()))
            })
            .await?;
        if let Some(state) = applied {
            return Ok(Some(DeliveryOutcome::Applied(state)));
        }
        let place = self
            .core
            .keys
            .queue(&QueueName::Task(tid, TaskQueue::CtrlIn));
        let args = [
            MessageKeys {
                mark: "active",
                ..place
            }
            .args()
            .to_vec(),
            vec![message.to_text().into_bytes()],
        ]
        .concat();
        let sent: Vec<String> = self
            .link()
            .change(&script::PUT, args, Certainty::Durable)
            .await?;
        Ok((!sent.is_empty()).then_some(DeliveryOutcome::Sent))
    }

    /// Takes the control messages for `owner` and for its tasks, in the order in which they were
    /// sent.
    pub(super) async fn take_commands(&self, owner: Tid) -> Result<Vec<ControlDelivery>> {
        // Checked first: most calls find nothing, and must not cost the server a write.
        if self
            .link()
            .read::<u64>(redis::cmd("ZCARD").arg(self.core.keys.named("commands")))
            .await?
            == 0
        {
            return Ok(Vec::new());
        }
        // The flags are decided here, so the script takes exactly the messages that were read.
        let messages: Vec<String> = self
            .link()
            .run_idempotent(&script::LIST_COMMANDS, vec![arg(owner)])
            .await?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let args = messages
            .into_iter()
            .flat_map(|message| effect(&message))
            .collect();
        let taken: Vec<String> = self
            .link()
            .change(&script::TAKE_COMMANDS, args, Certainty::Done)
            .await?;
        let mut taken: Vec<_> = taken
            .iter()
            .filter_map(|message| split_message(message))
            .collect();
        taken.sort_by(|a, b| a.1.cmp(&b.1));
        Ok(taken
            .into_iter()
            .map(|(tid, _, body)| ControlDelivery { tid, body })
            .collect())
    }
}

/// For one stored message: itself, the flag of the command if it ends the task, and the parse error
/// if it is not a control message.
fn effect(message: &str) -> [Vec<u8>; 3] {
    let body = split_message(message)
        .map(|(_, _, body)| body)
        .unwrap_or_default();
    match body.parse() {
        Ok(parsed) => [
            arg(message),
            arg(flag_of(apply_command::pending_command(None, &parsed))),
            Vec::new(),
        ],
        Err(error) => [arg(message), arg(flag_of(None)), arg(error)],
    }
}

/// Parses a stored message: the ids of task and message precede the text.
fn split_message(message: &str) -> Option<(Tid, String, String)> {
    let mut parts = message.splitn(3, ':');
    Some((
        parts.next()?.parse().ok()?,
        parts.next()?.to_owned(),
        parts.next()?.to_owned(),
    ))
}
