//! The one place where a process speaks mDNS for a namespace: what it publishes, and what it has heard.
//!
//! `mdns-sd` has a thread that sends and receives; another, here, keeps what it tells. Neither needs a runtime: a program that blocks its own for a
//! while is still there for others.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant, SystemTime},
};

use mdns_sd::{IfKind, IfPredicate, Receiver, ServiceDaemon, ServiceEvent, ServiceInfo};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{
    advertised_location::AdvertisedLocation,
    interfaces::InterfaceFilter,
    listen::MdnsListener,
    record::{self, LivenessRecord, SERVICE},
    service_cache::ServiceCache,
};
use crate::{WorkerMetadata, WorkerUid};

/// How often a worker gives a sign of life. One that was cut off is back so soon after it is not.
const BEAT: Duration = Duration::from_secs(4);
/// How long it may be silent: three signs in a row may be lost.
pub(super) const TTL: Duration = Duration::from_secs(15);
/// How often it is looked who was silent for too long. It is found out so much later, at most.
const LOOK: Duration = Duration::from_millis(500);
/// How often it is looked whether interfaces have come or gone.
const INTERFACES: u32 = 1;
/// How long a worker that could not be reached has to say that it is there. It is asked twice, a second apart.
const ANSWER: Duration = Duration::from_secs(3);
/// How long the end of everything may take: for a last word to those who listen.
const FAREWELL: Duration = Duration::from_millis(200);

/// Speaks mDNS. When it is dropped, all that it has published is taken back.
pub(super) struct MdnsHub(Arc<HubState>);

/// What the thread knows as well.
pub(super) struct HubState {
    pub(super) namespace: String,
    choice: InterfaceFilter,
    state: Mutex<MdnsState>,
    /// Tells that something was heard.
    news: watch::Sender<()>,
    has_ended: AtomicBool,
}

pub(super) struct MdnsState {
    /// Replaced when it has heard too much.
    pub(super) daemon: ServiceDaemon,
    pub(super) seen: ServiceCache,
    published: BTreeMap<WorkerUid, PublishedService>,
    /// None until the first subscription.
    listening: Option<BrowseState>,
    thread: Option<Thread>,
}

/// The question who is there.
struct BrowseState {
    since: Instant,
    answers: Receiver<ServiceEvent>,
}

struct PublishedService {
    worker: WorkerMetadata,
    place: AdvertisedLocation,
    beat: u64,
    due: Instant,
}

impl MdnsHub {
    /// Begins to speak at the chosen interfaces, and nowhere else.
    pub(super) fn new(namespace: &str, choice: InterfaceFilter) -> io::Result<Self> {
        let daemon = speak(&choice)?;
        let state = MdnsState {
            daemon,
            seen: ServiceCache::default(),
            published: BTreeMap::new(),
            listening: None,
            thread: None,
        };
        let shared = Arc::new(HubState {
            namespace: namespace.to_owned(),
            choice,
            state: Mutex::new(state),
            news: watch::Sender::default(),
            has_ended: AtomicBool::new(false),
        });
        let kept = Arc::clone(&shared);
        // Ends with the hub.
        let thread = thread::Builder::new()
            .name("lan-discovery".into())
            .spawn(move || kept.keep())?;
        shared.state().thread = Some(thread.thread().clone());
        Ok(Self(shared))
    }

    /// Says that a worker is there, or something else of one.
    pub(super) fn publish(
        &self,
        worker: WorkerMetadata,
        place: AdvertisedLocation,
    ) -> Result<(), String> {
        // Each is another, also than those of a process before this one.
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let (uid, beat) = (worker.uid, since.as_millis() as u64);
        let mut published = PublishedService {
            worker,
            place,
            beat,
            due: Instant::now(),
        };
        // If it does not fit, it is not tried again and again.
        published.texts(&self.0.namespace)?;
        let mut state = self.0.state();
        self.0.announce(&state.daemon, &mut published);
        state.published.insert(uid, published);
        Ok(())
    }

    /// Takes back what was said of a worker. Returns what tells that it was.
    pub(super) fn take_back(&self, uid: WorkerUid) -> Option<Receiver<mdns_sd::UnregisterStatus>> {
        let mut state = self.0.state();
        state.published.remove(&uid)?;
        state
            .daemon
            .unregister(&record::name(uid))
            .inspect_err(|error| not_sent(uid, error))
            .ok()
    }

    /// Asks a worker whether it is there, if that was not done just now. If it does not answer, it is gone.
    pub(super) fn request_recheck(&self, uid: WorkerUid) {
        let mut state = self.0.state();
        if state.seen.request_recheck(uid, Instant::now()) {
            debug!(worker = %uid, "is asked whether it is there");
            if let Err(error) = state.daemon.verify(record::name(uid), ANSWER) {
                not_sent(uid, &error);
            }
        }
    }

    /// Begins to ask who is there, unless that was done. Returns since when it is asked.
    pub(super) fn listen(&self) -> io::Result<Instant> {
        let mut state = self.0.state();
        if let Some(listening) = &state.listening {
            return Ok(listening.since);
        }
        let (since, answers) = (
            Instant::now(),
            state.daemon.browse(SERVICE).map_err(io::Error::other)?,
        );
        state.listening = Some(BrowseState { since, answers });
        state.thread.iter().for_each(Thread::unpark);
        Ok(since)
    }

    /// Who is there, as far as is known.
    pub(super) fn workers(&self) -> Vec<WorkerMetadata> {
        self.0.state().seen.workers().collect()
    }

    /// Tells that something was heard.
    pub(super) fn news(&self) -> watch::Receiver<()> {
        self.0.news.subscribe()
    }
}

impl HubState {
    pub(super) fn state(&self) -> MutexGuard<'_, MdnsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answers to the question who is there, if it is asked.
    pub(super) fn answers(&self) -> Option<Receiver<ServiceEvent>> {
        self.state()
            .listening
            .as_ref()
            .map(|listening| listening.answers.clone())
    }

    /// Something was heard.
    pub(super) fn tell(&self) {
        self.news.send_replace(());
    }

    /// The thread: gives signs of life, hears those of others, and misses them.
    fn keep(&self) {
        let mut listener = MdnsListener::default();
        while !self.has_ended.load(Ordering::Acquire) {
            listener.hear(self, Instant::now() + LOOK);
            let now = Instant::now();
            self.beat(now);
            let is_news = self.state().seen.expire(now);
            if is_news {
                self.tell();
            }
            if listener.is_too_much(self, now) {
                self.start_anew(now);
            }
        }
    }

    /// Gives signs of life of those whose time it is.
    fn beat(&self, now: Instant) {
        let mut state = self.state();
        let MdnsState {
            daemon, published, ..
        } = &mut *state;
        for published in published
            .values_mut()
            .filter(|published| published.due <= now)
        {
            published.beat += 1;
            self.announce(daemon, published);
        }
    }

    /// Says that a worker is there. If it cannot be said now, it is soon.
    fn announce(&self, daemon: &ServiceDaemon, published: &mut PublishedService) {
        let uid = published.worker.uid;
        let announced = published
            .service(&self.namespace, &self.choice)
            .and_then(|service| daemon.register(service));
        published.due = Instant::now() + if announced.is_ok() { BEAT } else { LOOK };
        if let Err(error) = announced {
            not_sent(uid, &error);
        }
    }

    /// Forgets all that was heard on the network, and hears it again. Those who hear of what is published here do not notice.
    fn start_anew(&self, now: Instant) {
        let fresh = match speak(&self.choice) {
            Ok(fresh) => fresh,
            Err(error) => return warn!(%error, "cannot begin anew to listen on the network"),
        };
        let mut state = self.state();
        let old = std::mem::replace(&mut state.daemon, fresh);
        // Without interfaces it takes nothing back.
        if old.disable_interface(IfKind::All).is_ok() {
            let _ = old.shutdown();
        }
        state.seen.confirm(now + TTL);
        let MdnsState {
            daemon,
            published,
            listening,
            ..
        } = &mut *state;
        if let Some(listening) = listening {
            match daemon.browse(SERVICE) {
                Ok(answers) => listening.answers = answers,
                // The answers before have come to an end, which is a reason to begin anew.
                Err(error) => debug!(%error, "cannot ask who is on the network"),
            }
        }
        published
            .values_mut()
            .for_each(|published| self.announce(daemon, published));
    }
}

/// Begins to speak mDNS at these interfaces. It begins with all of them, but without a word: what is said is said after they were chosen.
fn speak(choice: &InterfaceFilter) -> io::Result<ServiceDaemon> {
    let begin = || {
        let daemon = ServiceDaemon::new()?;
        daemon.disable_interface(IfKind::All)?;
        let choice = choice.clone();
        daemon.enable_interface(IfKind::Predicate(IfPredicate::new(move |one| {
            choice.takes(&one.name, one.ip())
        })))?;
        daemon.set_ip_check_interval(INTERFACES)?;
        Ok(daemon)
    };
    begin().map_err(|error: mdns_sd::Error| io::Error::other(error))
}

fn not_sent(uid: WorkerUid, error: &mdns_sd::Error) {
    debug!(worker = %uid, %error, "something could not be said of a worker on the network");
}

impl PublishedService {
    fn texts(&self, namespace: &str) -> Result<Vec<(String, String)>, String> {
        record::write(
            &self.worker,
            namespace,
            self.place.beyond(),
            &LivenessRecord {
                count: self.beat,
                ttl: TTL,
            },
        )
    }

    /// The same as a service, with a host of its own. Nobody else can have its name, so that nobody is asked who does.
    fn service(&self, namespace: &str, choice: &InterfaceFilter) -> mdns_sd::Result<ServiceInfo> {
        let texts = self.texts(namespace).map_err(mdns_sd::Error::Msg)?;
        let name = self.worker.uid.to_string();
        let host = format!("{name}.local.");
        let mut service = ServiceInfo::new(SERVICE, &name, &host, (), self.place.port, &texts[..])?
            .enable_addr_auto();
        service.set_requires_probe(false);
        let (choice, place) = (choice.clone(), self.place);
        let is_said = move |name: &str, ip| choice.takes(name, ip) && place.has(ip);
        service.set_interfaces(vec![IfKind::Predicate(IfPredicate::new(move |one| {
            is_said(&one.name, one.ip())
        }))]);
        Ok(service)
    }
}

impl Drop for MdnsHub {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
        let state = self.0.state();
        let ending = state.daemon.shutdown();
        state.thread.iter().for_each(Thread::unpark);
        drop(state);
        if let Ok(ending) = ending {
            // What is published is taken back before this is told.
            let _ = ending.recv_timeout(FAREWELL);
        }
    }
}
