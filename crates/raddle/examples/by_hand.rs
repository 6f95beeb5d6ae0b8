//! A hand-written worker. It serves `raddle.v1.Worker` itself, uses nothing of Raddle but the
//! protocol, and joins a pool through the trait `Worker`.
//!
//! It shows in Rust what a worker in another language must do: it reads JSON only, and takes calls
//! through `Dispatch`. Every call completes at once, so none is in flight when the worker is
//! stopped.
//!
//! `cargo run --example by_hand`

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use raddle::{
    CallError, Stream, WorkerPool, async_trait,
    pool::{
        Encoding, WorkerMetadata, WorkerUid,
        worker::{StopMode, Worker, WorkerError},
    },
    wire::{
        ENCODINGS, PROTOCOL,
        v1::{self, exception::Kind, reply::What, worker_server},
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{sync::Notify, task::JoinHandle};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

// The worker's routines, declared for callers: functions without a body.

#[raddle::routine(name = "text.length")]
async fn length(text: String) -> usize;

#[raddle::routine(name = "text.words")]
fn words(text: String) -> impl Stream<Item = String>;

#[raddle::routine(name = "text.number")]
async fn number(text: String) -> Result<i64, NoNumber>;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct NoNumber {
    text: String,
}

/// The worker, as a pool sees it.
struct HandMade {
    uid: WorkerUid,
    tags: BTreeSet<String>,
    extra: BTreeMap<String, String>,
    serving: Mutex<Option<Serving>>,
}

struct Serving {
    metadata: WorkerMetadata,
    stop: Arc<Notify>,
    server: JoinHandle<()>,
}

impl HandMade {
    fn new(tags: &BTreeSet<String>) -> Self {
        Self {
            uid: WorkerUid::new(),
            tags: tags.clone(),
            extra: BTreeMap::new(),
            serving: Mutex::default(),
        }
    }

    fn serving(&self) -> MutexGuard<'_, Option<Serving>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Worker for HandMade {
    fn uid(&self) -> WorkerUid {
        self.uid
    }

    fn metadata(&self) -> Option<WorkerMetadata> {
        self.serving()
            .as_ref()
            .map(|serving| serving.metadata.clone())
    }

    fn tags(&self) -> &BTreeSet<String> {
        &self.tags
    }

    fn extra(&self) -> &BTreeMap<String, String> {
        &self.extra
    }

    async fn start(&self, _: Option<Duration>) -> Result<(), WorkerError> {
        let unable = |error: &dyn std::fmt::Display| WorkerError::Unable(error.to_string());
        let incoming =
            TcpIncoming::bind(([127, 0, 0, 1], 0).into()).map_err(|error| unable(&error))?;
        let metadata = WorkerMetadata {
            uid: self.uid,
            address: incoming
                .local_addr()
                .map_err(|error| unable(&error))?
                .to_string(),
            pid: std::process::id(),
            version: "1".into(),
            tags: self.tags.clone(),
            extra: self.extra.clone(),
            secure: false,
            encodings: [Encoding::Json].into(),
        };
        let stop = Arc::new(Notify::new());
        let service = Service {
            metadata: metadata.clone(),
            stop: Arc::clone(&stop),
        };
        let server = Server::builder().add_service(worker_server::WorkerServer::new(service));
        let stopped = Arc::clone(&stop);
        // Ends on a stop, which the pool sends when it closes.
        let server = tokio::spawn(async move {
            let serving = server.serve_with_incoming_shutdown(incoming, stopped.notified());
            if let Err(error) = serving.await {
                eprintln!("the worker serves no more: {error}");
            }
        });
        *self.serving() = Some(Serving {
            metadata,
            stop,
            server,
        });
        Ok(())
    }

    async fn stop(&self, _: StopMode) -> Result<(), WorkerError> {
        let serving = self.serving().take().ok_or(WorkerError::NotRunning)?;
        serving.stop.notify_one();
        // Without this, idle connections of callers would keep the server alive.
        let mut server = serving.server;
        if tokio::time::timeout(Duration::from_millis(500), &mut server)
            .await
            .is_err()
        {
            server.abort();
        }
        Ok(())
    }
}

/// The worker, as its callers see it.
struct Service {
    metadata: WorkerMetadata,
    stop: Arc<Notify>,
}

type Replies = Pin<Box<dyn Stream<Item = Result<v1::Reply, Status>> + Send>>;

#[tonic::async_trait]
impl worker_server::Worker for Service {
    type DispatchStream = Replies;

    async fn dispatch(&self, request: Request<v1::Call>) -> Result<Response<Replies>, Status> {
        let call = request.into_inner();
        if call.protocol != PROTOCOL {
            return Err(Status::failed_precondition(format!(
                "the worker speaks version {PROTOCOL} of the protocol"
            )));
        }
        if call.encoding != i32::from(v1::Encoding::Json) {
            let mut refusal = Status::failed_precondition("the worker reads JSON and nothing else");
            refusal.metadata_mut().insert(
                ENCODINGS,
                tonic::metadata::MetadataValue::from_static("json"),
            );
            return Err(refusal);
        }
        let outcome: Box<dyn Iterator<Item = What> + Send> = match call.routine.as_str() {
            "text.length" => {
                let (text,): (String,) = arguments(&call)?;
                Box::new(std::iter::once(What::Result(json(&text.len()).into())))
            }
            "text.words" => {
                let (text,): (String,) = arguments(&call)?;
                let words: Vec<_> = text
                    .split_whitespace()
                    .map(|word| What::Result(json(word).into()))
                    .collect();
                Box::new(words.into_iter())
            }
            "text.number" => {
                let (text,): (String,) = arguments(&call)?;
                Box::new(std::iter::once(match text.parse::<i64>() {
                    Ok(number) => What::Result(json(&number).into()),
                    Err(error) => What::Exception(v1::Exception {
                        kind: Kind::Failed.into(),
                        message: error.to_string(),
                        value: json(&NoNumber { text }).into(),
                        ..v1::Exception::default()
                    }),
                }))
            }
            _ => return Err(Status::not_found("the worker has no such routine")),
        };
        let replies = std::iter::once(What::Ack(v1::Ack {})).chain(outcome);
        let replies = replies.map(|what| Ok(v1::Reply { what: Some(what) }));
        Ok(Response::new(Box::pin(futures_util::stream::iter(replies))))
    }

    async fn stop(&self, _: Request<v1::StopRequest>) -> Result<Response<v1::StopReply>, Status> {
        self.stop.notify_one();
        Ok(Response::new(v1::StopReply::default()))
    }

    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoReply>, Status> {
        let worker: v1::WorkerMetadata = self.metadata.clone().into();
        let encodings = worker.encodings.clone();
        let routines = ["text.length", "text.number", "text.words"]
            .map(ToOwned::to_owned)
            .into();
        let info = v1::InfoReply {
            protocol: PROTOCOL,
            worker: Some(worker),
            routines,
            encodings,
            ..Default::default()
        };
        Ok(Response::new(info))
    }

    async fn idle(&self, _: Request<v1::IdleRequest>) -> Result<Response<v1::IdleReply>, Status> {
        Ok(Response::new(v1::IdleReply::default()))
    }
}

fn arguments<T: DeserializeOwned>(call: &v1::Call) -> Result<T, Status> {
    let unfit = |error| Status::invalid_argument(format!("the arguments do not fit: {error}"));
    serde_json::from_slice(&call.arguments).map_err(unfit)
}

fn json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers can be written down")
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let pool = WorkerPool::builder()
        .size(2)
        .worker(HandMade::new)
        .start()
        .await?;
    pool.scope(async {
        println!("{} bytes", length("two words".into()).await?);
        let mut words = words("two words".into());
        while let Some(word) = words.next().await {
            println!("{}", word?);
        }
        for text in ["-42", "many"] {
            match number(text.into()).await {
                Ok(number) => println!("{number}"),
                Err(CallError::Failed(NoNumber { text })) => println!("'{text}' is no number"),
                Err(other) => return Err(raddle::Error::msg(format!("{other:?}"))),
            }
        }
        Ok(())
    })
    .await?;
    pool.stop().await;
    Ok(())
}
