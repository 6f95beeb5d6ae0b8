//! The command line of the TUI: `:queue mail`, `:tid 0657212416`, `:retry`.

use raddle_model::{
    TaskQuery,
    query::{Condition, Pattern, Term, TextField},
    tid::TidArg,
};

use crate::{action::TaskAction, screen::Screen};

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    Quit,
    Help,
    Show(Screen),
    /// Show the tasks of a query.
    Tasks(TaskQuery),
    /// Open a task.
    Open(TidArg),
    Act(TaskAction),
}

/// Parses a command.
pub(crate) fn parse(text: &str) -> Result<Command, String> {
    let (name, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let rest = rest.trim();
    let screen = Screen::ALL.into_iter().find(|screen| screen.name() == name);
    let action = TaskAction::ALL
        .into_iter()
        .find(|action| action.verb() == name);
    match (name, rest) {
        ("q" | "quit", "") => Ok(Command::Quit),
        ("help", "") => Ok(Command::Help),
        ("queue", queue) if !queue.is_empty() => {
            let named = Condition::Text(TextField::Queue, vec![Pattern::exact(queue)]);
            Ok(Command::Tasks(TaskQuery::from_iter([Term::new(named)])))
        }
        ("tid", tid) if !tid.is_empty() => {
            let tid = tid.parse().map_err(|error| format!("{error}"))?;
            Ok(Command::Open(tid))
        }
        ("tasks", query) => {
            let query = query.parse().map_err(|error| format!("{error}"))?;
            Ok(Command::Tasks(query))
        }
        (_, "") => screen
            .map(Command::Show)
            .or(action.map(Command::Act))
            .ok_or_else(|| unknown(name)),
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> String {
    format!("there is no command ':{name}': Tab shows what there is")
}

/// All names of commands.
fn names() -> Vec<String> {
    let fixed = ["help", "queue", "quit", "tid"].map(str::to_owned);
    let screens = Screen::ALL.into_iter().map(Screen::name);
    let actions = TaskAction::ALL.into_iter().map(|it| it.verb().to_owned());
    let mut names: Vec<String> = fixed.into_iter().chain(screens).chain(actions).collect();
    names.sort();
    names
}

/// Completes the name of a command as far as it is unique. Returns it with what is possible.
pub(crate) fn complete(text: &str) -> (String, Vec<String>) {
    let possible: Vec<String> = names()
        .into_iter()
        .filter(|name| name.starts_with(text))
        .collect();
    let Some(first) = possible.first() else {
        return (text.into(), possible);
    };
    let common = possible.iter().fold(first.len(), |length, name| {
        let same = first.bytes().zip(name.bytes()).take_while(|(a, b)| a == b);
        length.min(same.count())
    });
    (first[..common].into(), possible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed_and_completed() {
        assert_eq!(parse("q"), Ok(Command::Quit));
        assert_eq!(parse(" failures "), Ok(Command::Show(Screen::Failures)));
        assert_eq!(parse("retry"), Ok(Command::Act(TaskAction::Retry)));
        let query = "queue:mail".parse().unwrap();
        assert_eq!(parse("queue mail"), Ok(Command::Tasks(query)));
        assert!(matches!(parse("tid 0657212416"), Ok(Command::Open(_))));
        assert!(parse("tid 1").unwrap_err().contains("19 digits"));
        assert!(parse("tasks state:x").unwrap_err().contains("character 7"));
        assert!(parse("nothing").unwrap_err().contains("':nothing'"));
        assert_eq!(complete("fa").0, "failures");
        assert_eq!(
            complete("que"),
            ("queue".into(), vec!["queue".into(), "queues".into()])
        );
        assert_eq!(complete("x"), ("x".into(), vec![]));
    }
}
