//! mDNS for one namespace in this process: publishing and browsing.
//!
//! `mdns-sd` has a thread that sends and receives; a second thread, here, processes its events.
//! Neither needs an async runtime, so a program that blocks its own stays visible to others.

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

/// Announcement interval. A worker that was disconnected is back this soon after its network is.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(4);
/// How long a worker may be silent: three announcements in a row may be lost.
pub(super) const TTL: Duration = Duration::from_secs(15);
/// How often silent workers are checked for; adds to the time until one is missed.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How often interface changes are checked for, in seconds.
const INTERFACE_CHECK_SECS: u32 = 1;
/// How long an unreachable worker has to answer. The daemon queries it twice, a second apart.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the shutdown may take, for goodbye packets.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(200);

/// Publishes and browses. Dropping it withdraws everything that it has published.
pub(super) struct MdnsHub(Arc<HubState>);

/// State shared with the thread.
pub(super) struct HubState {
    pub(super) namespace: String,
    filter: InterfaceFilter,
    state: Mutex<MdnsState>,
    /// Notified when the known workers change.
    changes: watch::Sender<()>,
    has_ended: AtomicBool,
}

pub(super) struct MdnsState {
    /// Replaced after a flood of records.
    pub(super) daemon: ServiceDaemon,
    pub(super) cache: ServiceCache,
    published: BTreeMap<WorkerUid, PublishedService>,
    /// `None` until the first subscription.
    browse: Option<BrowseState>,
    thread: Option<Thread>,
}

/// A running browse query.
struct BrowseState {
    since: Instant,
    answers: Receiver<ServiceEvent>,
}

struct PublishedService {
    worker: WorkerMetadata,
    location: AdvertisedLocation,
    count: u64,
    due: Instant,
}

impl MdnsHub {
    /// Starts mDNS on the chosen interfaces only.
    pub(super) fn new(namespace: &str, filter: InterfaceFilter) -> io::Result<Self> {
        let daemon = start_daemon(&filter)?;
        let state = MdnsState {
            daemon,
            cache: ServiceCache::default(),
            published: BTreeMap::new(),
            browse: None,
            thread: None,
        };
        let shared = Arc::new(HubState {
            namespace: namespace.to_owned(),
            filter,
            state: Mutex::new(state),
            changes: watch::Sender::default(),
            has_ended: AtomicBool::new(false),
        });
        let thread_state = Arc::clone(&shared);
        // Ends with the hub.
        let thread = thread::Builder::new()
            .name("lan-discovery".into())
            .spawn(move || thread_state.run())?;
        shared.state().thread = Some(thread.thread().clone());
        Ok(Self(shared))
    }

    /// Publishes or updates a worker.
    pub(super) fn publish(
        &self,
        worker: WorkerMetadata,
        location: AdvertisedLocation,
    ) -> Result<(), String> {
        // Counts from the current time, so that a count differs from those of a former process.
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let (uid, count) = (worker.uid, since.as_millis() as u64);
        let mut published = PublishedService {
            worker,
            location,
            count,
            due: Instant::now(),
        };
        // Check the size once, instead of failing in each announcement.
        published.texts(&self.0.namespace)?;
        let mut state = self.0.state();
        self.0.announce(&state.daemon, &mut published);
        state.published.insert(uid, published);
        Ok(())
    }

    /// Withdraws a worker. Returns a receiver that fires when the goodbye was sent.
    pub(super) fn unpublish(&self, uid: WorkerUid) -> Option<Receiver<mdns_sd::UnregisterStatus>> {
        let mut state = self.0.state();
        state.published.remove(&uid)?;
        state
            .daemon
            .unregister(&record::service_name(uid))
            .inspect_err(|error| log_send_error(uid, error))
            .ok()
    }

    /// Queries a worker, unless that was done just now. Without an answer the worker is gone.
    pub(super) fn request_recheck(&self, uid: WorkerUid) {
        let mut state = self.0.state();
        if state.cache.request_recheck(uid, Instant::now()) {
            debug!(worker = %uid, "querying a worker that could not be reached");
            if let Err(error) = state
                .daemon
                .verify(record::service_name(uid), QUERY_TIMEOUT)
            {
                log_send_error(uid, &error);
            }
        }
    }

    /// Starts browsing, if that was not done. Returns when it was started.
    pub(super) fn start_browsing(&self) -> io::Result<Instant> {
        let mut state = self.0.state();
        if let Some(browse) = &state.browse {
            return Ok(browse.since);
        }
        let (since, answers) = (
            Instant::now(),
            state.daemon.browse(SERVICE).map_err(io::Error::other)?,
        );
        state.browse = Some(BrowseState { since, answers });
        state.thread.iter().for_each(Thread::unpark);
        Ok(since)
    }

    /// The known workers.
    pub(super) fn workers(&self) -> Vec<WorkerMetadata> {
        self.0.state().cache.workers().collect()
    }

    /// Notified when the known workers change.
    pub(super) fn subscribe_changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }
}

impl HubState {
    pub(super) fn state(&self) -> MutexGuard<'_, MdnsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events of the browse query, if it was started.
    pub(super) fn answers(&self) -> Option<Receiver<ServiceEvent>> {
        self.state()
            .browse
            .as_ref()
            .map(|browse| browse.answers.clone())
    }

    /// Notifies subscribers.
    pub(super) fn notify_changes(&self) {
        self.changes.send_replace(());
    }

    /// The thread: announces our workers, and tracks those of others.
    fn run(&self) {
        let mut listener = MdnsListener::default();
        while !self.has_ended.load(Ordering::Acquire) {
            listener.receive(self, Instant::now() + CHECK_INTERVAL);
            let now = Instant::now();
            self.renew_announcements(now);
            let has_changed = self.state().cache.expire(now);
            if has_changed {
                self.notify_changes();
            }
            if listener.needs_restart(self, now) {
                self.restart_daemon(now);
            }
        }
    }

    /// Renews the announcements that are due.
    fn renew_announcements(&self, now: Instant) {
        let mut state = self.state();
        let MdnsState {
            daemon, published, ..
        } = &mut *state;
        for published in published
            .values_mut()
            .filter(|published| published.due <= now)
        {
            published.count += 1;
            self.announce(daemon, published);
        }
    }

    /// Announces a worker. If that fails, tries again soon.
    fn announce(&self, daemon: &ServiceDaemon, published: &mut PublishedService) {
        let uid = published.worker.uid;
        let announced = published
            .service(&self.namespace, &self.filter)
            .and_then(|service| daemon.register(service));
        published.due = Instant::now()
            + if announced.is_ok() {
                ANNOUNCE_INTERVAL
            } else {
                CHECK_INTERVAL
            };
        if let Err(error) = announced {
            log_send_error(uid, &error);
        }
    }

    /// Replaces the daemon, which drops its records; those that are still valid are received again.
    /// Other hosts do not notice.
    fn restart_daemon(&self, now: Instant) {
        let fresh = match start_daemon(&self.filter) {
            Ok(fresh) => fresh,
            Err(error) => return warn!(%error, "cannot restart mDNS"),
        };
        let mut state = self.state();
        let old = std::mem::replace(&mut state.daemon, fresh);
        // Without interfaces the old daemon sends no goodbyes.
        if old.disable_interface(IfKind::All).is_ok() {
            let _ = old.shutdown();
        }
        state.cache.require_confirmation(now + TTL);
        let MdnsState {
            daemon,
            published,
            browse,
            ..
        } = &mut *state;
        if let Some(browse) = browse {
            match daemon.browse(SERVICE) {
                Ok(answers) => browse.answers = answers,
                // The old receiver is disconnected, which causes another restart.
                Err(error) => debug!(%error, "cannot browse the network for workers"),
            }
        }
        published
            .values_mut()
            .for_each(|published| self.announce(daemon, published));
    }
}

/// Starts a daemon on the selected interfaces. `mdns-sd` starts on all interfaces, but sends
/// nothing before this function has selected them.
fn start_daemon(filter: &InterfaceFilter) -> io::Result<ServiceDaemon> {
    let begin = || {
        let daemon = ServiceDaemon::new()?;
        daemon.disable_interface(IfKind::All)?;
        let filter = filter.clone();
        daemon.enable_interface(IfKind::Predicate(IfPredicate::new(move |one| {
            filter.matches(&one.name, one.ip())
        })))?;
        daemon.set_ip_check_interval(INTERFACE_CHECK_SECS)?;
        Ok(daemon)
    };
    begin().map_err(|error: mdns_sd::Error| io::Error::other(error))
}

fn log_send_error(uid: WorkerUid, error: &mdns_sd::Error) {
    debug!(worker = %uid, %error, "cannot send mDNS packets for a worker");
}

impl PublishedService {
    fn texts(&self, namespace: &str) -> Result<Vec<(String, String)>, String> {
        record::encode(
            &self.worker,
            namespace,
            self.location.external_address(),
            &LivenessRecord {
                count: self.count,
                ttl: TTL,
            },
        )
    }

    /// The DNS-SD service of the worker, with its own host name. The uid is unique, so the name
    /// needs no probing.
    fn service(&self, namespace: &str, filter: &InterfaceFilter) -> mdns_sd::Result<ServiceInfo> {
        let texts = self.texts(namespace).map_err(mdns_sd::Error::Msg)?;
        let name = self.worker.uid.to_string();
        let host = format!("{name}.local.");
        let mut service =
            ServiceInfo::new(SERVICE, &name, &host, (), self.location.port, &texts[..])?
                .enable_addr_auto();
        service.set_requires_probe(false);
        let (filter, location) = (filter.clone(), self.location);
        let is_published = move |name: &str, ip| filter.matches(name, ip) && location.includes(ip);
        service.set_interfaces(vec![IfKind::Predicate(IfPredicate::new(move |one| {
            is_published(&one.name, one.ip())
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
            // The daemon sends goodbyes before it reports the shutdown.
            let _ = ending.recv_timeout(SHUTDOWN_TIMEOUT);
        }
    }
}
