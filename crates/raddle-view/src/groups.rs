//! The workers of supervised groups.

use raddle_broker::Broker;
use raddle_groups::GroupWorkerView;

use crate::Result;

/// Reads the workers of groups, by name.
pub async fn list_groups(broker: &dyn Broker) -> Result<Vec<GroupWorkerView>> {
    Ok(raddle_groups::list(broker).await?)
}
