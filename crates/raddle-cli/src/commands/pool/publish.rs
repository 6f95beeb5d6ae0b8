//! How workers are made known: one publisher for each way that is asked for.

use std::sync::Arc;

#[cfg(feature = "lan")]
use raddle_pool::discovery::LanDiscovery;
use raddle_pool::discovery::{DiscoveryError, FileDiscovery, Publisher};

use crate::{
    args::{Finding, PoolServeArgs},
    error::{Failure, Outcome},
};

/// All that are asked for.
pub(super) fn all(args: &PoolServeArgs) -> Outcome<Vec<Arc<dyn Publisher>>> {
    let made = args.discovery.iter().filter_map(|finding| publisher(args, finding).transpose());
    made.collect::<Result<_, _>>().map_err(|error: DiscoveryError| Failure::Usage(error.to_string()))
}

fn publisher(args: &PoolServeArgs, finding: &Finding) -> Result<Option<Arc<dyn Publisher>>, DiscoveryError> {
    #[cfg(not(feature = "lan"))]
    let _ = args;
    Ok(match finding {
        // It is told in any case.
        Finding::Local => None,
        #[cfg(feature = "lan")]
        Finding::Lan => {
            let lan = LanDiscovery::new(&args.name)?;
            // At which port is said with each worker.
            let lan = match &args.advertise {
                Some(advertise) => lan.advertise(advertise.host())?,
                None => lan,
            };
            Some(Arc::new(lan))
        }
        Finding::File(path) => Some(Arc::new(FileDiscovery::new(path)?)),
    })
}
