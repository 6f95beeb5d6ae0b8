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

/// The word by which a worker is to end its task, after one more message: it holds for the task also when its worker does not live to obey it. Nothing
/// takes a `KILL` back, and a task that is only to be put back need not be told again.
pub fn told(before: Option<Word>, message: &Control) -> Option<Word> {
    match message.command {
        Word::Kill => Some(Word::Kill),
        Word::Stop if !message.requeue => before.or(Some(Word::Stop)),
        _ => before,
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
    fn a_worker_is_told_to_end_a_task_once_and_for_all() {
        let requeue = Control { requeue: true, ..Control::new(Word::Stop) };
        let [stop, kill, pause] = [Word::Stop, Word::Kill, Word::Pause].map(Control::new);
        let last = |messages: &[&Control]| messages.iter().fold(None, |before, message| told(before, message));
        assert_eq!(last(&[&pause, &requeue]), None);
        assert_eq!(last(&[&stop, &pause]), Some(Word::Stop));
        assert_eq!(last(&[&stop, &kill, &stop, &requeue]), Some(Word::Kill));
    }

    #[test]
    fn the_answer_says_whether_it_is_held_back() {
        let message = Control { request_id: Some("7".into()), ..Control::new(Word::Status) };
        assert_eq!(answer(&message, true), message.reply("ok", "paused"));
        assert_eq!(answer(&message, false), message.reply("ok", "created"));
    }
}
