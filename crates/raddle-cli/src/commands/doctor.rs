//! `raddle doctor`: prints the results of checks, with fixes.

use std::path::{Path, PathBuf};

use raddle_view::doctor::{Diagnosis, DoctorOptions, Finding, MissingDatabase, diagnose};
use serde_json::json;

use super::up::find_file;
use crate::{
    context::Context,
    error::{Failure, Outcome, TASK_FAILED},
    project::{Source, current_directory},
};

pub(super) async fn doctor(context: &Context, file: Option<&Path>) -> Outcome {
    let url_source = match &context.project.source {
        Source::Explicit => "from --queue-url or QUEUE_URL".to_owned(),
        Source::File(path) => format!("from {}", path.display()),
        Source::CurrentDirectory => "the current directory, by default".to_owned(),
    };
    let missing_database = context.absent_database().map(|path| MissingDatabase {
        path,
        fix: context.missing_broker_message(),
    });
    let options = DoctorOptions {
        url: &context.project.url,
        url_source,
        missing_database,
        group_file: group_file(context, file)?,
    };
    let diagnosis = diagnose(options).await?;
    context.show(&json!(diagnosis), || text(&diagnosis))?;
    Ok(if diagnosis.ok { 0 } else { TASK_FAILED })
}

/// The file with the groups: the named one, or the one of this project.
fn group_file(context: &Context, file: Option<&Path>) -> Outcome<Option<PathBuf>> {
    let here = current_directory()?;
    match (file, &context.project.source) {
        (Some(path), _) => {
            let path = here.join(path);
            if path.is_file() {
                return Ok(Some(path));
            }
            Err(Failure::Usage(format!(
                "{}: there is no such file",
                path.display()
            )))
        }
        (None, Source::File(path)) => Ok(Some(path.clone())),
        // The location of the broker does not tell which groups run.
        (None, Source::Explicit | Source::CurrentDirectory) => Ok(find_file(&here)),
    }
}

fn text(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for (label, value) in [
        ("engine", &diagnosis.engine),
        ("durability", &diagnosis.durability),
    ] {
        if let Some(value) = value {
            text.push_str(&format!("      {label}: {value}\n"));
        }
    }
    text.extend(diagnosis.checks.iter().map(finding_text));
    text
}

fn finding_text(finding: &Finding) -> String {
    let Finding {
        area, name, detail, ..
    } = finding;
    let mark = match (finding.ok, finding.vital) {
        (true, _) => "ok   ",
        (false, false) => "warn ",
        (false, true) => "error",
    };
    let fix = finding
        .fix
        .as_ref()
        .filter(|_| !finding.ok)
        .map(|fix| format!("      fix: {fix}\n"));
    format!(
        "{mark} {area}, {name}: {detail}\n{}",
        fix.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_finding_is_shown_with_its_fix() {
        let warning = Finding::warning("limits", "x", "low".into(), "raise it");
        assert_eq!(
            finding_text(&warning),
            "warn  limits, x: low\n      fix: raise it\n"
        );
        let error = Finding::error("broker", "database", "gone".into(), "restore it");
        assert_eq!(
            finding_text(&error),
            "error broker, database: gone\n      fix: restore it\n"
        );
        assert_eq!(
            finding_text(&Finding::fine("limits", "x", "high".into())),
            "ok    limits, x: high\n"
        );
    }
}
