//! Arguments of `raddle run` and `raddle submit`.

use std::{ops::RangeInclusive, path::PathBuf, str::FromStr};

use clap::Args;

use super::SpecArgs;

/// Runs a command as a task.
#[derive(Debug, Default, Args)]
#[command(after_help = "Examples:
  raddle run -- echo hello
  raddle run --timeout 30s --retry 2 -- ./flaky.sh
  sort -u names | raddle run --memory 512 -- ./import
  raddle run --json -- ls | jq -r .stdout
  ls *.png | raddle run --each-line - --jobs 4 -- optipng {}

The command runs inside raddle run, with this environment. A worker runs it instead with
--no-inline or --queue, or if it needs something that only workers have: --requires, --isolation
docker, --routine, --handler. Piped standard input is passed on. Ctrl-C stops the task, a second one
kills it.

With --each-line or --array it runs a batch, --jobs tasks at a time. The output of a task is printed
when the task has ended. The exit code is 0 if all tasks completed, otherwise 1.")]
pub(crate) struct RunArgs {
    /// Submit the task and print its id, without waiting
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Have a worker run the task, with the worker's environment
    #[arg(long)]
    pub(crate) no_inline: bool,
    #[command(flatten)]
    pub(crate) items: ItemArgs,
    /// How many tasks run at a time [default: the number of cores]
    #[arg(short, long, value_name = "N", requires = "items", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) jobs: Option<u32>,
    /// The program and its arguments
    #[arg(value_name = "CMD", required_unless_present_any = ["routine", "handler"], trailing_var_arg = true)]
    pub(crate) command: Vec<String>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    // Last, because its heading applies to all flags that follow.
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
}

/// Items, each of which becomes a task.
#[derive(Debug, Default, Args)]
#[group(id = "items")]
pub(crate) struct ItemArgs {
    /// One task for each non-empty line of a file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "array")]
    pub(crate) each_line: Option<PathBuf>,
    /// One task for each number: 1-1000, or 1,5,10-20
    #[arg(long, value_name = "NUMBERS")]
    pub(crate) array: Option<Numbers>,
}

/// A target that is not a program.
#[derive(Debug, Default, Args)]
pub(crate) struct TargetArgs {
    /// Call this routine, with CMD as its arguments: each is JSON, otherwise text
    #[arg(long, value_name = "NAME")]
    pub(crate) routine: Option<String>,
    /// Pass CMD to this handler, or with 'any' to the first that matches: each word is JSON,
    /// otherwise text
    #[arg(long, value_name = "NAME", conflicts_with = "routine")]
    pub(crate) handler: Option<String>,
}

/// Submits tasks without waiting for them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle submit -- make test             prints the task's id
  raddle submit --file spec.toml         flags override the file
  raddle submit --array 1-1000 -- ./render --frame {}
  raddle submit --handler word-count -- \"some text\"
  find . -name '*.png' | raddle submit --each-line - -- optipng {}
  raddle run -- sh -c './extract && raddle submit --chain -- ./load'

With --each-line and --array, {} in the command, in --name and in --unique-key is replaced by the
line or number, which is also in RADDLE_ITEM. Tasks are stored in groups of 1000, each group whole
or not at all. They form a batch, for 'raddle batch'; --batch sets its name.

With --chain no ids are printed: chained tasks are submitted in the transaction that completes the
task that chains them. If that task fails or is lost, they are never submitted.")]
pub(crate) struct SubmitArgs {
    /// Inside a task: submit when this attempt succeeds
    #[arg(long)]
    pub(crate) chain: bool,
    /// Read the spec from a file, TOML if it ends in .toml, otherwise JSON; - is JSON from standard
    /// input
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) items: ItemArgs,
    /// The program and its arguments
    #[arg(value_name = "CMD", required_unless_present_any = ["file", "routine", "handler"], trailing_var_arg = true)]
    pub(crate) command: Vec<String>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    // Last, because its heading applies to all flags that follow.
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
}

/// The largest number of tasks of one command: more are taken for a typing error.
const MAX_NUMBERS: u64 = 10_000_000;

/// Numbers, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numbers(Vec<RangeInclusive<u64>>);

impl Numbers {
    /// How many numbers there are.
    pub(crate) fn len(&self) -> u64 {
        self.0
            .iter()
            .map(|range| (range.end() - range.start()).saturating_add(1))
            .fold(0, u64::saturating_add)
    }

    /// All numbers.
    pub(crate) fn into_numbers(self) -> impl Iterator<Item = u64> {
        self.0.into_iter().flatten()
    }
}

impl FromStr for Numbers {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "write it as 1-1000, or 1,5,10-20";
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| FORM);
        let ranges = text.split(',').map(|part| match part.split_once('-') {
            None => number(part).map(|only| only..=only),
            Some((first, last)) => {
                let range = number(first)?..=number(last)?;
                if range.is_empty() {
                    Err("the first number of a range must not be above its last")
                } else {
                    Ok(range)
                }
            }
        });
        let numbers = Self(ranges.collect::<Result<_, _>>()?);
        if numbers.len() > MAX_NUMBERS {
            Err("is more than 10,000,000 tasks: submit them in parts")
        } else {
            Ok(numbers)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_numbers_and_ranges_in_order() {
        let numbers: Numbers = "1-3,7,5-5".parse().unwrap();
        assert_eq!(numbers.len(), 5);
        assert_eq!(numbers.into_numbers().collect::<Vec<_>>(), [1, 2, 3, 7, 5]);
        for bad in ["", "a", "3-1", "1-", "-1", "1,,2", "1-2-3"] {
            assert!(bad.parse::<Numbers>().is_err(), "{bad}");
        }
        assert_eq!("1-10000000".parse::<Numbers>().unwrap().len(), MAX_NUMBERS);
        for bad in ["1-10000001", "0-18446744073709551615"] {
            assert!(bad.parse::<Numbers>().is_err(), "{bad}");
        }
    }
}
