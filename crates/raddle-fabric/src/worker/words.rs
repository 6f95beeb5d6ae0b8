//! Control words as a worker obeys them.

use raddle_core::{Control, Word};
use raddle_exec::Order;

/// What a word to a task that runs here asks of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Pass the order on; with `give_back`, the attempt that ends by it goes back to the queue.
    Order { order: Order, give_back: bool },
    /// Nothing but the reply.
    Answer,
}

pub(super) fn deed(message: &Control) -> Deed {
    let order = |order| Deed::Order { order, give_back: false };
    match message.command {
        Word::Stop => Deed::Order { order: Order::Stop, give_back: message.requeue },
        Word::Kill => order(Order::Kill),
        Word::Pause => order(Order::Pause),
        Word::Resume => order(Order::Resume),
        _ => Deed::Answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_that_asks_for_it_gives_the_task_back() {
        let mut stop = Control::new(Word::Stop);
        assert_eq!(deed(&stop), Deed::Order { order: Order::Stop, give_back: false });
        stop.requeue = true;
        assert_eq!(deed(&stop), Deed::Order { order: Order::Stop, give_back: true });
        assert_eq!(deed(&Control::new(Word::Ping)), Deed::Answer);
    }
}
