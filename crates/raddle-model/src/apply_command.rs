//! Effect of a control message on a waiting task. No worker runs the task, so the broker applies
//! the command itself.

use crate::{ControlCommand, ControlMessage, ExitStatus, TaskState, control::ControlReply};

/// The effect of a control message on a waiting task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEffect {
    /// The task ends in this state. No process is left to reply.
    End(TaskState, ExitStatus),
    /// The task is held back: no worker claims it until it is resumed.
    Hold,
    /// The task is no longer held back.
    Free,
    /// The task stays as it is.
    Nothing,
}

/// Returns the effect of `message` on a waiting task. `held` is whether the task is held back,
/// `goes_back` whether its spec requeues it when it is stopped.
pub fn apply_command(message: &ControlMessage, held: bool, goes_back: bool) -> CommandEffect {
    match message.command {
        // A stop with requeue asks for a task that waits in its queue, and this one already does.
        ControlCommand::Stop if message.requeue || goes_back => CommandEffect::Nothing,
        ControlCommand::Stop => CommandEffect::End(TaskState::Cancelled, ExitStatus::Cancelled),
        ControlCommand::Kill => CommandEffect::End(TaskState::Killed, ExitStatus::Killed),
        ControlCommand::Pause if !held => CommandEffect::Hold,
        ControlCommand::Resume if held => CommandEffect::Free,
        _ => CommandEffect::Nothing,
    }
}

/// Returns the command by which the worker must end its task, after one more message. The command
/// also applies to the task when its worker dies before it obeys. Nothing overrides a `KILL`, and a
/// `STOP` with requeue is not recorded, because a reclaimed task is back in its queue anyway.
pub fn pending_command(
    before: Option<ControlCommand>,
    message: &ControlMessage,
) -> Option<ControlCommand> {
    match message.command {
        ControlCommand::Kill => Some(ControlCommand::Kill),
        ControlCommand::Stop if !message.requeue => before.or(Some(ControlCommand::Stop)),
        _ => before,
    }
}

/// Builds the reply to a message that was applied and did not end the task. `held` is whether the
/// task is held back now.
pub fn answer(message: &ControlMessage, held: bool) -> ControlReply {
    message.reply(
        "ok",
        if held {
            "paused"
        } else {
            TaskState::Created.as_str()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(command: ControlCommand) -> [CommandEffect; 2] {
        [false, true].map(|held| apply_command(&ControlMessage::new(command), held, false))
    }

    #[test]
    fn accepts_commands_that_change_nothing() {
        use CommandEffect::{Free, Hold, Nothing};
        assert_eq!(effects(ControlCommand::Pause), [Hold, Nothing]);
        assert_eq!(effects(ControlCommand::Resume), [Nothing, Free]);
        assert_eq!(effects(ControlCommand::Ping), [Nothing, Nothing]);
        assert_eq!(effects(ControlCommand::Status), [Nothing, Nothing]);
    }

    #[test]
    fn stop_and_kill_end_a_held_task() {
        let (cancelled, killed) = (
            CommandEffect::End(TaskState::Cancelled, ExitStatus::Cancelled),
            CommandEffect::End(TaskState::Killed, ExitStatus::Killed),
        );
        assert_eq!(
            effects(ControlCommand::Stop),
            [cancelled.clone(), cancelled]
        );
        assert_eq!(
            effects(ControlCommand::Kill),
            [killed.clone(), killed.clone()]
        );
        assert_eq!(
            apply_command(&ControlMessage::new(ControlCommand::Kill), false, true),
            killed
        );
    }

    #[test]
    fn stop_with_requeue_leaves_a_waiting_task_alone() {
        let requeue = ControlMessage {
            requeue: true,
            ..ControlMessage::new(ControlCommand::Stop)
        };
        assert_eq!(
            apply_command(&requeue, false, false),
            CommandEffect::Nothing
        );
        assert_eq!(
            apply_command(&ControlMessage::new(ControlCommand::Stop), true, true),
            CommandEffect::Nothing
        );
    }

    #[test]
    fn kill_overrides_stop_and_is_never_overridden() {
        let requeue = ControlMessage {
            requeue: true,
            ..ControlMessage::new(ControlCommand::Stop)
        };
        let [stop, kill, pause] = [
            ControlCommand::Stop,
            ControlCommand::Kill,
            ControlCommand::Pause,
        ]
        .map(ControlMessage::new);
        let last = |messages: &[&ControlMessage]| {
            messages
                .iter()
                .fold(None, |before, message| pending_command(before, message))
        };
        assert_eq!(last(&[&pause, &requeue]), None);
        assert_eq!(last(&[&stop, &pause]), Some(ControlCommand::Stop));
        assert_eq!(
            last(&[&stop, &kill, &stop, &requeue]),
            Some(ControlCommand::Kill)
        );
    }

    #[test]
    fn reply_reports_whether_the_task_is_held() {
        let message = ControlMessage {
            request_id: Some("7".into()),
            ..ControlMessage::new(ControlCommand::Status)
        };
        assert_eq!(answer(&message, true), message.reply("ok", "paused"));
        assert_eq!(answer(&message, false), message.reply("ok", "created"));
    }
}
