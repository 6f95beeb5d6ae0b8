//! What a control message does to a task that waits: nobody runs it, so the broker obeys.

use crate::{Control, Exit, State, Word, control::Reply};

/// What is to be done to the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is over. There is nobody left to answer.
    End(State, Exit),
    /// It is held back from now on.
    Hold,
    /// It is no longer held back.
    Free,
    /// It stays as it is.
    Nothing,
}

/// Decides what `message` does to a task that waits. `held` is whether it is held back, `goes_back` whether its spec puts it back into its
/// queue when it is stopped.
pub fn obey(message: &Control, held: bool, goes_back: bool) -> Effect {
    match message.command {
        // It waits already, which is all that a task to be put back is asked for.
        Word::Stop if message.requeue || goes_back => Effect::Nothing,
        Word::Stop => Effect::End(State::Cancelled, Exit::Cancelled),
        Word::Kill => Effect::End(State::Killed, Exit::Killed),
        Word::Pause if !held => Effect::Hold,
        Word::Resume if held => Effect::Free,
        _ => Effect::Nothing,
    }
}

/// The answer to a message that has been obeyed and has not ended the task. `held` is whether it is held back now.
pub fn answer(message: &Control, held: bool) -> Reply {
    message.reply("ok", if held { "paused" } else { State::Created.as_str() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(command: Word) -> [Effect; 2] {
        [false, true].map(|held| obey(&Control::new(command), held, false))
    }

    #[test]
    fn a_word_that_changes_nothing_is_obeyed_all_the_same() {
        use Effect::{Free, Hold, Nothing};
        assert_eq!(effects(Word::Pause), [Hold, Nothing]);
        assert_eq!(effects(Word::Resume), [Nothing, Free]);
        assert_eq!(effects(Word::Ping), [Nothing, Nothing]);
        assert_eq!(effects(Word::Status), [Nothing, Nothing]);
    }

    #[test]
    fn a_task_that_is_held_back_can_be_ended() {
        let (cancelled, killed) =
            (Effect::End(State::Cancelled, Exit::Cancelled), Effect::End(State::Killed, Exit::Killed));
        assert_eq!(effects(Word::Stop), [cancelled.clone(), cancelled]);
        assert_eq!(effects(Word::Kill), [killed.clone(), killed.clone()]);
        assert_eq!(obey(&Control::new(Word::Kill), false, true), killed);
    }

    #[test]
    fn a_task_that_is_to_be_put_back_is_where_it_should_be() {
        let requeue = Control { requeue: true, ..Control::new(Word::Stop) };
        assert_eq!(obey(&requeue, false, false), Effect::Nothing);
        assert_eq!(obey(&Control::new(Word::Stop), true, true), Effect::Nothing);
    }

    #[test]
    fn the_answer_says_whether_it_is_held_back() {
        let message = Control { request_id: Some("7".into()), ..Control::new(Word::Status) };
        assert_eq!(answer(&message, true), message.reply("ok", "paused"));
        assert_eq!(answer(&message, false), message.reply("ok", "created"));
    }
}
