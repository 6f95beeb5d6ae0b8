//! `raddle submit`: one task, or one for each line, number or spec.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use raddle_broker::{Broker, Submit, Submitted};
use raddle_core::{Spec, Tid};
use serde_json::json;

use crate::{
    args::SubmitArgs,
    context::Context,
    error::{Failure, Outcome},
    output,
    progress::Progress,
    spec,
};

/// How many tasks are stored in one step: of each such group all or none.
const GROUP: usize = 1000;

type Items = Box<dyn Iterator<Item = Outcome<String>>>;

pub(super) async fn submit(context: &Context, args: &SubmitArgs) -> Outcome {
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
            all(context, specs, total.map(|total| total.saturating_mul(each)), many).await
        }
        None => {
            let total = templates.len() as u64;
            all(context, templates.into_iter().map(Ok), Some(total), many).await
        }
    }
}

/// Submits one task and prints its id.
pub(super) async fn one(context: &Context, spec: Spec) -> Outcome {
    all(context, std::iter::once(Ok(spec)), None, false).await
}

/// Submits tasks in groups and prints the ids of each group once it is stored.
async fn all(context: &Context, specs: impl Iterator<Item = Outcome<Spec>>, total: Option<u64>, many: bool) -> Outcome {
    let broker = context.broker().await?;
    let progress = many.then(|| Progress::start(total, context.quiet()));
    let mut stored = 0;
    let mut group = Vec::new();
    let mut specs = specs.peekable();
    while let Some(spec) = specs.next() {
        match spec {
            Ok(spec) => group.push(spec::submission(spec)),
            Err(failure) => return Err(after(stored, failure)),
        }
        if group.len() == GROUP || specs.peek().is_none() {
            let done = submit_group(context, &*broker, std::mem::take(&mut group), progress.as_ref()).await;
            stored += done.map_err(|failure| after(stored, failure))?;
        }
    }
    Ok(0)
}

async fn submit_group(
    context: &Context,
    broker: &dyn Broker,
    group: Vec<Submit>,
    progress: Option<&Progress>,
) -> Outcome<u64> {
    let count = group.len() as u64;
    let submitted = broker.submit(group).await?;
    let print = || print(context, &submitted);
    match progress {
        Some(progress) => progress.advance(count, print)?,
        None => print()?,
    }
    Ok(count)
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

/// A failure on the way says what had been stored before it: whoever starts again needs to know.
fn after(stored: u64, failure: Failure) -> Failure {
    if stored == 0 {
        return failure;
    }
    let so_far = format!("the first {stored} tasks were submitted, their ids are printed; the rest were not");
    match failure {
        Failure::Usage(message) => Failure::Usage(format!("{message} ({so_far})")),
        Failure::Raddle(message) => Failure::Raddle(format!("{message} ({so_far})")),
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
