//! What is known of a panic: its words travel with it, its place and how it came there do not.

use std::{any::Any, backtrace::Backtrace, cell::RefCell, panic};

use raddle_wire::v1::{self, exception::Kind};

use super::reply_sink::exception;

thread_local! {
    /// Where the last panic of this thread was, and how it came there.
    static LAST: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// The longest backtrace that is sent.
const LONGEST: usize = 16 * 1024;

/// Notes panics from now on. They are also shown, as ever.
pub(super) fn watch() {
    let shown = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let place = info
            .location()
            .map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        // Taken whatever the environment says: a caller in another process has no debugger here.
        let mut backtrace = Backtrace::force_capture().to_string();
        backtrace.truncate(backtrace.floor_char_boundary(LONGEST));
        LAST.with_borrow_mut(|last| *last = Some((place, backtrace)));
        shown(info);
    }));
}

/// A panic that was caught on this thread, for whoever called.
pub(super) fn caught(thrown: &(dyn Any + Send)) -> v1::Exception {
    let message = words(thrown);
    let (place, backtrace) = LAST
        .take()
        .unwrap_or_else(|| ("an unknown place".into(), String::new()));
    v1::Exception {
        message,
        place,
        backtrace,
        ..exception(Kind::Panicked)
    }
}

/// What was said with a panic.
pub(crate) fn words(thrown: &(dyn Any + Send)) -> String {
    let text = thrown.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| thrown.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a word".into())
}
