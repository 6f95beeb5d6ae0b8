//! Records where routines panic: a caught panic carries its message, but neither location nor
//! backtrace.

use std::{any::Any, backtrace::Backtrace, cell::RefCell, panic};

use raddle_wire::v1::{self, exception::Kind};

use super::reply_sink::exception;

thread_local! {
    /// Location and backtrace of this thread's last panic.
    static LAST_PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// Longest backtrace that is sent.
const MAX_BACKTRACE: usize = 16 * 1024;

/// Installs a panic hook that records panics, and then calls the previous hook.
pub(super) fn install_hook() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let location = info
            .location()
            .map_or_else(|| "unknown location".to_owned(), ToString::to_string);
        // Captured regardless of `RUST_BACKTRACE`: the caller is in another process, without a
        // debugger here.
        let mut backtrace = Backtrace::force_capture().to_string();
        backtrace.truncate(backtrace.floor_char_boundary(MAX_BACKTRACE));
        LAST_PANIC.with_borrow_mut(|last| *last = Some((location, backtrace)));
        previous(info);
    }));
}

/// Converts a panic that was caught on this thread into an exception for the caller.
pub(super) fn exception_of_panic(thrown: &(dyn Any + Send)) -> v1::Exception {
    let message = panic_message(thrown);
    let (location, backtrace) = LAST_PANIC
        .take()
        .unwrap_or_else(|| ("unknown location".into(), String::new()));
    v1::Exception {
        message,
        place: location,
        backtrace,
        ..exception(Kind::Panicked)
    }
}

/// The message of a panic.
pub(crate) fn panic_message(thrown: &(dyn Any + Send)) -> String {
    let text = thrown.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| thrown.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}
