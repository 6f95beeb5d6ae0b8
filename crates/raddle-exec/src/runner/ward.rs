//! A runner that *is* a worker: a process of its own for one task, forked by a zygote, registered and spoken for by whoever asked for it.
//!
//! Its keeper claims for it, renews its lease and writes its result, for many wards at once, which is why a ward costs so little. A keeper
//! that lets go of it says so. One that is gone without a word was killed, and then the ward goes on alone: with an attempt by itself, on a
//! thread of its own, because what it has sent and nobody has made safe is still here; without one as a worker like any other, which is
//! another program.
//!
//! No attempt is begun after there is a second thread: what is forked from a process with threads is no whole process.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    thread::{self, JoinHandle},
};

use raddle_core::Tid;

use super::{
    Call, FAULT, Runner,
    child::Stack,
    control::{Control, Hangup},
    cradle::Cradle,
    program::inherited_environment,
    settings::FORKED_TITLE,
    signals::Signals,
};
use crate::{
    FencePage, Heeded, Prefork,
    frame::{Kept, Malformed, Start, ToRunner, put_asked},
    sys, title,
};

/// What becomes of a ward whose keeper was killed.
pub struct Succession {
    /// Becomes another program; returns only if that fails. For a ward that has nothing to run.
    pub otherwise: Box<dyn Fn() -> io::Error>,
    /// Sees to the attempt that is under way, on a thread of its own, and returns when that is over and written.
    pub heir: Box<dyn FnOnce(Legacy) + Send>,
}

/// An attempt whose keeper was killed.
#[derive(Debug)]
pub struct Legacy {
    /// The worker that has it.
    pub worker: Tid,
    /// Its task.
    pub tid: Tid,
    /// Its number.
    pub attempt: u32,
    /// What has been made of its answers already.
    pub heeded: Heeded,
    /// The runner, which tells again what may have been lost. It has begun.
    pub runner: Prefork,
}

/// What all wards of a zygote have in common, made once.
pub(crate) struct Nest {
    null: File,
    inherited: Arc<[CString]>,
}

/// A process that was forked to be a ward, and is not one yet.
pub struct Newborn {
    pub(crate) socket: OwnedFd,
    pub(crate) fence: OwnedFd,
    pub(crate) nest: Arc<Nest>,
}

/// What a runner has to know to be a ward.
pub(super) struct Ward {
    /// The worker that it is, once it was told.
    worker: Option<Tid>,
    heeded: Heeded,
    succession: Option<Succession>,
    heir: Option<JoinHandle<()>>,
    /// Somebody wants it to end, and it has said so.
    is_asked: bool,
}

impl Nest {
    /// Prepares this process for what it will fork: nothing but standard error is left of what its parent had open.
    pub(crate) fn prepare() -> io::Result<Self> {
        let null = super::open_null()?;
        for number in 0..2 {
            drop(super::take(number, &null)?);
        }
        super::keep_stderr(&null)?;
        Signals::reset()?;
        Ok(Self { null, inherited: inherited_environment().into() })
    }
}

impl Newborn {
    /// Is a ward until its task is over, or it is not needed. Returns its exit code.
    pub fn live(self, call: Option<Call>, succession: Succession) -> u8 {
        let Self { socket, fence, nest } = self;
        let set_up = || -> io::Result<Runner> {
            let fence = Some(FencePage::from_fd(fence)?);
            let signals = Signals::listen()?;
            sys::set_subreaper()?;
            sys::wake_when_parent_dies();
            Ok(Runner {
                control: Control::retaining(socket)?,
                signals,
                fence,
                null: nest.null.try_clone()?,
                stack: Stack::new()?,
                inherited: Arc::clone(&nest.inherited),
                cradle: call.map(Cradle::make),
                buffers: Vec::new(),
                title_idle: FORKED_TITLE.into(),
                delegation: None,
                ward: Some(Ward {
                    worker: None,
                    heeded: Heeded::default(),
                    succession: Some(succession),
                    heir: None,
                    is_asked: false,
                }),
            })
        };
        let code = match set_up() {
            Ok(runner) => runner.live(),
            Err(error) => {
                eprintln!("raddle: the worker could not be set up: {error}");
                FAULT
            }
        };
        code as u8
    }
}

impl Ward {
    pub(super) fn named(&mut self, worker: Tid) {
        self.worker = Some(worker);
    }

    /// Whether it can be another worker. What it said of one that was asked to end would be heard of the next.
    fn may_rest(&self) -> bool {
        self.heir.is_none() && !self.is_asked
    }
}

/// The exit code of a ward that could not see its task through.
const FAILED: i32 = 1;

/// What a ward does when its task is written.
enum Parting {
    Leave,
    Rest,
}

impl Runner {
    /// A ward's life: one attempt for each worker that it is. Returns the exit code.
    fn live(mut self) -> i32 {
        loop {
            let (start, stdin) = match self.wait_for_start() {
                Ok(Some(found)) => found,
                Ok(None) | Err(Hangup::Left) => return 0,
                Err(Hangup::Closed | Hangup::Broken) => return self.go_on_otherwise(),
                Err(Hangup::Malformed(error)) => return super::malformed(&error),
            };
            let end = self.attempt(&start, stdin).and_then(|()| self.wait_for_parting(&start));
            match end {
                Ok(Parting::Rest) if self.ward.as_ref().is_some_and(Ward::may_rest) => self.rest(),
                Ok(_) | Err(Hangup::Left) => {
                    // It has said all that there is to say, and may still be leaving the registry.
                    let heir = self.ward.and_then(|ward| ward.heir);
                    return heir.map_or(0, |heir| heir.join().map_or(FAILED, |()| 0));
                }
                Err(Hangup::Closed) => return FAILED,
                Err(Hangup::Broken) => return super::settings::BROKEN,
                Err(Hangup::Malformed(error)) => return super::malformed(&error),
            }
        }
    }

    /// It is no worker until it is told which.
    fn rest(&mut self) {
        self.control.forget();
        self.title_idle = FORKED_TITLE.into();
        title::set(FORKED_TITLE);
        if let Some(ward) = &mut self.ward {
            (ward.worker, ward.heeded) = (None, Heeded::default());
        }
    }

    /// Goes on without a keeper, and without a task. One that is no worker has nothing to go on with.
    fn go_on_otherwise(self) -> i32 {
        // What becomes of this process waits for no cradle.
        drop(self.cradle);
        let Some(ward) = self.ward.filter(|ward| ward.worker.is_some()) else { return 0 };
        let Some(succession) = ward.succession else { return FAILED };
        let error = (succession.otherwise)();
        eprintln!("raddle: a worker that has lost its spawner cannot go on: {error}");
        FAILED
    }

    /// What it has done is being written; until that is safe it is kept here.
    fn wait_for_parting(&mut self, start: &Start) -> Result<Parting, Hangup> {
        loop {
            match self.await_word() {
                Err(Hangup::Closed) => self.bequeath(start)?,
                outcome => return outcome,
            }
        }
    }

    /// Returns when nobody needs what it keeps.
    fn await_word(&mut self) -> Result<Parting, Hangup> {
        loop {
            while let Some(frame) = self.control.next()? {
                match frame {
                    ToRunner::Leave => return Ok(Parting::Leave),
                    ToRunner::Rest => return Ok(Parting::Rest),
                    ToRunner::Kept(kept) => self.kept(kept),
                    // Nothing begins before it has rested.
                    ToRunner::Start(_) | ToRunner::Stdin(_) => return Err(Hangup::Malformed(Malformed::OutOfTurn)),
                    // It was about the attempt that has just ended.
                    _ => {}
                }
            }
            let signals = libc::pollfd { fd: self.signals.raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut fds = [self.control.pollfd(), signals];
            sys::poll(&mut fds, None).map_err(|_| Hangup::Closed)?;
            if fds[1].revents != 0 {
                self.asked(self.signals.read().end);
            }
            if fds[0].revents & libc::POLLOUT != 0 {
                self.control.flush();
            }
            if fds[0].revents & !libc::POLLOUT != 0 {
                self.control.read()?;
            }
        }
    }

    pub(super) fn is_ward(&self) -> bool {
        self.ward.is_some()
    }

    /// Passes on that somebody wants it to end.
    pub(super) fn asked(&mut self, times: u32) {
        if let Some(ward) = &mut self.ward {
            ward.is_asked |= times > 0;
        }
        (0..times).for_each(|_| put_asked(&mut self.control.outgoing));
        self.control.flush();
    }

    pub(super) fn kept(&mut self, kept: Kept) {
        self.control.kept(kept.bytes);
        if let Some(ward) = &mut self.ward {
            ward.heeded = kept.heeded;
        }
    }

    /// Goes on with an attempt whose keeper is gone: a thread of this process keeps it from now on. There is no second time.
    pub(super) fn bequeath(&mut self, start: &Start) -> Result<(), Hangup> {
        let fence = self.fence.as_ref().map(FencePage::writable);
        let Some(ward) = &mut self.ward else { return Err(Hangup::Closed) };
        let (Some(worker), Some(succession), Some(Ok(fence))) = (ward.worker, ward.succession.take(), fence) else {
            return Err(Hangup::Closed);
        };
        let (theirs, ours) = UnixStream::pair().map_err(|_| Hangup::Closed)?;
        let runner = Prefork::ward(std::process::id(), theirs, Arc::new(fence));
        let legacy = Legacy { worker, tid: start.tid, attempt: start.attempt, heeded: ward.heeded, runner };
        let heir = move || (succession.heir)(legacy);
        let heir = thread::Builder::new().name("heir".into()).spawn(heir).map_err(|_| Hangup::Closed)?;
        ward.heir = Some(heir);
        self.control.reconnect(ours.into()).map_err(|_| Hangup::Closed)
    }
}
