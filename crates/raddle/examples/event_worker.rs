//! The first example of Everwork: a worker of a group with a start, events and an end. See
//! docs/how-to/groups.md.

use std::{collections::BTreeMap, time::Duration};

use raddle::group::{EventError, EventWorker, GroupWorker, Manager, Process};

struct ExampleWorker;

impl EventWorker for ExampleWorker {
    type Event = BTreeMap<String, String>;

    fn settings() -> GroupWorker {
        GroupWorker::new("example").execution_timeout(Duration::from_secs(120))
    }

    async fn startup() -> Result<Self, EventError> {
        Ok(Self)
    }

    async fn handle(&self, event: Self::Event) -> Result<(), EventError> {
        println!("{event:?}");
        Ok(())
    }
}

raddle::event_worker!(ExampleWorker);

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let process = Process::new("example").hosting::<ExampleWorker>();
    let manager = Manager::builder().process(process).register().await?;
    manager.run_until_signal().await?;
    Ok(())
}
