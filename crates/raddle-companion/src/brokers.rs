//! The open brokers. Each is opened once, however many connections use it.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::BoxFuture;
use raddle_broker::Broker;

use crate::Failure;

/// Finds and opens the broker at a URL, or that of a directory.
pub type OpenBroker = Arc<
    dyn Fn(Option<String>, PathBuf) -> BoxFuture<'static, Result<OpenedBroker, Failure>>
        + Send
        + Sync,
>;

/// A broker, and its URL without a password.
#[derive(Clone)]
pub struct OpenedBroker {
    /// The broker.
    pub broker: Arc<dyn Broker>,
    /// The URL, for people.
    pub url: String,
}

/// The brokers of a companion, under the numbers that requests name.
pub(crate) struct Brokers {
    open: OpenBroker,
    opened: Mutex<Vec<OpenedBroker>>,
}

impl Brokers {
    pub(crate) fn new(open: OpenBroker) -> Self {
        Self {
            open,
            opened: Mutex::default(),
        }
    }

    /// Opens a broker. Returns its number and URL.
    pub(crate) async fn open(
        &self,
        queue_url: Option<String>,
        directory: PathBuf,
    ) -> Result<(usize, String), Failure> {
        let found = (self.open)(queue_url, directory).await?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let url = found.url.clone();
        // Two connections may have opened it at the same time. The second handle is closed here.
        let known = opened.iter().position(|broker| broker.url == url);
        let number = known.unwrap_or_else(|| {
            opened.push(found);
            opened.len() - 1
        });
        Ok((number, url))
    }

    /// The broker with this number.
    pub(crate) fn get(&self, number: usize) -> Result<Arc<dyn Broker>, Failure> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let found = opened.get(number).map(|found| Arc::clone(&found.broker));
        found.ok_or_else(|| Failure::invalid(format!("broker {number} was not opened")))
    }
}
