//! The connection that calls go over. It is made anew when it breaks, and a call whose outcome is not known is sent again under the same
//! number: the scripts remember what they answered.

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

/// How long an answer is remembered at least, after its call was given up by the most patient.
const REMEMBERED: Duration = Duration::from_secs(600);
/// However patient a caller is: answers take memory of the server.
const LONGEST_REMEMBERED: Duration = Duration::from_secs(3600);
/// A server that is away for less than this is not reported.
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// How often one node of a cluster may name another before one of them is right.
const REDIRECTS: u32 = 5;

/// What is sent.
#[derive(Clone, Copy)]
enum Request<'a> {
    Eval(&'a Eval),
    /// Commands that change nothing, or nothing more when they come twice.
    Pipe(&'a Pipeline),
}

/// A script, as it is sent.
struct Eval {
    script: &'static Script,
    command: Cmd,
}

/// A script that changes something, under a number: however often it is sent, it is done once.
pub(super) struct ScriptCall {
    eval: Eval,
    slot: u32,
}

/// How sure an answer has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    /// Done on the server.
    Done,
    /// As durable as the URL asks for.
    Durable,
}

/// One connection, made again as often as it takes.
pub(super) struct ServerConnection {
    pub(super) target: Arc<ServerTarget>,
    pub(super) keys: Arc<Keys>,
    live: tokio::sync::Mutex<Option<LiveConnection>>,
    patience: Duration,
    /// How long one answer may take.
    answers_within: Duration,
    /// Sets the calls of this handle apart from those of all others.
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

/// Slots for answers. One that is free again is used again, so there are no more than calls at the same time.
#[derive(Default)]
struct Slots {
    free: Vec<u32>,
    made: u32,
}

/// Pauses that grow, with some chance in them so that clients that lost a server together do not return together.
pub(super) struct ReconnectBackoff {
    pauses: ExponentialBackoff,
    failures: u32,
    until: Instant,
}

impl Request<'_> {
    /// What there would be twice if it were asked for again under another number.
    fn doubles(self) -> Option<&'static str> {
        match self {
            Self::Eval(eval) => eval.script.doubles,
            Self::Pipe(_) => None,
        }
    }
}

impl ServerConnection {
    /// Makes the first connection, and looks at the server.
    pub(super) async fn open(target: Arc<ServerTarget>, keys: Arc<Keys>) -> Result<Self> {
        let options = &target.address.options;
        let (patience, answers_within) = (options.patience(), options.response_timeout);
        let (waits_to_open, mut backoff) = (
            options.waits_to_open,
            ReconnectBackoff::new(options, patience),
        );
        let link = Self::lazy(target, keys, patience, answers_within);
        while let Err(fault) = link.live().await {
            // A command that names a server which is not there reports it at once. A service may be started before its server, and sentinels may be
            // about to name another master.
            let waits = fault.may_pass()
                && backoff.goes_on()
                && (waits_to_open || link.target.has_master().await);
            if !waits {
                return Err(link.give_up(fault));
            }
            link.target.report_away(&fault, Duration::ZERO);
            backoff.pause().await;
        }
        Ok(link)
    }

    /// A link that connects with its first call.
    pub(super) fn lazy(
        target: Arc<ServerTarget>,
        keys: Arc<Keys>,
        patience: Duration,
        answers_within: Duration,
    ) -> Self {
        Self {
            target,
            keys,
            live: tokio::sync::Mutex::default(),
            patience,
            answers_within,
            client: random(),
            slots: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    /// How many bytes of each stream of an attempt are kept.
    pub(super) fn max_output(&self) -> u64 {
        self.target.address.options.max_output
    }

    /// What is known of the server.
    pub(super) async fn server(&self) -> Result<Arc<Server>> {
        self.live()
            .await
            .map(|live| live.server)
            .map_err(|fault| self.give_up(fault))
    }

    /// Runs a script that changes something.
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

    /// Gives a script its number.
    pub(super) fn call(&self, script: &'static Script, args: Vec<Vec<u8>>) -> ScriptCall {
        let slot = self.take_slot();
        let number = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let remembered = self
            .patience
            .min(LONGEST_REMEMBERED)
            .saturating_add(REMEMBERED)
            .as_secs();
        let place = format!("{:016x}:{slot}:{remembered}", self.client);
        ScriptCall {
            eval: self.eval(script, [place, number], args),
            slot,
        }
    }

    /// Runs a script that has its number, and may have been run already.
    pub(super) async fn send_call(&self, call: &ScriptCall, sure: Certainty) -> Result<Value> {
        self.ask(Request::Eval(&call.eval), sure).await
    }

    /// Reads an answer to a call.
    pub(super) fn end<T: FromRedisValue>(
        &self,
        call: &ScriptCall,
        answer: Result<Value>,
    ) -> Result<T> {
        // Not when the caller has gone, or nobody knows what became of the call: it may still be under way, and its slot must not be
        // used by another.
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

    /// Runs a script that changes nothing, or nothing more when it comes twice.
    pub(super) async fn look<T: FromRedisValue>(
        &self,
        script: &'static Script,
        args: Vec<Vec<u8>>,
    ) -> Result<T> {
        let eval = self.eval(script, Default::default(), args);
        self.parse(self.ask(Request::Eval(&eval), Certainty::Done).await?)
    }

    /// Sends commands, and gives their answers in order. An atomic pipeline only reads, and is sent as a script: a server that is out of memory refuses
    /// whatever comes after `MULTI`, reads too.
    pub(super) async fn query<T: FromRedisValue>(&self, pipe: &Pipeline) -> Result<T> {
        if pipe.is_transaction() {
            return self
                .look(&script::READ, pipe.cmd_iter().flat_map(words).collect())
                .await;
        }
        self.parse(self.ask(Request::Pipe(pipe), Certainty::Done).await?)
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
            reason: format!("an odd answer: {error}"),
        };
        redis::from_redis_value(answer).map_err(odd)
    }

    /// A script with all that it is sent with; `remembered` is where its answer is to be kept, and its number.
    fn eval(&self, script: &'static Script, remembered: [String; 2], args: Vec<Vec<u8>>) -> Eval {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(script.code.get_hash())
            .arg(2)
            .arg(self.keys.of("meta"))
            .arg(self.keys.absent());
        command.arg(self.keys.prefix()).arg(&remembered).arg(args);
        Eval { script, command }
    }

    /// Sends a request until it is answered, or until the server has been away for too long.
    async fn ask(&self, request: Request<'_>, sure: Certainty) -> Result<Value> {
        let mut backoff = ReconnectBackoff::new(&self.target.address.options, self.patience);
        let mut may_be_done = false;
        loop {
            let mut lacks = None;
            let fault = match self.live().await {
                Ok(live) => match self.send(&live, request, sure).await {
                    Ok((answer, None)) => return Ok(answer),
                    // Sent again it finds the answer of the first time, and waits once more.
                    Ok((_, Some(reason))) => Fault::Away(lacks.insert(reason).clone()),
                    Err(fault) => {
                        may_be_done |= matches!(fault, Fault::Lost(_));
                        if fault.may_pass() {
                            self.forget(live.generation).await;
                        }
                        fault
                    }
                },
                Err(fault) => fault,
            };
            if fault.may_pass() && backoff.goes_on() {
                self.target.report_away(&fault, REPORT_AFTER);
            }
            match (fault, lacks) {
                (fault, _) if fault.may_pass() && backoff.pause().await => {}
                (_, Some(reason)) => {
                    return Err(Error::Unconfirmed {
                        place: self.target.place(),
                        reason,
                    });
                }
                (fault, None) => {
                    return Err(match (self.give_up(fault), request.doubles()) {
                        (Error::Unreachable { place, reason, .. }, Some(what)) if may_be_done => {
                            Error::Unanswered {
                                place,
                                what: what.into(),
                                reason,
                            }
                        }
                        // Refused this time, which says nothing about the time before.
                        (error, Some(what)) if may_be_done => {
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

    /// Sends a request once. Gives the answer, and why that is not as durable as the URL asks for, if it is not.
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
                // A server that was started anew, or whose scripts were flushed, is sent the script again.
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
        let lacks = match sure {
            Certainty::Done => None,
            Certainty::Durable => self.wait_for_copies(&mut connection).await?,
        };
        Ok((answer, lacks))
    }

    /// Waits until what this connection wrote is where the URL wants it to be, and says where it is not.
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
            (true, false) => Some("its disk has not".into()),
            (false, _) => Some(format!("{have} of {replicas} replicas have it")),
        })
    }

    /// The connection, made if there is none.
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
        let connecting = self.target.connect(Some(self.answers_within));
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
    /// Pauses as the URL has them, for `patience` from now.
    pub(super) fn new(options: &Options, patience: Duration) -> Self {
        let pauses = ExponentialBackoff::new(options.initial, options.max);
        Self {
            pauses,
            failures: 0,
            until: Instant::now() + patience,
        }
    }

    /// Whether there is to be another try.
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Waits before the next try; `false` if there is to be none.
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

/// A command as `read.lua` takes it: how many words it has, and the words.
fn words(command: &Cmd) -> Vec<Vec<u8>> {
    let words = command.args_iter().map(|word| match word {
        redis::Arg::Simple(word) => word.to_vec(),
        // A cursor, at its beginning.
        _ => b"0".to_vec(),
    });
    std::iter::once(words.len().to_string().into_bytes())
        .chain(words)
        .collect()
}

/// A number that nobody else has.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()))
}
