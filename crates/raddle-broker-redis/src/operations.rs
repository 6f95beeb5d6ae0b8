//! stub
use async_trait::async_trait;
use super::Redis;
use raddle_model::Tid;
use raddle_broker::{Error, Operations, Result, operations::{NewOperation, OperationView}};
#[async_trait]
impl Operations for Redis {
    async fn start_operation(&self, _: NewOperation) -> Result<Tid> { Err(Error::Closed) }
    async fn operations(&self, _: Option<Tid>, _: u32) -> Result<Vec<OperationView>> { Err(Error::Closed) }
    async fn advance_operation(&self, _: Tid, _: u32) -> Result<OperationView> { Err(Error::Closed) }
    async fn cancel_operation(&self, _: Tid) -> Result<OperationView> { Err(Error::Closed) }
}
