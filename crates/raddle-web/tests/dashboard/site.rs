//! A dashboard over a broker of its own, and work for it to show.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use jiff::Timestamp;
use raddle_broker::{
    AttemptStarted, AttemptUpdate, AttemptUpdateKind, Broker, ClaimRequest, Completion, LeasedTask,
    NewTask, OutputStream,
};
use raddle_broker_sqlite::Sqlite;
use raddle_client::schedule;
use raddle_model::{
    AttemptReport, ExitStatus, HumanDuration, Progress, QueueName, ResourceUsage, RetryPolicy,
    TaskSpec, Tid, schedule::Schedule, worker::WorkerInfo,
};
use raddle_web::{App, Options, SignIn, auth::Role};
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};

/// A name that tries to be markup.
pub(crate) const HOSTILE: &str = "<img src=x onerror=document.title='owned'>";

/// A served dashboard.
pub(crate) struct Site {
    pub(crate) runtime: Runtime,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) address: SocketAddr,
    /// How many streams were opened.
    pub(crate) streams: Arc<AtomicUsize>,
    options: Options,
    served: Option<(App, JoinHandle<()>)>,
    _directory: TempDir,
}

impl Site {
    /// Serves everyone with this role.
    pub(crate) fn new(role: Role) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("raddle.db");
        let broker: Arc<dyn Broker> = Arc::new(runtime.block_on(Sqlite::open(&path)).unwrap());
        let options = Options {
            broker_url: "sqlite:/srv/app/.raddle/raddle.db".into(),
            sign_in: SignIn::Trusted(role),
            ..Options::default()
        };
        let mut site = Self {
            runtime,
            broker,
            address: "127.0.0.1:0".parse().unwrap(),
            streams: Arc::default(),
            options,
            served: None,
            _directory: directory,
        };
        site.start();
        site
    }

    /// Serves, at the same address as before.
    pub(crate) fn start(&mut self) {
        let app = App::new(Arc::clone(&self.broker), self.options.clone());
        let streams = Arc::clone(&self.streams);
        let router = app.router().layer(axum::middleware::map_request(
            move |request: axum::extract::Request| {
                if request.uri().path() == "/live" {
                    streams.fetch_add(1, Ordering::Relaxed);
                }
                async { request }
            },
        ));
        let listener = self
            .runtime
            .block_on(TcpListener::bind(self.address))
            .unwrap();
        self.address = listener.local_addr().unwrap();
        let accept = async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(router.clone());
                let http = hyper::server::conn::http1::Builder::new();
                connections.spawn(async move {
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        };
        self.served = Some((app, self.runtime.spawn(accept)));
    }

    /// Cuts all connections at once, as `kill -9` does.
    pub(crate) fn cut(&mut self) {
        if let Some((_, task)) = self.served.take() {
            task.abort();
            // The address is free when the listener is dropped.
            let _ = self.runtime.block_on(task);
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn submit(&self, spec: TaskSpec) -> Tid {
        let submitted = self
            .runtime
            .block_on(self.broker.submit(vec![NewTask::new(spec)]))
            .unwrap();
        submitted[0].tid()
    }

    pub(crate) fn worker(&self, name: &str, queues: &[&str], slots: u32) -> Tid {
        let info = WorkerInfo {
            queues: queues.iter().map(|queue| (*queue).to_owned()).collect(),
            concurrency: slots,
            pid: 4242,
            host: "web-1".into(),
            ..WorkerInfo::new(name, "resident")
        };
        self.runtime
            .block_on(self.broker.register(info, Duration::from_hours(1)))
            .unwrap()
    }

    /// Claims a task for a worker.
    pub(crate) fn claim(&self, owner: Tid, tid: Tid) -> LeasedTask {
        let request = ClaimRequest {
            owner,
            caps: raddle_model::CapSet::new(),
            queues: Vec::new(),
            only: Some(tid),
            max: 1,
            wait: Duration::from_secs(30),
        };
        self.runtime
            .block_on(self.broker.claim(request))
            .unwrap()
            .remove(0)
    }

    pub(crate) fn start_task(&self, leased: &LeasedTask) {
        let started = AttemptStarted {
            attempt_id: leased.attempt_id,
            pid: Some(777),
        };
        self.runtime
            .block_on(self.broker.mark_started(vec![started]))
            .unwrap();
    }

    pub(crate) fn print(&self, leased: &LeasedTask, stream: OutputStream, text: &str) {
        let bytes = text.as_bytes().to_vec();
        self.runtime
            .block_on(self.broker.append_output(leased.attempt_id, stream, bytes))
            .unwrap();
    }

    pub(crate) fn end(&self, leased: &LeasedTask, exit: ExitStatus, stderr: &str) {
        let now = Timestamp::now();
        let stdout = "step 1\nstep 2\n\u{1b}[32mdone\u{1b}[0m\n";
        let report = AttemptReport {
            started_at: Some(now - Duration::from_millis(1250)),
            usage: ResourceUsage {
                peak_rss_bytes: 48_000_000,
                user_us: 812_000,
                system_us: 90_000,
            },
            stdout_bytes: stdout.len() as u64,
            stderr_bytes: stderr.len() as u64,
            ..AttemptReport::bare(exit, now)
        };
        let completion = Completion {
            attempt_id: leased.attempt_id,
            report,
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        self.runtime
            .block_on(self.broker.complete(vec![completion]))
            .unwrap();
    }

    /// Runs a task from beginning to end.
    pub(crate) fn run(&self, worker: Tid, spec: TaskSpec, exit: ExitStatus, stderr: &str) -> Tid {
        let tid = self.submit(spec);
        let leased = self.claim(worker, tid);
        self.start_task(&leased);
        self.end(&leased, exit, stderr);
        tid
    }

    /// Some of everything. Returns a completed, a failed, a running and a waiting task.
    pub(crate) fn fill(&self) -> [Tid; 4] {
        let worker = self.worker("worker-1", &["default", "mail"], 8);
        self.worker("encoder-1", &["video"], 2);
        let code = |code| ExitStatus::Code { code };
        for n in 0..40 {
            let (name, queue) = [
                ("send-welcome", "mail"),
                ("resize-image", "default"),
                ("invoice", "default"),
                ("digest", "mail"),
            ][n % 4];
            let id = n.to_string();
            self.run(
                worker,
                spec(name, queue, &["app", name, "--id", &id]),
                code(0),
                "",
            );
        }
        let done = self.run(
            worker,
            spec("nightly-report", "default", &["report", "--all"]),
            code(0),
            "",
        );
        for n in 0..4 {
            let line = format!("smtp: connection to 10.0.0.{n} refused\n");
            self.run(
                worker,
                spec("send-reminder", "mail", &["app", "remind"]),
                code(75),
                &line,
            );
        }
        let failed = self.run(worker, spec("import-orders", "default", &["python3", "import.py"]), code(1),
            "Traceback (most recent call last):\n  File \"import.py\", line 14, in <module>\nKeyError: 'customer'\n");
        self.run(
            worker,
            spec("thumbnail", "default", &["convert", "a.png"]),
            ExitStatus::Timeout,
            "",
        );
        self.run(
            worker,
            spec("resize-image", "default", &["convert", "b.png"]),
            ExitStatus::OutOfMemory,
            "Killed\n",
        );
        self.run(
            worker,
            TaskSpec {
                name: Some(HOSTILE.into()),
                ..spec("x", "default", &["<script>alert(1)</script>"])
            },
            code(2),
            HOSTILE,
        );
        self.run(
            worker,
            TaskSpec {
                name: Some("\u{202e}emit \u{1f600} foo/bar.baz".into()),
                ..spec("x", "mail", &["true"])
            },
            code(0),
            "",
        );
        let mut running = done;
        for (n, name) in ["render-frames", "backup-database", "train-model"]
            .into_iter()
            .enumerate()
        {
            running = self.submit(spec(name, "default", &["app", name]));
            let leased = self.claim(worker, running);
            self.start_task(&leased);
            self.print(
                &leased,
                OutputStream::Stdout,
                "frame 1 of 200\nframe 2 of 200\nframe 3 of 200\n",
            );
            let progress = Progress {
                percent: Some(20.0 + 25.0 * n as f64),
                message: format!("{} of 200", 40 + n * 50),
            };
            let update = AttemptUpdate {
                attempt_id: leased.attempt_id,
                kind: AttemptUpdateKind::Progress(progress),
            };
            self.runtime
                .block_on(self.broker.update_attempts(vec![update]))
                .unwrap();
        }
        let retried = TaskSpec {
            retry: RetryPolicy {
                attempts: 3,
                ..RetryPolicy::default()
            },
            ..spec("sync-crm", "default", &["app", "sync"])
        };
        self.run(worker, retried, code(1), "HTTP 503 from crm.example\n");
        let mut waiting = running;
        for _ in 0..3 {
            waiting = self.submit(TaskSpec {
                requires: "gpu".parse().unwrap(),
                timeout: Some(HumanDuration::secs(600)),
                env: [("API_KEY".to_owned(), "hunter2".to_owned())].into(),
                ..spec("transcode", "video", &["ffmpeg", "-i", "in.mp4"])
            });
        }
        self.submit(TaskSpec {
            delay: Some(HumanDuration::secs(3600)),
            ..spec("follow-up", "mail", &["app", "follow"])
        });
        let nightly = Schedule::cron("nightly-backup", "0 3 * * 1-5")
            .timezone("Europe/Berlin")
            .task(spec("backup", "default", &["backup"]))
            .unwrap();
        let poll = Schedule::every("poll-inbox", Duration::from_mins(5))
            .task(spec("poll", "mail", &["poll"]))
            .unwrap();
        self.runtime.block_on(async {
            schedule::put(&*self.broker, nightly, false).await.unwrap();
            schedule::put(&*self.broker, poll, false).await.unwrap();
            let bodies = ["{\"order\": 17}", "{\"order\": 18}", HOSTILE]
                .map(str::to_owned)
                .to_vec();
            self.broker
                .put("orders".parse::<QueueName>().unwrap(), bodies)
                .await
                .unwrap();
        });
        [done, failed, running, waiting]
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.cut();
    }
}

/// A command with a name, in a queue, that is tried once.
pub(crate) fn spec(name: &str, queue: &str, argv: &[&str]) -> TaskSpec {
    TaskSpec {
        name: Some(name.into()),
        queue: queue.into(),
        retry: RetryPolicy {
            attempts: 1,
            ..RetryPolicy::default()
        },
        ..TaskSpec::command(argv.iter().copied())
    }
}
