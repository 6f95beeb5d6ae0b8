//! How workers are made known: one publisher for each way that is asked for.

use std::sync::Arc;

use raddle_pool::discovery::Publisher;

use crate::{
    args::{Finding, PoolServeArgs},
    error::Outcome,
};

/// All that are asked for.
pub(super) fn all(args: &PoolServeArgs) -> Outcome<Vec<Arc<dyn Publisher>>> {
    args.discovery.iter().filter_map(|finding| publisher(finding).transpose()).collect()
}

fn publisher(finding: &Finding) -> Outcome<Option<Arc<dyn Publisher>>> {
    match finding {
        // It is told in any case.
        Finding::Local => Ok(None),
    }
}
