//! Connections that wait for tasks in a blocking `BLPOP`.

use std::{
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use raddle_model::Tid;
use redis::{Cmd, Value, aio::MultiplexedConnection};
use tokio::time::timeout;

use super::{RedisCore, SAFETY_INTERVAL, failure::Fault, schema::Partition};

/// How long a reply may take beyond the blocking time.
const MARGIN: Duration = Duration::from_secs(5);
/// The time to live of a worker's own wake-up list.
const KEPT_SECONDS: u32 = 60;

/// A pool of connections for blocking reads, each for one at a time.
#[derive(Default)]
pub(super) struct Readers(Mutex<Vec<MultiplexedConnection>>);

impl RedisCore {
    /// Blocks until one of the partitions has an element, for `wait` at most, or until `ended`
    /// resolves; then runs `claim` and returns its reply. The server receives both commands before
    /// it blocks, so that a woken worker gets its tasks without another round trip.
    pub(super) async fn block(
        &self,
        owner: Tid,
        partitions: &[Partition],
        wait: Duration,
        claim: &Cmd,
        ended: impl Future<Output = ()>,
    ) -> Result<Value, Fault> {
        let connection = match self.readers.take() {
            Some(connection) => connection,
            None => self.link.target.connect(None).await?,
        };
        let own = self.keys.worker_wakeups(owner);
        let mut read = redis::cmd("BLPOP");
        read.arg(&own);
        partitions
            .iter()
            .for_each(|partition| _ = read.arg(self.keys.partition_wakeups(&partition.name)));
        // In seconds; 0 would mean for ever.
        read.arg(format!("{:.3}", wait.as_secs_f64().max(0.001)));
        let mut pipe = redis::pipe();
        pipe.add_command(read).ignore().add_command(claim.clone());
        let mut blocked = connection.clone();
        let mut reading = pin!(timeout(
            wait + MARGIN,
            pipe.query_async::<(Value,)>(&mut blocked)
        ));
        let over = async {
            tokio::select! {
                // An idle server checks blocked clients only ten times a second, so wake the list
                // ourselves.
                () = tokio::time::sleep(wait), if wait < SAFETY_INTERVAL => {}
                () = ended => {}
            }
        };
        let answer = tokio::select! {
            answer = &mut reading => answer,
            () = over => {
                let mut wake = redis::pipe();
                // The expiry cleans up after a connection that breaks in between.
                wake.atomic().cmd("RPUSH").arg(&own).arg("").cmd("EXPIRE").arg(&own).arg(KEPT_SECONDS);
                // If it does not arrive, the read times out by itself.
                let _ = self.link.query::<Value>(&wake).await;
                reading.await
            }
        };
        // A connection with an outstanding reply is not used again.
        let Ok(answer) = answer else {
            return Err(Fault::Away("no reply to a blocking read".into()));
        };
        let (answer,) = answer.map_err(|error| self.link.target.explain(&error))?;
        self.readers.put(connection);
        Ok(answer)
    }
}

impl Readers {
    fn take(&self) -> Option<MultiplexedConnection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put(&self, connection: MultiplexedConnection) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(connection);
    }
}
