//! `raddle pool serve`: runs pool workers in the foreground.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, pin::pin};

use raddle_discovery::WorkerMetadata;
use raddle_model::{Tid, TidClock};
use raddle_rpc::{
    PoolError,
    standalone::{Options, ServiceEnd, Shutdown, StandaloneHandle, StandaloneService},
    worker::{HostCommand, ProcessSettings},
};
use raddle_runner::title;
use raddle_tls::AllowRules;
use raddle_web::{Server, Serving};
use serde_json::json;

use super::{credentials, discovery, metrics::page, note};
use crate::{
    args::{Global, PoolServeArgs},
    commands::LEVEL,
    error::{Failure, Outcome},
    format::count,
    interrupt::{InterruptSignal, Interrupts},
    logging, metrics, output, python, systemd,
};

pub(super) async fn serve(global: &Global, args: &PoolServeArgs) -> Outcome {
    let service = StandaloneService::new(options(global, args).await?).map_err(pool_failure)?;
    let server = match args.metrics_addr {
        Some(address) => Some(metrics::bind(address, args.metrics_public).await?),
        None => None,
    };
    let mut interrupts = Interrupts::install()?;
    let (handle, shutdown, title) = (service.handle(), Shutdown::new(), Title::new(&args.name));
    let url = server.as_ref().map(Server::url);
    let _serving: Option<Serving> = server.map(|server| server.serve(page(&handle)));
    title.show("starting");
    let mut running = pin!(service.run(shutdown.clone()));
    let (mut is_announced, mut is_stopping) = (false, false);
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            is_ready = handle.ready(), if !is_announced => {
                is_announced = true;
                if is_ready {
                    title.show("serving");
                    announce(global, args, &handle, url.as_deref())?;
                }
            }
            signal = interrupts.next_kind() => {
                title.show("stopping");
                systemd::notify_stopping();
                let is_second = std::mem::replace(&mut is_stopping, true);
                if signal == InterruptSignal::Terminate || is_second {
                    note(global, "stopping: calls in flight are cancelled");
                    shutdown.cancel();
                } else {
                    note(global, "stopping: calls in flight may finish; interrupt again to cancel them");
                    shutdown.drain();
                }
            }
        }
    };
    if ended.map_err(|error| start_failure(args, error))? == ServiceEnd::MaxUptime {
        note(global, "the workers have reached their maximum uptime");
    }
    Ok(0)
}

async fn options(global: &Global, args: &PoolServeArgs) -> Outcome<Options> {
    let mut options = Options::new(&args.name);
    if let Some(workers) = args.workers {
        options.workers = workers.into();
    }
    options.bind = args.bind.clone();
    options.advertise = args.advertise.clone();
    options.process = ProcessSettings {
        program: program_path(args)?,
        host: host_command(args),
        tags: args.tags.iter().cloned().collect(),
        credentials: credentials::load(&args.credentials)?,
        allow: allow_rules(args)?,
        insecure: args.insecure,
        max_in_flight: args.max_in_flight.map(|calls| calls as usize),
        max_blocking: args.max_blocking.map(|functions| functions as usize),
        log: logging::select_log(global, Some(LEVEL), args.log.log_format),
        ..ProcessSettings::default()
    };
    options.max_uptime = args.max_uptime.map(|time| time.0);
    options.start_timeout = Some(args.start_timeout.0);
    options.publishers = discovery::publishers(global, args).await?;
    Ok(options)
}

/// The host that runs the routines, if one does.
fn host_command(args: &PoolServeArgs) -> Option<HostCommand> {
    let argv = match &args.python {
        Some(app) => python::host_command(app, false),
        None => args.host.clone(),
    };
    (!argv.is_empty()).then(|| HostCommand {
        argv,
        ..HostCommand::default()
    })
}

/// The program whose routines are served, if it is not this one.
fn program_path(args: &PoolServeArgs) -> Outcome<Option<PathBuf>> {
    let Some(path) = &args.program else {
        return Ok(None);
    };
    // Workers may have another working directory.
    let found = fs::canonicalize(path)
        .and_then(|path| fs::metadata(&path).map(|metadata| (path, metadata)));
    match found {
        Ok((path, metadata))
            if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 =>
        {
            Ok(Some(path))
        }
        Ok(_) => Err(Failure::Usage(format!(
            "{} is not a program: name one with #[raddle::main]",
            path.display()
        ))),
        Err(error) => Err(Failure::Usage(format!(
            "there is no program {}: {error}",
            path.display()
        ))),
    }
}

/// The rules of the flags and the file, those of the file first.
fn allow_rules(args: &PoolServeArgs) -> Outcome<Option<AllowRules>> {
    let mut rules = Vec::new();
    if let Some(path) = &args.allow_file {
        let wrong =
            |reason: String| Failure::Usage(format!("the rules in {}: {reason}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        rules.extend(
            text.parse::<AllowRules>()
                .map_err(|error| wrong(error.to_string()))?,
        );
    }
    rules.extend(args.allow.iter().cloned());
    if rules.is_empty() {
        return Ok(None);
    }
    AllowRules::new(rules)
        .map(Some)
        .map_err(|error| Failure::Usage(error.to_string()))
}

/// Prints that all workers serve.
fn announce(
    global: &Global,
    args: &PoolServeArgs,
    handle: &StandaloneHandle,
    metrics: Option<&str>,
) -> Outcome<()> {
    let workers = handle.workers();
    let addresses: Vec<&str> = workers
        .iter()
        .map(|worker| worker.address.as_str())
        .collect();
    let serve = if workers.len() == 1 {
        "serves"
    } else {
        "serve"
    };
    let line = format!(
        "{}: {} {serve} at {}",
        args.name,
        count(workers.len() as u64, "worker"),
        addresses.join(", ")
    );
    if global.json {
        let worker = |worker: &WorkerMetadata| {
            let WorkerMetadata {
                uid,
                pid,
                address,
                secure,
                ..
            } = worker;
            json!({ "uid": uid, "pid": pid, "address": address, "secure": secure })
        };
        let workers: Vec<_> = workers.iter().map(worker).collect();
        output::print_json(
            &json!({ "pool": args.name, "pid": std::process::id(), "workers": workers, "metrics": metrics }),
        )?;
    } else {
        if let Some(url) = metrics {
            note(global, &format!("metrics are at {url}"));
        }
        output::print_line(&line)?;
    }
    systemd::notify_ready(&line);
    Ok(())
}

/// The error, with a hint for programs without `#[raddle::main]`.
fn start_failure(args: &PoolServeArgs, error: PoolError) -> Failure {
    match (pool_failure(error), &args.program) {
        (Failure::Raddle(message), Some(program)) => Failure::Raddle(format!(
            "{message} (is {} a program with #[raddle::main]?)",
            program.display()
        )),
        (failure, _) => failure,
    }
}

fn pool_failure(error: PoolError) -> Failure {
    match error {
        PoolError::Start { .. } => Failure::Raddle(error.to_string()),
        _ => Failure::Usage(error.to_string()),
    }
}

/// The process title of the supervisor of the workers.
struct Title {
    tid: Tid,
    name: String,
}

impl Title {
    fn new(name: &str) -> Self {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            tid: TidClock::resume(0).next(now.as_nanos() as u64),
            name: name.to_owned(),
        }
    }

    fn show(&self, status: &str) {
        title::set(&raddle_model::title::format(self.tid, &self.name, status));
    }
}
