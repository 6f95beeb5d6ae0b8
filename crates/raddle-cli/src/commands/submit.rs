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

/// How many tasks are stored in one transaction.
const MAX_GROUP: usize = 1000;
/// The size of such a group, which bounds the memory of this process and of the broker.
const MAX_GROUP_BYTES: usize = 8 * 1024 * 1024;

pub(super) type SubmitItems = Box<dyn Iterator<Item = Outcome<String>>>;

pub(super) async fn submit(context: &Context, args: &SubmitArgs) -> Outcome {
    // The attempt that chains the tasks; otherwise they are submitted at once.
    let chain = match (args.chain, spec::current_attempt()) {
        (true, None) => {
            let why = "--chain works only inside a task: RADDLE_TID, RADDLE_ATTEMPT and RADDLE_WORKER are not set";
            return Err(Failure::Usage(format!("{why}; submit without --chain")));
        }
        (is_chained, attempt) => attempt.filter(|_| is_chained),
    };
    let templates = match &args.file {
        Some(path) => spec::read_file(path)?,
        None => vec![spec::from_words(&args.target, &args.command)],
    };
    let mut templates: Vec<TaskSpec> = templates
        .into_iter()
        .map(|template| spec::complete_spec(template, &args.spec))
        .collect::<Outcome<_>>()?;
    let each = templates.len() as u64;
    let reads_stdin = args.spec.stdin || args.file.as_deref() == Some(Path::new("-"));
    let items = read_items(&args.items, reads_stdin)?;
    let is_many = items.is_some() || each != 1;
    // Chained tasks become a batch only when they are submitted.
    let batch = (is_many && chain.is_none())
        .then(|| args.spec.batch.clone().unwrap_or_else(spec::new_batch));
    for template in templates
        .iter_mut()
        .filter(|template| template.batch.is_none())
    {
        template.batch.clone_from(&batch);
    }
    let Some((items, total)) = items else {
        submit_all(
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
        context.note("no lines, so no tasks were submitted");
        return Ok(0);
    }
    let specs = items.flat_map(|item| -> Vec<Outcome<TaskSpec>> {
        match item {
            Ok(item) => templates
                .iter()
                .map(|template| spec::fill_template(template, &item))
                .collect(),
            Err(failure) => vec![Err(failure)],
        }
    });
    submit_all(
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
pub(super) fn read_items(
    args: &ItemArgs,
    reads_stdin: bool,
) -> Outcome<Option<(SubmitItems, Option<u64>)>> {
    Ok(match (&args.each_line, &args.array) {
        (Some(path), _) => Some((read_lines(path, reads_stdin)?, None)),
        (None, Some(numbers)) => Some((
            Box::new(numbers.clone().into_numbers().map(|n| Ok(n.to_string()))),
            Some(numbers.len()),
        )),
        (None, None) => None,
    })
}

/// Submits one task and prints its id.
pub(super) async fn submit_one(context: &Context, spec: TaskSpec) -> Outcome {
    submit_all(context, None, std::iter::once(Ok(spec)), None, false).await
}

/// Submits tasks in groups and prints the ids of each group once it is stored.
async fn submit_all(
    context: &Context,
    chain: Option<AttemptId>,
    specs: impl Iterator<Item = Outcome<TaskSpec>>,
    total: Option<u64>,
    many: bool,
) -> Outcome {
    let broker = match chain {
        None => context.open_broker().await?,
        // Do not create a broker: a new one has no task to chain to.
        Some(_) => context.open_existing().await?,
    };
    let bar = progress::submitted(total, many && !context.quiet);
    let mut stored = 0;
    let mut group = SubmitBatch::default();
    for spec in specs {
        let spec = spec.map_err(|failure| with_progress(chain, stored, 0, failure))?;
        if let Some(full) = group.add(spec) {
            stored += submit_group(context, chain, &*broker, full, &bar, stored).await?;
        }
    }
    if !group.tasks.is_empty() {
        stored += submit_group(context, chain, &*broker, group.tasks, &bar, stored).await?;
    }
    if let Some(attempt_id) = chain {
        print_chained(context, attempt_id, stored)?;
    }
    Ok(0)
}

/// Tasks to store in one transaction.
#[derive(Default)]
pub(super) struct SubmitBatch {
    pub(super) tasks: Vec<NewTask>,
    bytes: usize,
}

impl SubmitBatch {
    /// Adds a task. Returns the tasks before it when the group is full.
    pub(super) fn add(&mut self, spec: TaskSpec) -> Option<Vec<NewTask>> {
        let bytes = size(&spec);
        let is_full = self.tasks.len() == MAX_GROUP || self.bytes + bytes > MAX_GROUP_BYTES;
        let before = (is_full && !self.tasks.is_empty()).then(|| std::mem::take(self).tasks);
        self.bytes += bytes;
        self.tasks.push(spec::new_task(spec));
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
        with_progress(chain, before, unknown, explain_error(context, chain, error))
    })?;
    bar.inc(count);
    match bar.suspend(|| print(context, &submitted, batch.as_deref())) {
        // A closed stdout does not cancel the other tasks.
        Ok(()) | Err(Failure::ClosedPipe) => Ok(count),
        Err(failure) => {
            let stored = before + count;
            Err(Failure::Raddle(format!(
                "{failure} (only the first {stored} tasks were submitted)"
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
                "task {tid} already has this key: no task was submitted"
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
    output::print_raw(text.as_bytes())
}

/// Prints what happens to chained tasks, which have no ids yet.
fn print_chained(context: &Context, attempt_id: AttemptId, tasks: u64) -> Outcome<()> {
    let AttemptId { tid, attempt, .. } = attempt_id;
    if context.json {
        return output::print_json(&json!({ "tid": tid, "attempt": attempt, "chained": tasks }));
    }
    context.note(format!(
        "{} will be submitted when task {tid} completes",
        count(tasks, "task")
    ));
    Ok(())
}

/// Explains an unknown task: usually it is in another broker.
fn explain_error(context: &Context, chain: Option<AttemptId>, error: Error) -> Failure {
    match (chain, error) {
        (Some(_), Error::NotFound(tid)) => Failure::Usage(format!(
            "this is task {tid}, which is not in {}: name its broker with --queue-url or QUEUE_URL",
            context.project.url
        )),
        (_, error) => error.into(),
    }
}

/// Adds to an error how many tasks were stored before it, and for how many that is unknown, so that
/// the user can continue.
fn with_progress(chain: Option<AttemptId>, stored: u64, unknown: u64, failure: Failure) -> Failure {
    let (done, printed, list) = match chain {
        None => (
            "submitted",
            ", their ids are printed",
            ": see 'raddle task list'",
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
        format!("it is unknown whether {which} {done}{list}")
    });
    let progress = first
        .into_iter()
        .chain([rest])
        .collect::<Vec<_>>()
        .join("; ");
    match failure {
        Failure::Usage(message) => Failure::Usage(format!("{message} ({progress})")),
        Failure::Raddle(message) => Failure::Raddle(format!("{message} ({progress})")),
        other => other,
    }
}

/// Reads the non-empty lines of a file, one at a time.
fn read_lines(path: &Path, reads_stdin: bool) -> Outcome<SubmitItems> {
    let (shown, reader): (String, Box<dyn BufRead>) = if path == Path::new("-") {
        if reads_stdin {
            return Err(Failure::Usage(
                "standard input cannot be used both for --each-line and for another flag".into(),
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
    fn a_group_is_limited_in_number_and_bytes() {
        assert_eq!(groups(vec![1; 2500]), [1000, 1000, 500]);
        assert_eq!(groups(vec![3 << 20; 5]), [2, 2, 1]);
        assert_eq!(
            groups([9 << 20, 1, 9 << 20, 9 << 20]),
            [1, 1, 1, 1],
            "a larger task is alone in its group"
        );
    }

    #[test]
    fn an_error_tells_which_tasks_were_submitted() {
        let message =
            |stored, rest| match with_progress(None, stored, rest, Failure::Raddle("no".into())) {
                Failure::Raddle(message) => message,
                other => panic!("{other:?}"),
            };
        assert_eq!(message(0, 0), "no");
        assert_eq!(
            message(2000, 0),
            "no (the first 2000 tasks were submitted, their ids are printed; the rest were not)"
        );
        assert_eq!(
            message(0, 1),
            "no (it is unknown whether the task was submitted: see 'raddle task list')"
        );
        assert_eq!(
            message(2000, 500),
            "no (the first 2000 tasks were submitted, their ids are printed; it is unknown whether the next 500 were submitted: \
             see 'raddle task list')"
        );
    }

    #[test]
    fn the_size_includes_the_whole_spec() {
        let mut spec = TaskSpec::command(["x"]);
        let empty = size(&spec);
        spec.metadata.insert("k".into(), "v".repeat(1000).into());
        assert!(size(&spec) > empty + 1000);
    }
}
