//! `raddle submit`: one task, or one for each line, number or spec.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use indicatif::ProgressBar;
use raddle_broker::{AttemptId, Broker, ChainRequest, Error, NewTask, Submitted};
use raddle_model::TaskSpec;
use serde_json::json;

use crate::{
    args::{ItemArgs, SubmitArgs},
    context::Context,
    error::{Failure, OrFail, Outcome},
    format::count,
    output, progress, spec,
};

/// How many tasks are stored in one step, all or none.
const GROUP: usize = 1000;
/// The size of such a group, which bounds the memory of this process and of the broker.
const GROUP_BYTES: usize = 8 * 1024 * 1024;

pub(super) type SubmitItems = Box<dyn Iterator<Item = Outcome<String>>>;

pub(super) async fn submit(context: &Context, args: &SubmitArgs) -> Outcome {
    // The attempt that chains the tasks; otherwise they are submitted at once.
    let chain = match (args.chain, spec::own_attempt()) {
        (true, None) => {
            let why = "--chain is for what a task runs, and this is none: RADDLE_TID, RADDLE_ATTEMPT and RADDLE_WORKER are not set";
            return Err(Failure::Usage(format!(
                "{why}; without --chain it is submitted at once"
            )));
        }
        (is_chained, attempt) => attempt.filter(|_| is_chained),
    };
    let templates = match &args.file {
        Some(path) => spec::read_file(path)?,
        None => vec![spec::of_words(&args.target, &args.command)],
    };
    let mut templates: Vec<TaskSpec> = templates
        .into_iter()
        .map(|template| spec::complete(template, &args.spec))
        .collect::<Outcome<_>>()?;
    let each = templates.len() as u64;
    let reads_stdin = args.spec.stdin || args.file.as_deref() == Some(Path::new("-"));
    let items = items(&args.items, reads_stdin)?;
    let is_many = items.is_some() || each != 1;
    // Chained tasks are no batch before they are submitted.
    let batch = (is_many && chain.is_none())
        .then(|| args.spec.batch.clone().unwrap_or_else(spec::new_batch));
    for template in templates
        .iter_mut()
        .filter(|template| template.batch.is_none())
    {
        template.batch.clone_from(&batch);
    }
    let Some((items, total)) = items else {
        all(
            context,
            chain,
            templates.into_iter().map(Ok),
            Some(each),
            is_many,
        )
        .await?;
        return Ok(note_batch(context, batch));
    };
    let mut items = items.peekable();
    if items.peek().is_none() {
        context.note("there is no line, and so no task");
        return Ok(0);
    }
    let specs = items.flat_map(|item| -> Vec<Outcome<TaskSpec>> {
        match item {
            Ok(item) => templates
                .iter()
                .map(|template| spec::for_item(template, &item))
                .collect(),
            Err(failure) => vec![Err(failure)],
        }
    });
    all(
        context,
        chain,
        specs,
        total.map(|total| total.saturating_mul(each)),
        true,
    )
    .await?;
    Ok(note_batch(context, batch))
}

/// Prints the name of the batch.
fn note_batch(context: &Context, batch: Option<String>) -> u8 {
    if let Some(batch) = batch.filter(|_| !context.json) {
        context.note(format!(
            "batch {batch}: wait for it with 'raddle batch wait {batch}'"
        ));
    }
    0
}

/// The lines or numbers to make tasks of, and how many if that is known.
pub(super) fn items(
    args: &ItemArgs,
    reads_stdin: bool,
) -> Outcome<Option<(SubmitItems, Option<u64>)>> {
    Ok(match (&args.each_line, &args.array) {
        (Some(path), _) => Some((lines(path, reads_stdin)?, None)),
        (None, Some(numbers)) => Some((
            Box::new(numbers.clone().into_numbers().map(|n| Ok(n.to_string()))),
            Some(numbers.len()),
        )),
        (None, None) => None,
    })
}

/// Submits one task and prints its id.
pub(super) async fn one(context: &Context, spec: TaskSpec) -> Outcome {
    all(context, None, std::iter::once(Ok(spec)), None, false).await
}

/// Submits tasks in groups and prints the ids of each group once it is stored.
async fn all(
    context: &Context,
    chain: Option<AttemptId>,
    specs: impl Iterator<Item = Outcome<TaskSpec>>,
    total: Option<u64>,
    many: bool,
) -> Outcome {
    let broker = match chain {
        None => context.broker().await?,
        // Without a broker there is no task to chain to, and creating one is of no use.
        Some(_) => context.open_read_only().await?,
    };
    let bar = progress::submitted(total, many && !context.quiet);
    let mut stored = 0;
    let mut group = SubmitBatch::default();
    for spec in specs {
        let spec = spec.map_err(|failure| after(chain, stored, 0, failure))?;
        if let Some(full) = group.add(spec) {
            stored += submit_group(context, chain, &*broker, full, &bar, stored).await?;
        }
    }
    if !group.tasks.is_empty() {
        stored += submit_group(context, chain, &*broker, group.tasks, &bar, stored).await?;
    }
    if let Some(attempt_id) = chain {
        say_chained(context, attempt_id, stored)?;
    }
    Ok(0)
}

/// Tasks to store in one step.
#[derive(Default)]
pub(super) struct SubmitBatch {
    pub(super) tasks: Vec<NewTask>,
    bytes: usize,
}

impl SubmitBatch {
    /// Adds a task. Returns the tasks before it when the group is full.
    pub(super) fn add(&mut self, spec: TaskSpec) -> Option<Vec<NewTask>> {
        let bytes = size(&spec);
        let is_full = self.tasks.len() == GROUP || self.bytes + bytes > GROUP_BYTES;
        let before = (is_full && !self.tasks.is_empty()).then(|| std::mem::take(self).tasks);
        self.bytes += bytes;
        self.tasks.push(spec::submission(spec));
        before
    }
}

/// The size of a spec as JSON.
fn size(spec: &TaskSpec) -> usize {
    serde_json::to_vec(spec)
        .expect("a spec has only string keys")
        .len()
}

async fn submit_group(
    context: &Context,
    chain: Option<AttemptId>,
    broker: &dyn Broker,
    group: Vec<NewTask>,
    bar: &ProgressBar,
    before: u64,
) -> Outcome<u64> {
    let count = group.len() as u64;
    let batch = group.first().and_then(|task| task.spec.batch.clone());
    let stored = match chain {
        None => broker.submit(group).await,
        Some(attempt_id) => {
            let tasks = group.into_iter().map(|submit| submit.spec).collect();
            broker
                .chain(ChainRequest {
                    attempt_id,
                    tasks,
                    offset: None,
                })
                .await
                .map(|_| Vec::new())
        }
    };
    let submitted = stored.map_err(|error| {
        let unknown = match error {
            Error::Unanswered { .. } | Error::Unconfirmed { .. } | Error::Unsynced { .. } => count,
            _ => 0,
        };
        after(chain, before, unknown, explained(context, chain, error))
    })?;
    bar.inc(count);
    match bar.suspend(|| print(context, &submitted, batch.as_deref())) {
        // A closed stdout does not cancel the other tasks.
        Ok(()) | Err(Failure::ClosedPipe) => Ok(count),
        Err(failure) => {
            let stored = before + count;
            Err(Failure::Raddle(format!(
                "{failure} (the first {stored} tasks were submitted, and none after them)"
            )))
        }
    }
}

fn print(context: &Context, submitted: &[Submitted], batch: Option<&str>) -> Outcome<()> {
    let mut text = String::new();
    for one in submitted {
        let (tid, existing) = (one.tid(), matches!(one, Submitted::Existing(_)));
        if existing {
            context.note(format!(
                "task {tid} has this key already: nothing new was submitted"
            ));
        }
        let record = || {
            json!({ "tid": tid, "short": tid.short().to_string(), "existing": existing, "batch": batch }).to_string()
        };
        text.push_str(&if context.json {
            record()
        } else {
            tid.to_string()
        });
        text.push('\n');
    }
    output::raw(text.as_bytes())
}

/// Prints what happens to chained tasks, which have no ids yet.
fn say_chained(context: &Context, attempt_id: AttemptId, tasks: u64) -> Outcome<()> {
    let AttemptId { tid, attempt, .. } = attempt_id;
    if context.json {
        return output::json(&json!({ "tid": tid, "attempt": attempt, "chained": tasks }));
    }
    context.note(format!(
        "{} will be submitted when task {tid} completes",
        count(tasks, "task")
    ));
    Ok(())
}

/// Explains an unknown task: mostly the wrong broker was asked.
fn explained(context: &Context, chain: Option<AttemptId>, error: Error) -> Failure {
    match (chain, error) {
        (Some(_), Error::NotFound(tid)) => Failure::Usage(format!(
            "this is task {tid}, which {} does not have: name the broker that does with --queue-url or QUEUE_URL",
            context.project.url
        )),
        (_, error) => error.into(),
    }
}

/// Adds to an error how many tasks were stored before it, and for how many that is unknown: the
/// user needs it to start again.
fn after(chain: Option<AttemptId>, stored: u64, unknown: u64, failure: Failure) -> Failure {
    let (done, printed, list) = match chain {
        None => (
            "submitted",
            ", their ids are printed",
            ": 'raddle task list' shows it",
        ),
        // Chained tasks are not listed.
        Some(_) => ("chained", "", ""),
    };
    let first = (stored > 0).then(|| format!("the first {stored} tasks were {done}{printed}"));
    let which = match (stored, unknown) {
        (0, 0) => return failure,
        (_, 0) => None,
        (0, 1) => Some("the task was".into()),
        (0, count) => Some(format!("the first {count} tasks were")),
        (_, 1) => Some("the next one was".into()),
        (_, count) => Some(format!("the next {count} were")),
    };
    let rest = which.map_or("the rest were not".into(), |which| {
        format!("whether {which} {done} is not known{list}")
    });
    let told = first
        .into_iter()
        .chain([rest])
        .collect::<Vec<_>>()
        .join("; ");
    match failure {
        Failure::Usage(message) => Failure::Usage(format!("{message} ({told})")),
        Failure::Raddle(message) => Failure::Raddle(format!("{message} ({told})")),
        other => other,
    }
}

/// The lines of a file that are not empty, as they are read.
fn lines(path: &Path, reads_stdin: bool) -> Outcome<SubmitItems> {
    let (shown, reader): (String, Box<dyn BufRead>) = if path == Path::new("-") {
        if reads_stdin {
            return Err(Failure::Usage(
                "standard input cannot be both the lines and something else".into(),
            ));
        }
        ("standard input".into(), Box::new(io::stdin().lock()))
    } else {
        let shown = path.display().to_string();
        let file = File::open(path).or_usage_at(format_args!("cannot read {shown}"))?;
        (shown, Box::new(BufReader::new(file)))
    };
    let numbered = reader.lines().enumerate().map(move |(i, line)| {
        line.or_usage_at(format_args!("cannot read line {} of {shown}", i + 1))
    });
    Ok(Box::new(numbered.filter(
        |line| !matches!(line, Ok(text) if text.is_empty()),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(sizes: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut group = SubmitBatch::default();
        let spec = |bytes| TaskSpec {
            stdin: Some("x".repeat(bytes)),
            ..TaskSpec::command(["cat"])
        };
        let mut groups: Vec<usize> = sizes
            .into_iter()
            .filter_map(|bytes| group.add(spec(bytes)))
            .map(|full| full.len())
            .collect();
        groups.push(group.tasks.len());
        groups
    }

    #[test]
    fn a_group_ends_with_its_number_or_its_bytes() {
        assert_eq!(groups(vec![1; 2500]), [1000, 1000, 500]);
        assert_eq!(groups(vec![3 << 20; 5]), [2, 2, 1]);
        assert_eq!(
            groups([9 << 20, 1, 9 << 20, 9 << 20]),
            [1, 1, 1, 1],
            "one that is larger goes alone"
        );
    }

    #[test]
    fn what_is_not_known_is_not_denied() {
        let told = |stored, rest| match after(None, stored, rest, Failure::Raddle("no".into())) {
            Failure::Raddle(message) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(told(0, 0), "no");
        assert_eq!(
            told(2000, 0),
            "no (the first 2000 tasks were submitted, their ids are printed; the rest were not)"
        );
        assert_eq!(
            told(0, 1),
            "no (whether the task was submitted is not known: 'raddle task list' shows it)"
        );
        assert_eq!(
            told(2000, 500),
            "no (the first 2000 tasks were submitted, their ids are printed; whether the next 500 were submitted is not known: \
             'raddle task list' shows it)"
        );
    }

    #[test]
    fn all_of_a_spec_counts() {
        let mut spec = TaskSpec::command(["x"]);
        let empty = size(&spec);
        spec.metadata.insert("k".into(), "v".repeat(1000).into());
        assert!(size(&spec) > empty + 1000);
    }
}
