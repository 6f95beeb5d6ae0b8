//! Waiting for tasks: connections that block in one `XREADGROUP`.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_core::Tid;
use redis::{Value, aio::MultiplexedConnection};
use tokio::time::timeout;

use super::{
    Core, SAFETY_INTERVAL,
    fault::Fault,
    keys::Part,
    value::{list, number, text},
};

/// The group of every stream. There is one consumer in it, because the entries are not what is kept: see the head of this engine.
const GROUP: &str = "raddle";
/// How long an answer may take beyond the time it was asked to block.
const MARGIN: Duration = Duration::from_secs(5);

/// How many entries a stream keeps at least: all that they say is that it is worth looking.
const KEPT: u32 = 8;

/// What a blocking read brought.
struct Read {
    is_empty: bool,
    /// The partition's stream whose entry it was.
    by: Option<String>,
}

/// Connections for blocking, each for one at a time.
#[derive(Default)]
pub(super) struct Readers(Mutex<Vec<Reader>>);

/// A connection that blocks.
pub(super) struct Reader {
    connection: MultiplexedConnection,
    /// By which it is unblocked.
    id: u64,
    /// The worker that is known to be woken over it.
    ready_for: Option<Tid>,
}

/// How a wait ended.
pub(super) enum Woken {
    /// By the stream of a partition, by the worker's own, or because it was over.
    By(Option<String>),
    /// The caller has ended it.
    Ended,
}

impl Core {
    /// Waits until something comes into one of the partitions, for `wait` at most, or until `ended` is there.
    pub(super) async fn block(
        self: &Arc<Self>,
        owner: Tid,
        parts: &[Part],
        wait: Duration,
        ended: impl Future<Output = ()>,
    ) -> Result<Woken, Fault> {
        let reader = self.reader(owner).await?;
        let (id, probes) = (reader.id, reader.ready_for != Some(owner));
        let millis = u64::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
        let mut read = redis::cmd("XREADGROUP");
        read.arg(&["GROUP", GROUP, GROUP, "COUNT", "1", "BLOCK"]).arg(millis);
        read.arg("NOACK").arg("STREAMS").arg(self.keys.wake(&owner.to_string()));
        parts.iter().for_each(|part| _ = read.arg(self.keys.ready(&part.name)));
        (0..=parts.len()).for_each(|_| _ = read.arg(">"));
        // On a task of its own: whoever does not wait for it any more leaves it to come to its end.
        let core = Arc::clone(self);
        let mut reading = tokio::spawn(async move { core.read(reader, owner, read, wait + MARGIN).await });
        let read = tokio::select! {
            read = &mut reading => read,
            // An idle server looks only ten times a second whether a wait is over.
            () = tokio::time::sleep(wait), if wait < SAFETY_INTERVAL => {
                self.unblock(id).await;
                reading.await
            }
            () = ended => {
                self.unblock(id).await;
                // An entry that came in the same moment is for another.
                if let Ok(Ok(Read { by: Some(stream), .. })) = reading.await {
                    self.wake(&[stream]).await;
                }
                return Ok(Woken::Ended);
            }
        };
        match read.map_err(|error| Fault::Away(format!("a blocking read failed: {error}")))?? {
            // Who is not even woken by itself would wait for ever, and look as if there were nothing to do.
            Read { is_empty: true, .. } if probes => {
                Err(Fault::Away("the worker's own entry did not come through its stream".into()))
            }
            Read { by, .. } => Ok(Woken::By(by)),
        }
    }

    async fn read(&self, mut reader: Reader, owner: Tid, read: redis::Cmd, within: Duration) -> Result<Read, Fault> {
        let reading = timeout(within, read.query_async::<Value>(&mut reader.connection)).await;
        let entry = match reading {
            Ok(Ok(entry)) => entry,
            // A connection that may still answer is not used again.
            Ok(Err(error)) => return Err(self.link.target.explain(&error)),
            Err(_) => return Err(Fault::Away("a blocking read was not answered".into())),
        };
        let is_empty = entry == Value::Nil;
        if !is_empty {
            reader.ready_for = Some(owner);
        }
        if reader.ready_for == Some(owner) {
            self.readers.put(reader);
        }
        // Its own stream is nobody else's.
        let own = self.keys.wake(&owner.to_string());
        let streams = list(entry).into_iter().filter_map(|stream| list(stream).into_iter().next()).map(text);
        Ok(Read { is_empty, by: streams.into_iter().find(|stream| *stream != own) })
    }

    /// Wakes one worker for each of these streams.
    pub(super) async fn wake(&self, streams: &[String]) {
        if streams.is_empty() {
            return;
        }
        let mut pipe = redis::pipe();
        for stream in streams {
            pipe.cmd("XADD").arg(stream).arg(&["NOMKSTREAM", "MAXLEN"]).arg(KEPT).arg(&["*", "m", ""]);
        }
        // They look by themselves within the safety interval.
        if let Err(error) = self.link.pipe(pipe).await {
            tracing::debug!(%error, "workers were not woken");
        }
    }

    async fn unblock(&self, id: u64) {
        let mut pipe = redis::pipe();
        pipe.cmd("CLIENT").arg("UNBLOCK").arg(id);
        // When it does not arrive, the read ends by itself.
        let _ = self.link.pipe(pipe).await;
    }

    /// A connection that has nothing else to do, with the worker's own stream to be woken by. Its first read has to bring the entry that
    /// is made here: so a worker proves after each new connection that it is woken.
    async fn reader(&self, owner: Tid) -> Result<Reader, Fault> {
        let mut reader = match self.readers.take() {
            Some(reader) => reader,
            None => {
                let mut connection = self.link.target.connect(None).await?;
                let asking = redis::cmd("CLIENT").arg("ID").query_async::<Value>(&mut connection).await;
                let id = number(asking.map_err(|error| self.link.target.explain(&error))?);
                Reader { connection, id, ready_for: None }
            }
        };
        if reader.ready_for != Some(owner) {
            let mut make = redis::cmd("XGROUP");
            make.arg("CREATE").arg(self.keys.wake(&owner.to_string())).arg(GROUP).arg("$").arg("MKSTREAM");
            let made = timeout(MARGIN, make.query_async::<Value>(&mut reader.connection)).await;
            match made {
                Ok(Err(error)) if error.code() != Some("BUSYGROUP") => return Err(self.link.target.explain(&error)),
                Ok(_) => self.wake(&[self.keys.wake(&owner.to_string())]).await,
                Err(_) => return Err(Fault::Away("a connection was not answered".into())),
            }
        }
        Ok(reader)
    }
}

impl Readers {
    fn take(&self) -> Option<Reader> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put(&self, reader: Reader) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
    }
}
