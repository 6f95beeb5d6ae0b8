//! `raddle up`: a manager of groups in the foreground, whose processes are this program again.

use std::{
    fs,
    path::{Path, PathBuf},
};

use raddle_fabric::{
    Shutdown,
    group::{self, FileMistake, Manager, ManagerError, Options, Process},
    schedule,
};
use serde_json::json;

use crate::{
    args::{Global, UpArgs},
    context::Context,
    error::{Failure, Outcome},
    format::count,
    interrupt::Interrupts,
    project::{FILE, Project, here},
    systemd, trust,
};

pub(super) async fn up(global: &Global, args: &UpArgs) -> Outcome {
    let here = here()?;
    let path = match &args.file {
        Some(path) => here.join(path),
        None => found(&here).ok_or_else(|| {
            Failure::Usage(format!("there is no {FILE} here or in a parent folder: write one, or name it with -f"))
        })?,
    };
    let processes = read(&path)?;
    let asked = global.queue_url.as_deref().filter(|url| !url.is_empty());
    let file = path.display().to_string();
    let of_file = if asked.is_some() { None } else { Project::of_file(path)? };
    let project = of_file.map_or_else(|| Project::find(asked, &here), Ok)?;
    let context = Context::of(global, project);
    context.check_shared()?;
    keep(&context, global, args, &file, processes).await
}

pub(super) fn found(here: &Path) -> Option<PathBuf> {
    here.ancestors().map(|folder| folder.join(FILE)).find(|path| path.is_file())
}

/// The groups of a file. What is wrong is said with its line.
pub(super) fn read(path: &Path) -> Outcome<Vec<Process>> {
    let wrong = |reason: &dyn std::fmt::Display| Failure::Usage(format!("{}:{reason}", path.display()));
    let text = trust::read(path)?.ok_or_else(|| wrong(&" there is no such file"))?;
    group::read(&text).map_err(|mistake| wrong(&mistake))
}

async fn keep(context: &Context, global: &Global, args: &UpArgs, file: &str, processes: Vec<Process>) -> Outcome {
    let mut interrupts = Interrupts::catch()?;
    let shutdown = Shutdown::new();
    let Some(broker) = interrupts.start(&shutdown, context.broker_of_service()).await else { return Ok(0) };
    let options = Options {
        name: args.name.clone(),
        file: Some(file.to_owned()),
        words: words(global, args),
        ..Options::new(context.project.url.clone(), processes)
    };
    let Some(manager) = interrupts.start(&shutdown, Manager::register(broker?, options)).await else { return Ok(0) };
    let manager = manager.map_err(|error| match error {
        ManagerError::Mistake(mistake) => {
            let text = fs::read_to_string(file).unwrap_or_default();
            Failure::Usage(format!("{file}:{}", FileMistake::locate(&text, mistake)))
        }
        error => failure(error),
    })?;
    let tid = manager.tid();
    context.show(&json!({ "tid": tid, "pid": std::process::id() }), || format!("{tid}\n"))?;
    let mut handle = manager.handle();
    let mut watchdog = systemd::Watchdog::of_environment();
    let mut keeping = Box::pin(manager.run(shutdown.clone()));
    let mut is_up = false;
    let ended = loop {
        tokio::select! {
            ended = &mut keeping => break ended,
            () = interrupts.next() => {
                systemd::stopping();
                context.note("stopping: what runs may end; once more to give it back, and again to kill it");
                shutdown.request();
            }
            () = watchdog.due() => systemd::alive(),
            true = handle.changed(), if !is_up => {
                is_up = handle.is_up();
                if is_up {
                    let processes: usize = handle.snapshot().groups.values().map(|census| census.ready).sum();
                    let said = format!("{} up", count(processes as u64, "process"));
                    context.note(&said);
                    systemd::ready(&said);
                }
            }
        }
    };
    let ended = ended.map_err(failure)?;
    context.note(format!("manager {tid} started {} and left", count(ended.started, "process")));
    if ended.killed == 0 {
        return Ok(0);
    }
    let processes = count(ended.killed, "process");
    context.note(format!("{processes} had to be killed (SIGKILL): the log says which; check what they were writing"));
    Ok(group::KILLED)
}

/// What all processes are told besides what their group says.
fn words(global: &Global, args: &UpArgs) -> Vec<std::ffi::OsString> {
    let mut words: Vec<std::ffi::OsString> = vec!["--log-format".into(), args.log.log_format.as_str().into()];
    if let Some(folder) = &args.handlers {
        words.extend(["--handlers".into(), folder.into()]);
    }
    (0..global.verbose).for_each(|_| words.push("--verbose".into()));
    words
}

fn failure(error: ManagerError) -> Failure {
    match error {
        ManagerError::Broker(error) => error.into(),
        ManagerError::Mistake(_)
        | ManagerError::Memory
        | ManagerError::SlugTaken { .. }
        | ManagerError::Url(_)
        | ManagerError::Trigger { source: schedule::Error::ByHand(_), .. } => Failure::Usage(error.to_string()),
        other => Failure::Raddle(other.to_string()),
    }
}
