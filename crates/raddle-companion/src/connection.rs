//! One connection: its requests run at the same time, and their replies share one buffer.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use raddle_model::host::{HostDecoder, encode_message};
use serde_json::{Value, json};
use tokio::{
    net::UnixStream,
    sync::{Notify, Semaphore},
    task::{AbortHandle, JoinSet},
};

use crate::{
    Failure,
    protocol::{Content, Greeting, Hello, PROTOCOL, Reply, Request, Verb},
    service::Shared,
    socket,
};

/// A request with items waits while more than this is unread.
const MAX_UNREAD: usize = 1024 * 1024;

/// The most items that one message makes room for.
const MAX_CREDIT: usize = 1 << 16;

/// The success of a request: a value, and bytes for those that have some.
pub(crate) type Success = (Value, Option<Vec<u8>>);

/// The replies of a connection that are not written yet.
#[derive(Default)]
pub(crate) struct Outbox {
    bytes: Mutex<Vec<u8>>,
    filled: Notify,
    drained: Notify,
}

/// The sender of one request's replies.
pub(crate) struct Replier {
    id: u64,
    outbox: Arc<Outbox>,
    /// How many items the program has made room for, if the request is a stream with credit.
    pub(crate) credit: Arc<Semaphore>,
}

/// Serves a connection until the program closes it. Requests that are not finished are cancelled.
pub(crate) async fn serve(stream: UnixStream, shared: Arc<Shared>) -> io::Result<()> {
    let outbox = Arc::new(Outbox::default());
    let (version, pid) = (shared.version, std::process::id());
    let hello = Greeting {
        protocol: PROTOCOL,
        version,
        pid,
    };
    outbox.push(&Hello { hello }, None);
    let mut running = Running::default();
    let served = tokio::select! {
        read = read_requests(&stream, &shared, &outbox, &mut running) => read,
        written = write_replies(&stream, &outbox) => written,
    };
    match served {
        // A program may end with replies unread.
        Err(error) if is_closed(&error) => Ok(()),
        served => served,
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

/// The unfinished requests. Dropping it cancels them.
#[derive(Default)]
struct Running {
    tasks: JoinSet<u64>,
    handles: HashMap<u64, RunningRequest>,
}

struct RunningRequest {
    task: AbortHandle,
    credit: Arc<Semaphore>,
}

async fn read_requests(
    stream: &UnixStream,
    shared: &Arc<Shared>,
    outbox: &Arc<Outbox>,
    running: &mut Running,
) -> io::Result<()> {
    let mut decoder = HostDecoder::default();
    let mut passed: VecDeque<OwnedFd> = VecDeque::new();
    loop {
        while let Some((request, payload)) = decoder
            .next_message::<Request>()
            .map_err(io::Error::other)?
        {
            running.begin(request, payload, shared, outbox, &mut passed)?;
        }
        tokio::select! {
            read = socket::read(stream, decoder.buffer(), &mut passed) => if read? == 0 {
                return Ok(());
            },
            Some(ended) = running.tasks.join_next() => if let Ok(id) = ended {
                running.handles.remove(&id);
            },
        }
    }
}

impl Running {
    fn begin(
        &mut self,
        Request { id, verb }: Request,
        payload: Option<Vec<u8>>,
        shared: &Arc<Shared>,
        outbox: &Arc<Outbox>,
        passed: &mut VecDeque<OwnedFd>,
    ) -> io::Result<()> {
        match verb {
            Verb::Connect => {
                let Some(socket) = passed.pop_front() else {
                    return Err(io::Error::other("a request to connect without a socket"));
                };
                shared.connect(socket);
            }
            Verb::Cancel => {
                if let Some(running) = self.handles.remove(&id)
                    && !running.task.is_finished()
                {
                    running.task.abort();
                    let cancelled = Failure::new("cancelled", "the request was cancelled");
                    outbox.push(&reply(id, Content::Error(&cancelled)), None);
                }
            }
            Verb::Credit(items) => {
                if let Some(running) = self.handles.get(&id) {
                    running.credit.add_permits(items.min(MAX_CREDIT));
                }
            }
            verb => {
                let credit = Arc::new(Semaphore::new(0));
                let (shared, replier) = (
                    Arc::clone(shared),
                    Replier {
                        id,
                        outbox: Arc::clone(outbox),
                        credit: Arc::clone(&credit),
                    },
                );
                let task = self.tasks.spawn_local(async move {
                    match perform(&shared, &replier, verb, payload).await {
                        Ok((value, payload)) => {
                            replier.push(Content::Ok(&value), payload.as_deref())
                        }
                        Err(failure) => {
                            replier.push(Content::Error(&failure), failure.value.as_deref())
                        }
                    }
                    replier.id
                });
                self.handles.insert(id, RunningRequest { task, credit });
            }
        }
        Ok(())
    }
}

/// Performs a request.
async fn perform(
    shared: &Shared,
    replier: &Replier,
    verb: Verb,
    payload: Option<Vec<u8>>,
) -> Result<Success, Failure> {
    use crate::{output, run, schedules, tasks};
    #[cfg(not(feature = "pool"))]
    let _ = payload;
    let broker = |number| shared.brokers.get(number);
    match verb {
        Verb::Connect | Verb::Cancel | Verb::Credit(_) => unreachable!("`begin` handles them"),
        Verb::Open {
            queue_url,
            directory,
        } => {
            let (number, url) = shared.brokers.open(queue_url, directory).await?;
            Ok((json!({ "broker": number, "url": url }), None))
        }
        Verb::Submit {
            broker: number,
            tasks,
            parent,
        } => tasks::submit(&*broker(number)?, tasks, parent).await,
        Verb::Run {
            broker: number,
            task,
            parent,
        } => run::run(broker(number)?, task, parent, replier).await,
        Verb::Result {
            broker: number,
            tid,
            timeout_ms,
        } => tasks::result(&*broker(number)?, &tid, timeout_ms, replier).await,
        Verb::Status {
            broker: number,
            tid,
        } => tasks::status(&*broker(number)?, &tid).await,
        Verb::Logs {
            broker: number,
            tid,
            stream,
        } => output::logs(&*broker(number)?, &tid, stream).await,
        Verb::Follow {
            broker: number,
            tid,
        } => output::follow(&*broker(number)?, &tid, replier).await,
        Verb::Control {
            broker: number,
            tid,
            message,
        } => tasks::control(&*broker(number)?, &tid, message).await,
        Verb::Retry {
            broker: number,
            tid,
        } => tasks::retry(&*broker(number)?, &tid).await,
        Verb::Schedule {
            broker: number,
            schedule,
        } => schedules::put(&*broker(number)?, &schedule).await,
        Verb::Unschedule {
            broker: number,
            name,
        } => schedules::remove(&*broker(number)?, &name).await,
        Verb::Schedules { broker: number } => schedules::list(&*broker(number)?).await,
        #[cfg(feature = "pool")]
        Verb::PoolOpen(options) => shared.pools.open(*options, &shared.brokers).await,
        #[cfg(feature = "pool")]
        Verb::PoolClose { pool, timeout_ms } => shared.pools.close(pool, timeout_ms).await,
        #[cfg(feature = "pool")]
        Verb::PoolWorkers { pool } => shared.pools.workers(pool),
        #[cfg(feature = "pool")]
        Verb::Call(options) => crate::calls::call(shared, options, payload, replier).await,
    }
}

fn reply(id: u64, content: Content<'_>) -> Reply<'_> {
    Reply { id, content }
}

impl Replier {
    fn push(&self, content: Content<'_>, payload: Option<&[u8]>) {
        self.outbox.push(&reply(self.id, content), payload);
    }

    /// Sends a remark for people.
    pub(crate) fn note(&self, text: &str) {
        self.push(Content::Note(text), None);
    }

    /// Sends an item. Waits while the program does not read.
    pub(crate) async fn item(&self, value: &Value, payload: Option<&[u8]>) {
        loop {
            let drained = self.outbox.drained.notified();
            if self.outbox.lock().len() < MAX_UNREAD {
                break;
            }
            drained.await;
        }
        self.push(Content::Item(value), payload);
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, message: &impl serde::Serialize, payload: Option<&[u8]>) {
        encode_message(&mut self.lock(), message, payload);
        self.filled.notify_one();
    }
}

/// Writes replies as they come. Those that come during a write go together.
async fn write_replies(stream: &UnixStream, outbox: &Outbox) -> io::Result<()> {
    let mut writing = Vec::new();
    loop {
        outbox.filled.notified().await;
        writing.clear();
        std::mem::swap(&mut writing, &mut *outbox.lock());
        let mut written = 0;
        while written < writing.len() {
            stream.writable().await?;
            written += match stream.try_write(&writing[written..]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                outcome => outcome?,
            };
        }
        if writing.capacity() > MAX_UNREAD {
            writing = Vec::new();
        }
        outbox.drained.notify_waiters();
    }
}
