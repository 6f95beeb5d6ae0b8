//! Fans changes out: the one tail of the event log, the topics, and the streams of browsers.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, timeout},
};

use super::topic::{LiveFrame, Topic, TopicKey, Topics, render};
use crate::{auth::Caller, state::AppState};

/// The shortest time between two renderings of a topic.
const FRAME: Duration = Duration::from_millis(250);
/// How often topics are rendered without an event: heartbeats of workers are in no log.
const IDLE: Duration = Duration::from_secs(2);
/// The longest wait for an event.
const TAIL_WAIT: Duration = Duration::from_secs(15);
/// How long the tail pauses after an error of the broker.
const RETRY: Duration = Duration::from_secs(1);
/// The longest rendering of a topic: one page must not hold up the others.
const RENDER: Duration = Duration::from_secs(2);
/// How many frames wait for a slow client. A client that is further behind reloads its parts.
const QUEUE: usize = 256;
/// How many events one read of the tail takes.
const EVENTS: u32 = 1_000;
/// The most sessions: each holds a connection.
const MAX_SESSIONS: usize = 1_000;
/// The most screens of one session.
const MAX_SCREENS: usize = 32;

/// Fans changes out to live pages.
#[derive(Default)]
pub(crate) struct Hub {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    sessions: HashMap<u64, ViewerSession>,
    topics: Topics,
    /// The id of the last event that the tail has seen.
    at: u64,
    next_session: u64,
    runs: bool,
}

struct ViewerSession {
    /// Proves that a request about the session comes from its owner.
    secret: String,
    caller: Caller,
    frames: mpsc::Sender<(u64, LiveFrame)>,
    is_behind: bool,
}

/// A stream of frames, each with the id of the last event that it includes. Dropping it ends the
/// session.
pub(super) struct Subscription {
    state: AppState,
    id: u64,
    pub(super) name: String,
    pub(super) frames: mpsc::Receiver<(u64, LiveFrame)>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a session. `None` if there are too many.
pub(super) fn subscribe(state: &AppState, caller: Caller) -> Option<Subscription> {
    let (frames, received) = mpsc::channel(QUEUE);
    let mut inner = state.live.lock();
    if inner.sessions.len() >= MAX_SESSIONS {
        return None;
    }
    inner.next_session += 1;
    let id = inner.next_session;
    let secret = data_encoding::HEXLOWER.encode(&crate::auth::random_bytes()[..16]);
    let name = format!("{id}-{secret}");
    let session = ViewerSession {
        secret,
        caller,
        frames,
        is_behind: false,
    };
    inner.sessions.insert(id, session);
    if !std::mem::replace(&mut inner.runs, true) {
        // Ends when the last session has ended.
        tokio::spawn(run(state.clone()));
    }
    Some(Subscription {
        state: state.clone(),
        id,
        name,
        frames: received,
    })
}

/// Says which screens a session shows. Returns whether there is such a session.
pub(super) fn show(state: &AppState, caller: &Caller, name: &str, screens: Vec<String>) -> bool {
    let mut inner = state.live.lock();
    let Some((id, secret)) = name.split_once('-') else {
        return false;
    };
    let id = id.parse().unwrap_or(0);
    let inner = &mut *inner;
    let is_owner =
        |session: &&ViewerSession| session.secret == secret && session.caller.name == caller.name;
    let Some(session) = inner.sessions.get(&id).filter(is_owner) else {
        return false;
    };
    for topic in inner.topics.values_mut() {
        topic.viewers.retain(|viewer| *viewer != id);
    }
    for screen in screens.into_iter().take(MAX_SCREENS) {
        let key = TopicKey {
            screen,
            viewer: format!("{} {:?}", session.caller.name, session.caller.rights),
        };
        let topic = inner
            .topics
            .entry(key)
            .or_insert_with(|| Topic::new(session.caller.clone()));
        topic.viewers.push(id);
        topic.forget();
    }
    inner.topics.retain(|_, topic| !topic.viewers.is_empty());
    state.live.changed.notify_one();
    true
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut inner = self.state.live.lock();
        inner.sessions.remove(&self.id);
        for topic in inner.topics.values_mut() {
            topic.viewers.retain(|viewer| *viewer != self.id);
        }
        inner.topics.retain(|_, topic| !topic.viewers.is_empty());
        self.state.live.changed.notify_one();
    }
}

/// Follows the log and renders topics, as long as there are sessions.
async fn run(state: AppState) {
    // A panic in a page must not end live updates for good: the next session starts them again.
    let _running = Running(state.clone());
    let tail = tail(&state);
    let frames = send_frames(&state);
    tokio::select! {
        () = tail => {}
        () = frames => {}
        () = state.stopping() => state.live.lock().runs = false,
    }
}

/// Notes that nothing follows the log any more after a panic.
struct Running(AppState);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.live.lock().runs = false;
        }
    }
}

async fn tail(state: &AppState) {
    let mut after = None;
    loop {
        let result = match after {
            None => raddle_broker::Queries::last_event(state.broker())
                .await
                .map(|id| (id, true)),
            Some(after) => {
                let events = state
                    .broker()
                    .events(Some(after), None, EVENTS, TAIL_WAIT)
                    .await;
                events.map(|events| {
                    (
                        events.last().map_or(after, |event| event.id.as_u64()),
                        !events.is_empty(),
                    )
                })
            }
        };
        match result {
            Ok((at, has_moved)) => {
                after = Some(at);
                state.live.lock().at = at;
                if has_moved {
                    state.live.changed.notify_one();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot follow the event log");
                sleep(RETRY).await;
            }
        }
    }
}

async fn send_frames(state: &AppState) {
    loop {
        let begun = Instant::now();
        let (at, topics) = {
            let mut inner = state.live.lock();
            if inner.sessions.is_empty() {
                inner.runs = false;
                return;
            }
            let topics: Vec<(TopicKey, Caller)> = inner
                .topics
                .iter()
                .map(|(key, topic)| (key.clone(), topic.caller.clone()))
                .collect();
            (inner.at, topics)
        };
        for (key, caller) in topics {
            let rendered = timeout(RENDER, render(state, &caller, &key.screen)).await;
            let mut inner = state.live.lock();
            let inner = &mut *inner;
            let Some(topic) = inner.topics.get_mut(&key) else {
                continue;
            };
            let frames = match rendered {
                Ok(Ok(rendered)) => topic.advance(&key.screen, rendered),
                // The subject of the page is gone, or the broker does not answer: a reload says which.
                Ok(Err(_)) | Err(_) => {
                    topic.forget();
                    Vec::new()
                }
            };
            for viewer in &topic.viewers {
                if let Some(session) = inner.sessions.get_mut(viewer) {
                    session.send(at, &frames);
                }
            }
        }
        let _ = timeout(IDLE, state.live.changed.notified()).await;
        // Changes that come closer together than a frame are one frame.
        sleep(FRAME.saturating_sub(begun.elapsed())).await;
    }
}

impl ViewerSession {
    fn send(&mut self, at: u64, frames: &[LiveFrame]) {
        if self.is_behind {
            let resync = LiveFrame {
                event: "resync",
                data: "{}".into(),
            };
            // Still full: the next frame tries again.
            self.is_behind = self.frames.try_send((at, resync)).is_err();
            return;
        }
        for frame in frames {
            if self.frames.try_send((at, frame.clone())).is_err() {
                self.is_behind = true;
                return;
            }
        }
    }
}
