//! Waiting for tasks: connections that block in one `XREADGROUP`.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_core::Tid;
use redis::{Value, aio::MultiplexedConnection};
use tokio::time::timeout;

use super::{
    Core,
    fault::Fault,
    keys::Part,
    value::{list, number, text},
};

/// The group of every stream. There is one consumer in it, because the entries are not what is kept: see the head of this engine.
const GROUP: &str = "raddle";
/// How long an answer may take beyond the time it was asked to block.
const MARGIN: Duration = Duration::from_secs(5);

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
    /// By an entry, or by time.
    Up,
    /// The caller has gone. If an entry of this stream woke it, that is still to be passed on.
    Unwanted(Option<String>),
}

impl Core {
    /// Waits until something comes into one of the partitions, for `wait` at most, or until `gone` is.
    pub(super) async fn block(
        self: &Arc<Self>,
        owner: Tid,
        parts: &[Part],
        wait: Duration,
        gone: impl Future<Output = ()>,
    ) -> Result<Woken, Fault> {
        let mut reader = self.reader(owner).await?;
        let probes = reader.ready_for != Some(owner);
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP")
            .arg(GROUP)
            .arg(GROUP)
            .arg("COUNT")
            .arg(1)
            .arg("BLOCK")
            .arg(millis)
            .arg("NOACK")
            .arg("STREAMS");
        read.arg(self.keys.wake(&owner.to_string()));
        parts.iter().for_each(|part| _ = read.arg(&self.keys.part(&part.name)[0]));
        (0..=parts.len()).for_each(|_| _ = read.arg(">"));
        let mut connection = reader.connection.clone();
        let mut reading = std::pin::pin!(timeout(wait + MARGIN, read.query_async::<Value>(&mut connection)));
        let (answer, unwanted) = tokio::select! {
            answer = &mut reading => (answer, false),
            () = gone => {
                self.unblock(reader.id).await;
                (reading.await, true)
            }
        };
        match answer {
            // Who is not even woken by itself would wait for ever, and look as if there were nothing to do.
            Ok(Ok(Value::Nil)) if probes && !unwanted => {
                Err(Fault::Away("the worker's own entry did not come through its stream".into()))
            }
            Ok(Ok(answer)) => {
                reader.ready_for = Some(owner);
                self.readers.put(reader);
                let stream =
                    list(answer).into_iter().next().and_then(|stream| list(stream).into_iter().next()).map(text);
                Ok(if unwanted { Woken::Unwanted(stream) } else { Woken::Up })
            }
            // A connection that may still answer is not used again.
            Ok(Err(error)) => Err(self.link.target.explain(&error)),
            Err(_) => Err(Fault::Away("a blocking read was not answered".into())),
        }
    }

    /// Wakes one other worker in place of one that does not want to be.
    pub(super) async fn pass_on(&self, stream: &str) {
        let mut pipe = redis::pipe();
        pipe.cmd("XADD").arg(stream).arg("NOMKSTREAM").arg("*").arg("m").arg("");
        if let Err(error) = self.link.pipe(pipe).await {
            tracing::debug!(%error, "a wake-up was not passed on");
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
                Ok(_) => self.pass_on(&self.keys.wake(&owner.to_string())).await,
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
