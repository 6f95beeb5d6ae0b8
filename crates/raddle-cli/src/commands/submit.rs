//! `raddle submit`: one task, or one for each line, number or spec.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use raddle_broker::{Broker, Chain, Error, Fence, Submit, Submitted};
use raddle_core::{Spec, Tid};
use serde_json::json;

use crate::{
    args::SubmitArgs,
    context::Context,
    error::{Failure, Outcome},
    format::count,
    output,
    progress::Progress,
    spec,
};

/// How many tasks are stored in one step: of each such group all or none.
const GROUP: usize = 1000;
/// How large they may be together, so that neither this process nor the broker has to hold more at a time.
const GROUP_BYTES: usize = 8 * 1024 * 1024;

/// What is done with tasks.
#[derive(Clone, Copy)]
enum Way {
    /// They are submitted at once.
    Submit,
    /// They are submitted when this attempt succeeds.
    Chain(Fence),
}

/// What is known of the tasks after those that were stored.
#[derive(Clone, Copy)]
enum Rest {
    /// None of them were.
    Unstored,
    /// The next so many may have been, all or none.
    Unknown(u64),
}

type Items = Box<dyn Iterator<Item = Outcome<String>>>;

pub(super) async fn submit(context: &Context, args: &SubmitArgs) -> Outcome {
    let way = match (args.chain, spec::own_attempt()) {
        (false, _) => Way::Submit,
        (true, Some(fence)) => Way::Chain(fence),
        (true, None) => {
            let why = "--chain is for what a task runs, and this is none: RADDLE_TID and RADDLE_ATTEMPT are not set";
            return Err(Failure::Usage(format!("{why}; without --chain it is submitted at once")));
        }
    };
    let templates = match &args.file {
        Some(path) => spec::read_file(path)?,
        None => vec![spec::of_words(&args.target, &args.command)],
    };
    let templates: Vec<Spec> =
        templates.into_iter().map(|template| spec::complete(template, &args.spec)).collect::<Outcome<_>>()?;
    let items: Option<(Items, Option<u64>)> = match (&args.each_line, &args.array) {
        (Some(path), _) => Some((lines(path, args)?, None)),
        (None, Some(numbers)) => {
            let total = numbers.len();
            Some((Box::new(numbers.clone().iter().map(|n| Ok(n.to_string()))), Some(total)))
        }
        (None, None) => None,
    };
    let many = items.is_some() || templates.len() != 1;
    match items {
        Some((items, total)) => {
            let each = u64::try_from(templates.len()).unwrap_or(u64::MAX);
            let specs = items.flat_map(|item| -> Vec<Outcome<Spec>> {
                match item {
                    Ok(item) => templates.iter().map(|template| spec::for_item(template, &item)).collect(),
                    Err(failure) => vec![Err(failure)],
                }
            });
            all(context, way, specs, total.map(|total| total.saturating_mul(each)), many).await
        }
        None => {
            let total = templates.len() as u64;
            all(context, way, templates.into_iter().map(Ok), Some(total), many).await
        }
    }
}

/// Submits one task and prints its id.
pub(super) async fn one(context: &Context, spec: Spec) -> Outcome {
    all(context, Way::Submit, std::iter::once(Ok(spec)), None, false).await
}

/// Submits tasks in groups and prints the ids of each group once it is stored.
async fn all(
    context: &Context,
    way: Way,
    specs: impl Iterator<Item = Outcome<Spec>>,
    total: Option<u64>,
    many: bool,
) -> Outcome {
    let broker = match way {
        Way::Submit => context.broker().await?,
        // Where there is none, the task is not either: one that is made for it would be of no use.
        Way::Chain(_) => context.onlooker().await?,
    };
    let progress = many.then(|| Progress::start(total, context.quiet()));
    let mut stored = 0;
    let mut group = Group::default();
    for spec in specs {
        let spec = spec.map_err(|failure| after(way, stored, Rest::Unstored, failure))?;
        if let Some(full) = group.add(spec) {
            stored += submit_group(context, way, &*broker, full, progress.as_ref(), stored).await?;
        }
    }
    if !group.tasks.is_empty() {
        stored += submit_group(context, way, &*broker, group.tasks, progress.as_ref(), stored).await?;
    }
    if let Way::Chain(fence) = way {
        say_chained(context, fence, stored)?;
    }
    Ok(0)
}

/// Tasks that are to be stored in one step.
#[derive(Default)]
struct Group {
    tasks: Vec<Submit>,
    bytes: usize,
}

impl Group {
    /// Adds a task. Gives those before it when there is no room for it beside them.
    fn add(&mut self, spec: Spec) -> Option<Vec<Submit>> {
        let bytes = size(&spec);
        let is_full = self.tasks.len() == GROUP || self.bytes + bytes > GROUP_BYTES;
        let before = (is_full && !self.tasks.is_empty()).then(|| std::mem::take(self).tasks);
        self.bytes += bytes;
        self.tasks.push(spec::submission(spec));
        before
    }
}

/// How many bytes a spec has when it is written out.
fn size(spec: &Spec) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, spec).expect("a spec has only string keys");
    count.0
}

async fn submit_group(
    context: &Context,
    way: Way,
    broker: &dyn Broker,
    group: Vec<Submit>,
    progress: Option<&Progress>,
    before: u64,
) -> Outcome<u64> {
    let count = group.len() as u64;
    let stored = match way {
        Way::Submit => broker.submit(group).await,
        Way::Chain(fence) => {
            let tasks = group.into_iter().map(|submit| submit.spec).collect();
            broker.chain(Chain { fence, tasks, told: None }).await.map(|_| Vec::new())
        }
    };
    let submitted = stored.map_err(|error| {
        let rest = match error {
            Error::Unanswered { .. } | Error::Unconfirmed { .. } | Error::Unsynced { .. } => Rest::Unknown(count),
            _ => Rest::Unstored,
        };
        after(way, before, rest, explained(context, way, error))
    })?;
    let print = || print(context, &submitted);
    let printed = match progress {
        Some(progress) => progress.advance(count, print),
        None => print(),
    };
    match printed {
        // Whoever has seen enough ids has not said that the other tasks shall not be there.
        Ok(()) | Err(Failure::ClosedPipe) => Ok(count),
        Err(failure) => {
            let stored = before + count;
            Err(Failure::Raddle(format!("{failure} (the first {stored} tasks were submitted, and none after them)")))
        }
    }
}

fn print(context: &Context, submitted: &[Submitted]) -> Outcome<()> {
    let mut text = String::new();
    for one in submitted {
        let (tid, existing) = match one {
            Submitted::New(tid) => (*tid, false),
            Submitted::Existing(tid) => (*tid, true),
        };
        if existing {
            context.note(format!("task {tid} has this key already: nothing new was submitted"));
        }
        text.push_str(&if context.json { record(tid, existing) } else { tid.to_string() });
        text.push('\n');
    }
    output::raw(text.as_bytes())
}

fn record(tid: Tid, existing: bool) -> String {
    json!({ "tid": tid, "short": tid.short().to_string(), "existing": existing }).to_string()
}

/// Says what will become of what was chained. It has no ids to be printed.
fn say_chained(context: &Context, fence: Fence, tasks: u64) -> Outcome<()> {
    let Fence { tid, attempt } = fence;
    if context.json {
        return output::json(&json!({ "tid": tid, "attempt": attempt, "chained": tasks }));
    }
    context.note(format!("{} will be submitted when task {tid} completes", count(tasks, "task")));
    Ok(())
}

/// A task that is not where it was looked for is mostly looked for in the wrong place.
fn explained(context: &Context, way: Way, error: Error) -> Failure {
    match (way, error) {
        (Way::Chain(_), Error::NotFound(tid)) => Failure::Usage(format!(
            "this is task {tid}, which {} does not have: name the broker that does with --queue-url or QUEUE_URL",
            context.project.url
        )),
        (_, error) => error.into(),
    }
}

/// A failure on the way says what had been stored before it, and what is known of the rest: whoever starts again needs to know.
fn after(way: Way, stored: u64, rest: Rest, failure: Failure) -> Failure {
    let (done, printed, list) = match way {
        Way::Submit => ("submitted", ", their ids are printed", ": 'raddle task list' shows it"),
        // What was chained stands aside, where nobody sees it.
        Way::Chain(_) => ("chained", "", ""),
    };
    let first = (stored > 0).then(|| format!("the first {stored} tasks were {done}{printed}"));
    let rest: Option<String> = match rest {
        Rest::Unstored => first.is_some().then(|| "the rest were not".into()),
        Rest::Unknown(count) => {
            let which: String = match (stored, count) {
                (0, 1) => "the task was".into(),
                (0, count) => format!("the first {count} tasks were"),
                (_, 1) => "the next one was".into(),
                (_, count) => format!("the next {count} were"),
            };
            Some(format!("whether {which} {done} is not known{list}"))
        }
    };
    let told: Vec<String> = first.into_iter().chain(rest).collect();
    if told.is_empty() {
        return failure;
    }
    let told = told.join("; ");
    match failure {
        Failure::Usage(message) => Failure::Usage(format!("{message} ({told})")),
        Failure::Raddle(message) => Failure::Raddle(format!("{message} ({told})")),
        other => other,
    }
}

/// The lines of a file that are not empty, as they are read.
fn lines(path: &Path, args: &SubmitArgs) -> Outcome<Items> {
    let (shown, reader): (String, Box<dyn BufRead>) = if path == Path::new("-") {
        if args.spec.stdin || args.file.as_deref() == Some(path) {
            return Err(Failure::Usage("standard input cannot be both the lines and something else".into()));
        }
        ("standard input".into(), Box::new(io::stdin().lock()))
    } else {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(|e| Failure::Usage(format!("cannot read {shown}: {e}")))?;
        (shown, Box::new(BufReader::new(file)))
    };
    let numbered = reader
        .lines()
        .enumerate()
        .map(move |(i, line)| line.map_err(|e| Failure::Usage(format!("cannot read line {} of {shown}: {e}", i + 1))));
    Ok(Box::new(numbered.filter(|line| !matches!(line, Ok(text) if text.is_empty()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(sizes: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut group = Group::default();
        let spec = |bytes| Spec { stdin: Some("x".repeat(bytes)), ..Spec::command(["cat"]) };
        let mut groups: Vec<usize> =
            sizes.into_iter().filter_map(|bytes| group.add(spec(bytes))).map(|full| full.len()).collect();
        groups.push(group.tasks.len());
        groups
    }

    #[test]
    fn a_group_ends_with_its_number_or_its_bytes() {
        assert_eq!(groups(vec![1; 2500]), [1000, 1000, 500]);
        assert_eq!(groups(vec![3 << 20; 5]), [2, 2, 1]);
        assert_eq!(groups([9 << 20, 1, 9 << 20, 9 << 20]), [1, 1, 1, 1], "one that is larger goes alone");
    }

    #[test]
    fn what_is_not_known_is_not_denied() {
        let told = |stored, rest| match after(Way::Submit, stored, rest, Failure::Raddle("no".into())) {
            Failure::Raddle(message) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(told(0, Rest::Unstored), "no");
        assert_eq!(
            told(2000, Rest::Unstored),
            "no (the first 2000 tasks were submitted, their ids are printed; the rest were not)"
        );
        assert_eq!(
            told(0, Rest::Unknown(1)),
            "no (whether the task was submitted is not known: 'raddle task list' shows it)"
        );
        assert_eq!(
            told(2000, Rest::Unknown(500)),
            "no (the first 2000 tasks were submitted, their ids are printed; whether the next 500 were submitted is not known: \
             'raddle task list' shows it)"
        );
    }

    #[test]
    fn all_of_a_spec_counts() {
        let mut spec = Spec::command(["x"]);
        let empty = size(&spec);
        spec.metadata.insert("k".into(), "v".repeat(1000).into());
        assert!(size(&spec) > empty + 1000);
    }
}
