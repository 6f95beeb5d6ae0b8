//! The connection for calls. It reconnects when it breaks, and sends a call without a reply again
//! under the same number: the scripts store their replies.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use raddle_model::ExponentialBackoff;
use redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, ServerErrorKind, Value, aio::MultiplexedConnection,
};
use tokio::time::{Instant, timeout};

use super::{
    failure::Fault,
    open::{self, Server},
    schema::Keys,
    script::{self, Script},
    target::ServerTarget,
    url::Options,
};
use raddle_broker::{Error, Result};

/// How long a reply is stored beyond the time for which its caller waits.
const REPLY_RETENTION: Duration = Duration::from_secs(600);
/// The limit for patient callers: stored replies use the server's memory.
const MAX_REPLY_RETENTION: Duration = Duration::from_secs(3600);
/// Shorter outages are not logged.
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// The most redirections in a row between nodes of a cluster.
const REDIRECTS: u32 = 5;

/// A request.
#[derive(Clone, Copy)]
enum Request<'a> {
    Eval(&'a Eval),
    /// Commands that are idempotent.
    Pipe(&'a Pipeline),
}

/// A script with its arguments.
struct Eval {
    script: &'static Script,
    command: Cmd,
}

/// A script under a number: however often it is sent, it runs once.
pub(super) struct ScriptCall {
    eval: Eval,
    slot: u32,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    /// When the server has performed it.
    Done,
    /// When it is as durable as the URL requires.
    Durable,
}

/// A connection that is re-established as often as needed.
pub(super) struct ServerConnection {
    pub(super) target: Arc<ServerTarget>,
    pub(super) keys: Arc<Keys>,
    live: tokio::sync::Mutex<Option<LiveConnection>>,
    patience: Duration,
    /// The response timeout.
    response_timeout: Duration,
    /// Identifies the calls of this handle.
    client: u64,
    slots: Mutex<Slots>,
    next: AtomicU64,
}

#[derive(Clone)]
struct LiveConnection {
    connection: MultiplexedConnection,
    server: Arc<Server>,
    generation: u64,
}

/// Slots for stored replies. A free one is used again, so there are never more than concurrent
/// calls.
#[derive(Default)]
struct Slots {
    free: Vec<u32>,
    made: u32,
}

/// Growing pauses with jitter, so that clients that lost a server at the same time do not all
/// return at once.
pub(super) struct ReconnectBackoff {
    pauses: ExponentialBackoff,
    failures: u32,
    until: Instant,
}

impl Request<'_> {
    /// The effect that happens twice if the request is sent again under another number.
    fn doubles(self) -> Option<&'static str> {
        match self {
            Self::Eval(eval) => eval.script.doubles,
            Self::Pipe(_) => None,
        }
    }
}

impl ServerConnection {
    /// Connects and inspects the server.
    pub(super) async fn open(target: Arc<ServerTarget>, keys: Arc<Keys>) -> Result<Self> {
        let options = &target.address.options;
        let (patience, response_timeout) = (options.patience(), options.response_timeout);
        let (waits_to_open, mut backoff) = (
            options.waits_to_open,
            ReconnectBackoff::new(options, patience),
        );
        let link = Self::lazy(target, keys, patience, response_timeout);
        while let Err(fault) = link.live().await {
            // A command whose server does not run fails at once. A service waits: it may be started
            // before its server, and sentinels may be about to elect a new master.
            let waits = fault.may_pass()
                && backoff.has_time_left()
                && (waits_to_open || link.target.has_master().await);
            if !waits {
                return Err(link.give_up(fault));
            }
            link.target.report_away(&fault, Duration::ZERO);
            backoff.pause().await;
        }
        Ok(link)
    }

    /// A connection that is opened by its first call.
    pub(super) fn lazy(
        target: Arc<ServerTarget>,
        keys: Arc<Keys>,
        patience: Duration,
        response_timeout: Duration,
    ) -> Self {
        Self {
            target,
            keys,
            live: tokio::sync::Mutex::default(),
            patience,
            response_timeout,
            client: random(),
            slots: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    /// The most bytes stored of each output stream of an attempt.
    pub(super) fn max_output(&self) -> u64 {
        self.target.address.options.max_output
    }

    /// The server's report from the time of the connection.
    pub(super) async fn server(&self) -> Result<Arc<Server>> {
        self.live()
            .await
            .map(|live| live.server)
            .map_err(|fault| self.give_up(fault))
    }

    /// Runs a script that writes.
    pub(super) async fn change<T: FromRedisValue>(
        &self,
        script: &'static Script,
        args: Vec<Vec<u8>>,
        sure: Certainty,
    ) -> Result<T> {
        let call = self.call(script, args);
        let answer = self.send_call(&call, sure).await;
        self.end(&call, answer)
    }

    /// Assigns a number to a script call.
    pub(super) fn call(&self, script: &'static Script, args: Vec<Vec<u8>>) -> ScriptCall {
        let slot = self.take_slot();
        let number = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let stored_reply = self
            .patience
            .min(MAX_REPLY_RETENTION)
            .saturating_add(REPLY_RETENTION)
            .as_secs();
        let place = format!("{:016x}:{slot}:{stored_reply}", self.client);
        ScriptCall {
            eval: self.eval(script, [place, number], args),
            slot,
        }
    }

    /// Sends a script call, which may have been sent before.
    pub(super) async fn send_call(&self, call: &ScriptCall, sure: Certainty) -> Result<Value> {
        self.send_with_retries(Request::Eval(&call.eval), sure)
            .await
    }

    /// Parses the reply to a call, and frees its slot.
    pub(super) fn end<T: FromRedisValue>(
        &self,
        call: &ScriptCall,
        answer: Result<Value>,
    ) -> Result<T> {
        // Not if the caller is gone or the outcome is unknown: the call may still run later and
        // would overwrite the slot's next reply.
        if !matches!(
            answer,
            Err(Error::Unreachable { .. } | Error::Unanswered { .. } | Error::Unconfirmed { .. })
        ) {
            self.slots
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .free
                .push(call.slot);
        }
        self.parse(answer?)
    }

    /// Runs a script that is idempotent.
    pub(super) async fn run_idempotent<T: FromRedisValue>(
        &self,
        script: &'static Script,
        args: Vec<Vec<u8>>,
    ) -> Result<T> {
        let eval = self.eval(script, Default::default(), args);
        self.parse(
            self.send_with_retries(Request::Eval(&eval), Certainty::Done)
                .await?,
        )
    }

    /// Sends commands and returns their replies in order. An atomic pipeline only reads and is sent
    /// as a script, because a server that is out of memory refuses everything after `MULTI`, even
    /// reads.
    pub(super) async fn query<T: FromRedisValue>(&self, pipe: &Pipeline) -> Result<T> {
        if pipe.is_transaction() {
            return self
                .run_idempotent(&script::READ, pipe.cmd_iter().flat_map(words).collect())
                .await;
        }
        self.parse(
            self.send_with_retries(Request::Pipe(pipe), Certainty::Done)
                .await?,
        )
    }

    /// Sends one command.
    pub(super) async fn read<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let mut pipe = redis::pipe();
        pipe.add_command(command.clone());
        let (answer,) = self.query(&pipe).await?;
        Ok(answer)
    }

    pub(super) fn parse<T: FromRedisValue>(&self, answer: Value) -> Result<T> {
        let odd = |error| Error::Server {
            place: self.target.place(),
            reason: format!("unexpected reply: {error}"),
        };
        redis::from_redis_value(answer).map_err(odd)
    }

    /// A script with its arguments; `stored_reply` is the slot for its reply and its number.
    fn eval(&self, script: &'static Script, stored_reply: [String; 2], args: Vec<Vec<u8>>) -> Eval {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(script.code.get_hash())
            .arg(2)
            .arg(self.keys.named("meta"))
            .arg(self.keys.absent());
        command.arg(self.keys.prefix()).arg(&stored_reply).arg(args);
        Eval { script, command }
    }

    /// Sends a request until there is a reply, or until the server has been away for too long.
    async fn send_with_retries(&self, request: Request<'_>, sure: Certainty) -> Result<Value> {
        let mut backoff = ReconnectBackoff::new(&self.target.address.options, self.patience);
        let mut may_be_performed = false;
        loop {
            let mut missing = None;
            let fault = match self.live().await {
                Ok(live) => match self.send(&live, request, sure).await {
                    Ok((answer, None)) => return Ok(answer),
                    // Sent again, the script returns the stored reply, and the wait starts anew.
                    Ok((_, Some(reason))) => Fault::Away(missing.insert(reason).clone()),
                    Err(fault) => {
                        may_be_performed |= matches!(fault, Fault::Lost(_));
                        if fault.may_pass() {
                            self.forget(live.generation).await;
                        }
                        fault
                    }
                },
                Err(fault) => fault,
            };
            if fault.may_pass() && backoff.has_time_left() {
                self.target.report_away(&fault, REPORT_AFTER);
            }
            match (fault, missing) {
                (fault, _) if fault.may_pass() && backoff.pause().await => {}
                (_, Some(reason)) => {
                    return Err(Error::Unconfirmed {
                        place: self.target.place(),
                        reason,
                    });
                }
                (fault, None) => {
                    return Err(match (self.give_up(fault), request.doubles()) {
                        (Error::Unreachable { place, reason, .. }, Some(what))
                            if may_be_performed =>
                        {
                            Error::Unanswered {
                                place,
                                what: what.into(),
                                reason,
                            }
                        }
                        // An error this time says nothing about the time before.
                        (error, Some(what)) if may_be_performed => {
                            let (place, reason) = (self.target.place(), error.to_string());
                            Error::Unanswered {
                                place,
                                what: what.into(),
                                reason,
                            }
                        }
                        (error, _) => error,
                    });
                }
            }
        }
    }

    /// Sends a request once. Returns the reply, and why it is less durable than required, if it is.
    async fn send(
        &self,
        live: &LiveConnection,
        request: Request<'_>,
        sure: Certainty,
    ) -> Result<(Value, Option<String>), Fault> {
        let mut connection = live.connection.clone();
        let answer = match request {
            Request::Pipe(pipe) => pipe.query_async::<Value>(&mut connection).await,
            Request::Eval(eval) => match eval.command.query_async(&mut connection).await {
                // After a restart or `SCRIPT FLUSH` the server needs the script again.
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    match eval.script.code.load_async(&mut connection).await {
                        Ok(_) => eval.command.query_async(&mut connection).await,
                        Err(error) => Err(error),
                    }
                }
                answer => answer,
            },
        };
        let answer = answer.map_err(|error| self.target.explain(&error))?;
        let missing = match sure {
            Certainty::Done => None,
            Certainty::Durable => self.wait_for_copies(&mut connection).await?,
        };
        Ok((answer, missing))
    }

    /// Waits until the writes of this connection are as durable as the URL requires, and returns
    /// what is missing.
    async fn wait_for_copies(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Option<String>, Fault> {
        let options = &self.target.address.options;
        let millis = u64::try_from(options.response_timeout.as_millis() / 2)
            .unwrap_or(u64::MAX)
            .max(1);
        let replicas = options.wait_replicas;
        let explain = |error| self.target.explain(&error);
        let (have, synced) = if options.wait_aof {
            let mut wait = redis::cmd("WAITAOF");
            wait.arg(1).arg(replicas).arg(millis);
            let (synced, have): (u32, u32) = wait.query_async(connection).await.map_err(explain)?;
            (have, synced > 0)
        } else if replicas > 0 {
            let mut wait = redis::cmd("WAIT");
            wait.arg(replicas).arg(millis);
            (wait.query_async(connection).await.map_err(explain)?, true)
        } else {
            return Ok(None);
        };
        Ok(match (have >= replicas, synced) {
            (true, true) => None,
            (true, false) => Some("the server has not synced it to its disk".into()),
            (false, _) => Some(format!("{have} of {replicas} replicas have it")),
        })
    }

    /// The connection, opened if there is none.
    async fn live(&self) -> Result<LiveConnection, Fault> {
        let mut held = self.live.lock().await;
        if let Some(live) = &*held {
            return Ok(live.clone());
        }
        let mut redirects = 0;
        let live = loop {
            let node = self.target.node();
            match self.connect().await {
                Err(fault)
                    if fault.may_pass() && self.target.node() != node && redirects < REDIRECTS =>
                {
                    redirects += 1
                }
                outcome => break outcome?,
            }
        };
        self.target.report_back();
        *held = Some(live.clone());
        Ok(live)
    }

    async fn connect(&self) -> Result<LiveConnection, Fault> {
        let connecting = self.target.connect(Some(self.response_timeout));
        let Ok(connected) = timeout(self.patience, connecting).await else {
            return Err(Fault::Away("no connection in time".into()));
        };
        let mut connection = connected?;
        let server = open::inspect(&mut connection, &self.target, &self.keys).await?;
        Ok(LiveConnection {
            connection,
            server: Arc::new(server),
            generation: random(),
        })
    }

    async fn forget(&self, generation: u64) {
        let mut held = self.live.lock().await;
        held.take_if(|live| live.generation == generation);
    }

    pub(super) fn give_up(&self, fault: Fault) -> Error {
        match fault {
            Fault::Final(error) => *error,
            Fault::Away(reason) | Fault::Lost(reason) => Error::Unreachable {
                place: self.target.place(),
                reason,
                down: false,
            },
            Fault::Down(reason) => Error::Unreachable {
                place: self.target.place(),
                reason,
                down: true,
            },
        }
    }

    fn take_slot(&self) -> u32 {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.free.pop().unwrap_or_else(|| {
            slots.made += 1;
            slots.made
        })
    }
}

impl ScriptCall {
    pub(super) fn command(&self) -> &Cmd {
        &self.eval.command
    }
}

impl ReconnectBackoff {
    /// Pauses as set by the URL, for `patience` from now on.
    pub(super) fn new(options: &Options, patience: Duration) -> Self {
        let pauses = ExponentialBackoff::new(options.initial, options.max);
        Self {
            pauses,
            failures: 0,
            until: Instant::now() + patience,
        }
    }

    /// Whether there is time for another try.
    fn has_time_left(&self) -> bool {
        Instant::now() < self.until
    }

    /// Pauses before the next try; `false` if there is no time left.
    pub(super) async fn pause(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.until {
            return false;
        }
        self.failures += 1;
        tokio::time::sleep(
            self.pauses
                .jittered(self.failures, random())
                .min(self.until - now),
        )
        .await;
        true
    }
}

/// A command as `read.lua` expects it: the number of words, and the words.
fn words(command: &Cmd) -> Vec<Vec<u8>> {
    let words = command.args_iter().map(|word| match word {
        redis::Arg::Simple(word) => word.to_vec(),
        // A cursor; the scan starts at 0.
        _ => b"0".to_vec(),
    });
    std::iter::once(words.len().to_string().into_bytes())
        .chain(words)
        .collect()
}

/// A random number.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()))
}
