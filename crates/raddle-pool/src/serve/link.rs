//! Many calls over one stream: the worker's side.

use std::sync::Arc;

use raddle_wire::v1::{self, request::What};
use tonic::Streaming;

use super::{
    executor::{Executor, Number},
    sink::Sink,
};
use crate::connection::outbox::Outbox;

/// Reads what a client asks for, until it is gone; then nobody wants the answers.
pub(super) async fn read(
    mut requests: Streaming<v1::Requests>,
    outbox: Arc<Outbox<v1::Answer>>,
    executor: Arc<Executor>,
) {
    let link = executor.new_link();
    let _ending = Ending { link, outbox: Arc::clone(&outbox), executor: Arc::clone(&executor) };
    while let Ok(Some(v1::Requests { requests })) = requests.message().await {
        for v1::Request { id, what } in requests {
            let number = Number { link, id };
            match what {
                Some(What::Call(call)) => {
                    let sink = Sink::new(id, &outbox);
                    if let Err(error) = executor.begin(number, call, &sink) {
                        sink.refuse(&error);
                    }
                }
                Some(What::Credit(items)) => executor.allow(number, items),
                Some(What::Cancel(_)) => executor.cancel(number),
                // Of a later version.
                None => {}
            }
        }
    }
}

/// Ends what is left of a link, however it has ended.
struct Ending {
    link: u64,
    outbox: Arc<Outbox<v1::Answer>>,
    executor: Arc<Executor>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.executor.cancel_link(self.link);
        self.outbox.close();
    }
}
