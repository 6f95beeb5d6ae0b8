//! The reference of the command line as one page of the book.

use std::fmt::Write;

use clap::{Arg, Command};

/// The heading of the options that every command takes.
const GLOBAL: &str = "Global options";

/// The page. Options that every command takes are listed once.
pub(crate) fn page(mut command: Command) -> String {
    command.build();
    let mut page = String::from(
        "# Command line\n\n<!-- Generated from the program by `cargo xtask reference`. Edit the help texts instead. -->\n\n",
    );
    page.push_str("Every command and every option, as `--help` shows them. [Use the command line](../how-to/command-line.md) explains how commands work together, and [exit codes](exit-codes.md) lists what they exit with.\n\n");
    page.push_str("The released binary has all of these commands. A build from source has `raddle cert` with the feature `tls`, the launcher `kubernetes` with the feature `kubernetes`, and `--otlp-endpoint` with the feature `otlp`.\n\n");
    let leaves = leaves(&command, &mut vec![command.get_name().to_owned()]);
    page.push_str("| command | |\n| --- | --- |\n");
    for (path, leaf) in &leaves {
        let name = path.join(" ");
        let about = leaf.get_about().map(ToString::to_string);
        let anchor = name.replace(' ', "-");
        let _ = writeln!(
            page,
            "| [`{name}`](#{anchor}) | {} |",
            cell(&about.unwrap_or_default())
        );
    }
    page.push_str("\n## Global options\n\nThese work with every command.\n\n");
    table(
        &mut page,
        command.get_arguments().filter(|arg| is_global(arg)),
    );
    for (path, leaf) in leaves {
        section(&mut page, &path, leaf);
    }
    page
}

/// The commands that do something themselves, with their words.
fn leaves<'a>(command: &'a Command, path: &mut Vec<String>) -> Vec<(Vec<String>, &'a Command)> {
    let mut all = Vec::new();
    for sub in command.get_subcommands() {
        if sub.is_hide_set() || sub.get_name() == "help" {
            continue;
        }
        path.push(sub.get_name().to_owned());
        let below = leaves(sub, path);
        if below.is_empty() {
            all.push((path.clone(), sub));
        }
        all.extend(below);
        path.pop();
    }
    all
}

fn section(page: &mut String, path: &[String], command: &Command) {
    let name = path.join(" ");
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let _ = write!(
        page,
        "\n## `{name}`\n\n{}.\n",
        text(about.trim_end_matches('.'))
    );
    let aliases: Vec<String> = command
        .get_all_aliases()
        .map(|alias| format!("`{alias}`"))
        .collect();
    if !aliases.is_empty() {
        let _ = write!(page, "\nAlso: {}.\n", aliases.join(", "));
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let _ = write!(page, "\n```text\n{usage}\n```\n");
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| is_shown(arg))
        .collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in &arguments {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        page.push('\n');
        if let Some(heading) = heading {
            let _ = write!(page, "{heading}:\n\n");
        }
        table(
            page,
            arguments
                .iter()
                .copied()
                .filter(|arg| arg.get_help_heading() == heading),
        );
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        let _ = write!(page, "\n```text\n{}\n```\n", after.to_string().trim_end());
    }
}

fn is_global(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(GLOBAL)
}

fn is_shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !is_global(arg) && !["help", "version"].contains(&arg.get_id().as_str())
}

fn table<'a>(page: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    let arguments: Vec<&Arg> = arguments.collect();
    let has_variables = arguments.iter().any(|arg| arg.get_env().is_some());
    page.push_str(if has_variables {
        "| option | variable | |\n| --- | --- | --- |\n"
    } else {
        "| option | |\n| --- | --- |\n"
    });
    for arg in arguments {
        let _ = write!(page, "| {} ", spelling(arg));
        if has_variables {
            let variable = arg.get_env().and_then(std::ffi::OsStr::to_str);
            let _ = write!(
                page,
                "| {} ",
                variable.map_or(String::new(), |name| format!("`{name}`"))
            );
        }
        let _ = writeln!(page, "| {} |", cell(&meaning(arg)));
    }
}

/// The names of an argument and of its values.
fn spelling(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let takes_values = arg
        .get_num_args()
        .is_some_and(|number| number.takes_values());
    let values = if takes_values || arg.is_positional() {
        values.join(" ")
    } else {
        String::new()
    };
    let mut names = Vec::new();
    names.extend(arg.get_short().map(|short| format!("-{short}")));
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    let name = names.join(", ");
    let spelled = match (name.is_empty(), values.is_empty()) {
        (true, _) => values,
        (false, true) => name,
        (false, false) => format!("{name} {values}"),
    };
    format!("`{}`", spelled.replace('|', "\\|"))
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let mut meaning = help.map(ToString::to_string).unwrap_or_default();
    let is_flag = !arg
        .get_num_args()
        .is_some_and(|number| number.takes_values());
    let defaults = arg.get_default_values();
    if !is_flag && !arg.is_hide_default_value_set() && !defaults.is_empty() {
        let defaults: Vec<_> = defaults
            .iter()
            .map(|value| value.to_string_lossy())
            .collect();
        let _ = write!(meaning, " [default: {}]", defaults.join(" "));
    }
    let possible = arg.get_possible_values();
    if !is_flag && !arg.is_hide_possible_values_set() && !possible.is_empty() {
        let names: Vec<&str> = possible.iter().map(|value| value.get_name()).collect();
        let _ = write!(meaning, " [possible values: {}]", names.join(", "));
    }
    meaning
}

/// A text in a cell of a table.
fn cell(text_of_cell: &str) -> String {
    text(text_of_cell).replace('\n', " ").replace('|', "\\|")
}

fn text(text: &str) -> String {
    text.replace('<', "&lt;").replace('[', "\\[")
}
