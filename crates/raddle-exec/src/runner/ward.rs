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
    Call, Runner,
    child::Stack,
    control::{Control, Hangup},
    program::inherited_environment,
    settings::FORKED_TITLE,
    signals::Signals,
};
use crate::{
    FencePage, Heeded, Prefork,
    frame::{Kept, Start, ToRunner, put_asked},
    sys,
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
                call,
                buffers: Vec::new(),
                title_idle: FORKED_TITLE.into(),
                delegation: None,
                ward: Some(Ward { worker: None, heeded: Heeded::default(), succession: Some(succession), heir: None }),
            })
        };
        let code = match set_up() {
            Ok(runner) => runner.live(),
            Err(error) => {
                eprintln!("raddle: the worker could not be set up: {error}");
                125
            }
        };
        code as u8
    }
}

impl Ward {
    pub(super) fn named(&mut self, worker: Tid) {
        self.worker = Some(worker);
    }
}

/// The exit code of a ward that could not see its task through.
const FAILED: i32 = 1;

impl Runner {
    /// A ward's life: one attempt at most. Returns the exit code.
    fn live(mut self) -> i32 {
        let (start, stdin) = match self.wait_for_start() {
            Ok(Some(found)) => found,
            Ok(None) | Err(Hangup::Left) => return 0,
            Err(Hangup::Closed) => return self.go_on_otherwise(),
            Err(Hangup::Malformed(error)) => return super::malformed(&error),
        };
        let end = self.attempt(&start, stdin).and_then(|()| self.wait_for_leave(&start));
        match end {
            Ok(()) | Err(Hangup::Left) => {
                // It has said all that there is to say, and may still be leaving the registry.
                let heir = self.ward.and_then(|ward| ward.heir);
                heir.map_or(0, |heir| heir.join().map_or(FAILED, |()| 0))
            }
            Err(Hangup::Closed) => FAILED,
            Err(Hangup::Malformed(error)) => super::malformed(&error),
        }
    }

    fn go_on_otherwise(self) -> i32 {
        let Some(succession) = self.ward.and_then(|ward| ward.succession) else { return FAILED };
        let error = (succession.otherwise)();
        eprintln!("raddle: a worker that has lost its spawner cannot go on: {error}");
        FAILED
    }

    /// What it has done is being written; until that is safe it is kept here.
    fn wait_for_leave(&mut self, start: &Start) -> Result<(), Hangup> {
        loop {
            match self.await_word() {
                Err(Hangup::Closed) => self.bequeath(start)?,
                outcome => return outcome,
            }
        }
    }

    /// Returns when it may leave.
    fn await_word(&mut self) -> Result<(), Hangup> {
        loop {
            while let Some(frame) = self.control.next()? {
                match frame {
                    ToRunner::Leave => return Ok(()),
                    ToRunner::Kept(kept) => self.kept(kept),
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
