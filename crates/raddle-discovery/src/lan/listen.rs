//! What is heard on the network, and when that is too much.

use std::{
    cell::LazyCell,
    thread,
    time::{Duration, Instant},
};

use mdns_sd::{RecvTimeoutError, ResolvedService, ScopedIp, ServiceEvent};
use tracing::{debug, warn};

use super::{advertised_location::believed, hub::HubState, interfaces, record};

/// So many records are kept of the network, of whatever kind: `mdns-sd` itself has no bound, and keeps some for ever. All workers that are kept have not
/// a quarter of that.
const RECORDS: i64 = 40_000;
/// How often it is counted.
const COUNT: Duration = Duration::from_secs(1);
/// How often it is begun anew, at most.
const ANEW: Duration = Duration::from_secs(2);

/// Hears what is said on the network, if it is asked who is there.
#[derive(Default)]
pub(super) struct MdnsListener {
    /// More was said than could be heard.
    has_missed: bool,
    counted: Option<Instant>,
    began_anew: Option<Instant>,
}

impl MdnsListener {
    /// Hears what is said until then, or until there is something else to do.
    pub(super) fn hear(&mut self, hub: &HubState, until: Instant) {
        if let Some(answers) = hub.answers() {
            loop {
                match answers.recv_deadline(until) {
                    Ok(event) => note(hub, event),
                    Err(RecvTimeoutError::Timeout) => return,
                    Err(RecvTimeoutError::Disconnected) => break self.has_missed = true,
                }
            }
        }
        thread::park_timeout(until.saturating_duration_since(Instant::now()));
    }

    /// Whether so much is said on the network that it has to be forgotten.
    pub(super) fn is_too_much(&mut self, hub: &HubState, now: Instant) -> bool {
        if self.began_anew.is_some_and(|began| now < began + ANEW) {
            return false;
        }
        if !self.has_missed && self.counted.is_none_or(|counted| now >= counted + COUNT) {
            self.counted = Some(now);
            let records = records(hub);
            if records > RECORDS {
                warn!(
                    records,
                    "a flood of records on the network: all are forgotten, and heard again"
                );
                self.has_missed = true;
            }
        }
        if !self.has_missed {
            return false;
        }
        (self.has_missed, self.began_anew) = (false, Some(now));
        true
    }
}

/// How many records are kept of the network.
fn records(hub: &HubState) -> i64 {
    let asked = hub.state().daemon.get_metrics();
    let metrics = asked
        .ok()
        .and_then(|answer| answer.recv_timeout(COUNT).ok())
        .unwrap_or_default();
    metrics
        .iter()
        .filter(|(name, _)| name.starts_with("cached-"))
        .map(|(_, count)| count)
        .sum()
}

fn note(hub: &HubState, event: ServiceEvent) {
    let is_news = match event {
        ServiceEvent::ServiceResolved(service) => {
            let said = read(hub, &service).inspect_err(|error| {
                debug!(
                    name = shown(&service.fullname),
                    error, "a record on the network is not believed"
                );
            });
            match said {
                Ok(Some(is_news)) => is_news,
                // What was believed before is not what it says now.
                _ => record::uid(&service.fullname).is_some_and(|uid| hub.state().seen.lose(uid)),
            }
        }
        ServiceEvent::ServiceRemoved(_, name) => {
            record::uid(&name).is_some_and(|uid| hub.state().seen.lose(uid))
        }
        ServiceEvent::SearchStarted(where_to) if where_to.contains(" on 0 interfaces") => {
            debug!(
                "there is no interface to find workers at, or another program has the port of mDNS for itself"
            );
            false
        }
        _ => false,
    };
    if is_news {
        hub.tell();
    }
}

/// Reads what is said of a worker. Returns whether that is news; `None` if it is of another namespace.
fn read(hub: &HubState, service: &ResolvedService) -> Result<Option<bool>, String> {
    let texts = service
        .txt_properties
        .iter()
        .map(|text| (text.key(), text.val()));
    let Some(mut said) = record::read(&service.fullname, &hub.namespace, texts)? else {
        return Ok(None);
    };
    // The system is asked once at most, and nothing waits for that.
    let loopbacks: LazyCell<Vec<String>> = LazyCell::new(interfaces::loopbacks);
    let addresses = service
        .addresses
        .iter()
        .map(|address| (address.to_ip_addr(), is_from_here(address, &loopbacks)));
    let addresses: Vec<_> = addresses.collect();
    let mut state = hub.state();
    let place = believed(
        addresses,
        service.port,
        said.address,
        state.seen.place(said.worker.uid),
    );
    let place = place.ok_or("its place is not what it should be")?;
    said.worker.address = place.to_string();
    said.worker.check().map_err(|error| error.to_string())?;
    let (was_full, is_news) = (
        state.seen.is_full,
        state.seen.hear(said, place, Instant::now()),
    );
    if state.seen.is_full && !was_full {
        warn!("there are more workers on the network than are kept: some are not heard of");
    }
    Ok(Some(is_news))
}

/// Whether a loopback address was heard on the loopback, and not from another machine.
fn is_from_here(address: &ScopedIp, loopbacks: &LazyCell<Vec<String>>) -> bool {
    address.is_loopback()
        && match address {
            ScopedIp::V4(address) => address
                .interface_ids()
                .iter()
                .all(|id| loopbacks.contains(&id.name)),
            ScopedIp::V6(address) => loopbacks.contains(&address.scope_id().name),
            _ => false,
        }
}

/// A part of what others have written, for the log.
fn shown(text: &str) -> String {
    text.chars()
        .take(80)
        .flat_map(char::escape_default)
        .collect()
}
