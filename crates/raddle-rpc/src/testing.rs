//! What tests of several parts have in common.

use std::{
    io,
    sync::{Arc, Mutex},
};

/// What was logged while this was done.
pub(crate) fn logged(deed: impl FnOnce()) -> String {
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&log);
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || Log(Arc::clone(&writer)))
        .finish();
    tracing::subscriber::with_default(subscriber, deed);
    String::from_utf8(log.lock().unwrap().clone()).unwrap()
}

struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, said: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(said)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
