//! A proxy to the real Docker engine that can be shut, or drop requests to start containers.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

const ENGINE: &str = "/var/run/docker.sock";

#[derive(Clone)]
pub(super) struct EngineProxy {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_shut: bool,
    drops_starts: bool,
    open: Vec<UnixStream>,
}

impl EngineProxy {
    /// Listens at this socket.
    pub(super) fn new(path: &Path) -> Self {
        let proxy = Self {
            path: path.into(),
            state: Arc::default(),
        };
        let (listener, shared) = (UnixListener::bind(path).unwrap(), proxy.clone());
        // The threads end with the test process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let proxy = shared.clone();
                thread::spawn(move || proxy.forward(stream));
            }
        });
        proxy
    }

    /// The value for `DOCKER_HOST`.
    pub(super) fn host(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Refuses new connections, and closes open ones.
    pub(super) fn shut(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_shut = true;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn open(&self) {
        self.state.lock().unwrap().is_shut = false;
    }

    /// Drops requests to start containers; they can still be created.
    pub(super) fn drop_starts(&self) {
        self.state.lock().unwrap().drops_starts = true;
    }

    fn forward(&self, mut client: UnixStream) {
        let mut engine = UnixStream::connect(ENGINE).unwrap();
        {
            let mut state = self.state.lock().unwrap();
            if state.is_shut {
                return;
            }
            state
                .open
                .extend([client.try_clone().unwrap(), engine.try_clone().unwrap()]);
        }
        let (mut from_engine, mut to_client) =
            (engine.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut from_engine, &mut to_client);
            let _ = to_client.shutdown(Shutdown::Both);
        });
        let mut piece = vec![0; 64 << 10];
        while let Ok(len @ 1..) = client.read(&mut piece) {
            let line = piece[..len]
                .split(|byte| *byte == b'\r')
                .next()
                .unwrap_or_default();
            let asks_to_start =
                line.starts_with(b"POST /") && line.windows(7).any(|word| word == b"/start ");
            if asks_to_start && self.state.lock().unwrap().drops_starts {
                continue;
            }
            if engine.write_all(&piece[..len]).is_err() {
                break;
            }
        }
        let _ = engine.shutdown(Shutdown::Both);
    }
}
