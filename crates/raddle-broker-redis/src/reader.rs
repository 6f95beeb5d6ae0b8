//! Waiting for tasks: connections that block in one `BLPOP`.

use std::{
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use raddle_model::Tid;
use redis::{Cmd, Value, aio::MultiplexedConnection};
use tokio::time::timeout;

use super::{RedisCore, SAFETY_INTERVAL, failure::Fault, schema::Partition};

/// How long an answer may take beyond the time it was asked to block.
const MARGIN: Duration = Duration::from_secs(5);
/// How long a list is kept that the worker may not have read.
const KEPT_SECONDS: u32 = 60;

/// Connections for blocking, each for one at a time.
#[derive(Default)]
pub(super) struct Readers(Mutex<Vec<MultiplexedConnection>>);

impl RedisCore {
    /// Waits until something comes into one of the partitions, for `wait` at most, or until `ended` is there; then sends `claim`, whose answer
    /// this is. The server has both before it blocks, so that a worker that is woken has its tasks without another round trip.
    pub(super) async fn block(
        &self,
        owner: Tid,
        parts: &[Partition],
        wait: Duration,
        claim: &Cmd,
        ended: impl Future<Output = ()>,
    ) -> Result<Value, Fault> {
        let connection = match self.readers.take() {
            Some(connection) => connection,
            None => self.link.target.connect(None).await?,
        };
        let own = self.keys.wake(owner);
        let mut read = redis::cmd("BLPOP");
        read.arg(&own);
        parts
            .iter()
            .for_each(|part| _ = read.arg(self.keys.ready(&part.name)));
        // In seconds, of which 0 would be for ever.
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
                // An idle server looks only ten times a second whether a wait is over.
                () = tokio::time::sleep(wait), if wait < SAFETY_INTERVAL => {}
                () = ended => {}
            }
        };
        let answer = tokio::select! {
            answer = &mut reading => answer,
            () = over => {
                let mut wake = redis::pipe();
                // A list without a time to live would stay behind a connection that breaks in between.
                wake.atomic().cmd("RPUSH").arg(&own).arg("").cmd("EXPIRE").arg(&own).arg(KEPT_SECONDS);
                // When it does not arrive, the read ends by itself.
                let _ = self.link.query::<Value>(&wake).await;
                reading.await
            }
        };
        // A connection that may still answer is not used again.
        let Ok(answer) = answer else {
            return Err(Fault::Away("a blocking read was not answered".into()));
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
