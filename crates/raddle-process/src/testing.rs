//! Log capture for tests of other crates.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::subscriber::DefaultGuard;

/// Captures what this thread logs until the value is dropped.
pub struct LogCapture {
    buffer: LogBuffer,
    _guard: DefaultGuard,
}

impl LogCapture {
    /// Starts capturing.
    pub fn start() -> Self {
        let buffer = LogBuffer::default();
        let writer = buffer.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        Self {
            buffer,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// The lines captured so far.
    pub fn text(&self) -> String {
        let bytes = self.buffer.0.lock().expect("no writer panics").clone();
        String::from_utf8(bytes).expect("log lines are UTF-8")
    }
}

/// Runs `action` and returns what this thread logged meanwhile.
pub fn capture_logs(action: impl FnOnce()) -> String {
    let capture = LogCapture::start();
    action();
    capture.text()
}

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
