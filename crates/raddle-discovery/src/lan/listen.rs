//! Processes browse events, and detects floods of records.

use std::{
    cell::LazyCell,
    thread,
    time::{Duration, Instant},
};

use mdns_sd::{RecvTimeoutError, ResolvedService, ScopedIp, ServiceEvent};
use tracing::{debug, warn};

use super::{advertised_location::select_address, hub::HubState, interfaces, record};

/// Limit on records that `mdns-sd` keeps, of any kind: the crate has no limit of its own, and never
/// drops some of them. The largest number of workers needs less than a quarter.
const MAX_RECORDS: i64 = 40_000;
/// How often records are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two restarts.
const RESTART_INTERVAL: Duration = Duration::from_secs(2);

/// Processes browse events.
#[derive(Default)]
pub(super) struct MdnsListener {
    /// Events were lost.
    has_missed: bool,
    counted: Option<Instant>,
    restarted: Option<Instant>,
}

impl MdnsListener {
    /// Processes events until then, or waits if there is no query.
    pub(super) fn receive(&mut self, hub: &HubState, until: Instant) {
        if let Some(answers) = hub.answers() {
            loop {
                match answers.recv_deadline(until) {
                    Ok(event) => handle_event(hub, event),
                    Err(RecvTimeoutError::Timeout) => return,
                    Err(RecvTimeoutError::Disconnected) => break self.has_missed = true,
                }
            }
        }
        thread::park_timeout(until.saturating_duration_since(Instant::now()));
    }

    /// Whether the daemon must be restarted, because of lost events or too many records.
    pub(super) fn needs_restart(&mut self, hub: &HubState, now: Instant) -> bool {
        if self
            .restarted
            .is_some_and(|began| now < began + RESTART_INTERVAL)
        {
            return false;
        }
        if !self.has_missed
            && self
                .counted
                .is_none_or(|counted| now >= counted + COUNT_INTERVAL)
        {
            self.counted = Some(now);
            let records = count_records(hub);
            if records > MAX_RECORDS {
                warn!(
                    records,
                    "flood of mDNS records: dropping all and collecting them again"
                );
                self.has_missed = true;
            }
        }
        if !self.has_missed {
            return false;
        }
        (self.has_missed, self.restarted) = (false, Some(now));
        true
    }
}

/// Number of records that the daemon keeps.
fn count_records(hub: &HubState) -> i64 {
    let asked = hub.state().daemon.get_metrics();
    let metrics = asked
        .ok()
        .and_then(|answer| answer.recv_timeout(COUNT_INTERVAL).ok())
        .unwrap_or_default();
    metrics
        .iter()
        .filter(|(name, _)| name.starts_with("cached-"))
        .map(|(_, count)| count)
        .sum()
}

fn handle_event(hub: &HubState, event: ServiceEvent) {
    let has_changed = match event {
        ServiceEvent::ServiceResolved(service) => {
            let outcome = record_service(hub, &service).inspect_err(|error| {
                debug!(
                    name = escape_text(&service.fullname),
                    error, "ignoring an invalid record on the network"
                );
            });
            match outcome {
                Ok(Some(has_changed)) => has_changed,
                // The record is no longer valid, so neither is the worker.
                _ => record::parse_service_name(&service.fullname)
                    .is_some_and(|uid| hub.state().cache.remove(uid)),
            }
        }
        ServiceEvent::ServiceRemoved(_, name) => {
            record::parse_service_name(&name).is_some_and(|uid| hub.state().cache.remove(uid))
        }
        ServiceEvent::SearchStarted(where_to) if where_to.contains(" on 0 interfaces") => {
            debug!("no usable interface, or another program has exclusive use of the mDNS port");
            false
        }
        _ => false,
    };
    if has_changed {
        hub.notify_changes();
    }
}

/// Decodes a service, and records it. Returns whether the known workers have changed; `None` if it
/// is of another namespace.
fn record_service(hub: &HubState, service: &ResolvedService) -> Result<Option<bool>, String> {
    let texts = service
        .txt_properties
        .iter()
        .map(|text| (text.key(), text.val()));
    let Some(mut record) = record::decode(&service.fullname, &hub.namespace, texts)? else {
        return Ok(None);
    };
    // Lazy, so that the interfaces are listed at most once per service.
    let loopbacks: LazyCell<Vec<String>> = LazyCell::new(interfaces::loopback_names);
    let addresses = service
        .addresses
        .iter()
        .map(|address| (address.to_ip_addr(), is_local(address, &loopbacks)));
    let addresses: Vec<_> = addresses.collect();
    let mut state = hub.state();
    let address = select_address(
        addresses,
        service.port,
        record.address,
        state.cache.address(record.worker.uid),
    );
    let address = address.ok_or("its address is not usable")?;
    record.worker.address = address.to_string();
    record
        .worker
        .validate()
        .map_err(|error| error.to_string())?;
    let (was_full, has_changed) = (
        state.cache.is_full,
        state.cache.record(record, address, Instant::now()),
    );
    if state.cache.is_full && !was_full {
        warn!("too many workers on the network: ignoring further ones");
    }
    Ok(Some(has_changed))
}

/// Whether a loopback address was received on the loopback, and not from another machine.
fn is_local(address: &ScopedIp, loopbacks: &LazyCell<Vec<String>>) -> bool {
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

/// Escapes and shortens text of others, for the log.
fn escape_text(text: &str) -> String {
    text.chars()
        .take(80)
        .flat_map(char::escape_default)
        .collect()
}
