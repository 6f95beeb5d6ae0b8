//! Checks that service managers wait for the end of group processes: compose files and units beside
//! the file with the groups, and the units of this machine.

use std::{
    fs,
    path::{Path, PathBuf},
};

use raddle_groups::{
    self as group, GroupFileError, Process,
    service_manager::{self, UpService},
};
use raddle_model::{HumanDuration, WorkerEntry};

use super::Finding;

const AREA: &str = "groups";
const COMPOSE: [&str; 4] = [
    "compose.yaml",
    "compose.yml",
    "docker-compose.yaml",
    "docker-compose.yml",
];
/// The directory of a machine's own units.
const UNITS: &str = "/etc/systemd/system";

/// Checks the units of this machine.
pub(super) fn check_system_units() -> Vec<Finding> {
    check_units(Path::new(UNITS))
}

/// Checks compose files and units beside a file, or in its directory `deploy`. They belong to that
/// file, under whatever name they run.
pub(super) fn check_beside(path: &Path, workers: &[WorkerEntry]) -> Vec<Finding> {
    let processes = match read_groups(path) {
        Ok(Some(processes)) => processes,
        // Without groups there is nothing to check.
        Ok(None) => return Vec::new(),
        Err(finding) => return vec![*finding],
    };
    let directory = path.parent().unwrap_or(Path::new("/"));
    let directories =
        ["", "deploy", "deploy/compose", "deploy/systemd"].map(|name| directory.join(name));
    let mut findings: Vec<Finding> = check_routines(path, &processes, workers)
        .into_iter()
        .collect();
    for file in directories.iter().flat_map(|directory| files_in(directory)) {
        let name = file_name(&file);
        let is_compose = COMPOSE.contains(&&*name);
        if !is_compose && !name.ends_with(".service") {
            continue;
        }
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let runs = if is_compose {
            service_manager::parse_compose(&text)
        } else {
            service_manager::parse_unit(&name, &text)
                .into_iter()
                .collect()
        };
        findings.extend(
            runs.iter()
                .map(|run| check_stop_timeout(&file, run, is_compose, &processes)),
        );
    }
    findings.sort_by(|a, b| a.detail.cmp(&b.detail));
    findings
}

/// A routine in the file that no program offers.
fn check_routines(path: &Path, processes: &[Process], workers: &[WorkerEntry]) -> Option<Finding> {
    let mistake = group::find_unoffered_routine(processes, workers)?;
    let mistake = GroupFileError::locate(&fs::read_to_string(path).unwrap_or_default(), mistake);
    let detail = format!("{}:{mistake}", path.display());
    Some(Finding::error(
        AREA,
        "routine",
        detail,
        "start a program that offers it: until then its tasks wait, and 'raddle up' refuses the file",
    ))
}

/// Checks the units of a machine, each of which names its file.
fn check_units(directory: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files_in(directory)
        .into_iter()
        .filter(|file| file_name(file).ends_with(".service"))
    {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let text = text + &drop_ins(&file);
        let (Some(run), Some(path)) = (
            service_manager::parse_unit(&file_name(&file), &text),
            service_manager::file_of_unit(&text),
        ) else {
            continue;
        };
        match read_groups(&path) {
            Ok(Some(processes)) => {
                findings.push(check_stop_timeout(&file, &run, false, &processes))
            }
            Ok(None) => {}
            Err(finding) => findings.push(*finding),
        }
    }
    findings
}

/// The drop-ins of a unit: the last value counts.
fn drop_ins(unit: &Path) -> String {
    let directory = unit.with_file_name(format!("{}.d", file_name(unit)));
    let files = files_in(&directory)
        .into_iter()
        .filter(|file| file_name(file).ends_with(".conf"));
    files
        .filter_map(|file| fs::read_to_string(file).ok())
        .map(|text| format!("\n{text}"))
        .collect()
}

/// The groups of a file; `None` if it has none or cannot be read.
fn read_groups(path: &Path) -> Result<Option<Vec<Process>>, Box<Finding>> {
    let Ok(text) = fs::read_to_string(path) else {
        return Ok(None);
    };
    match group::parse(&text) {
        Ok(processes) => Ok(Some(processes)),
        Err(GroupFileError { error, .. }) if error.path == "process" => Ok(None),
        Err(mistake) => {
            let detail = format!("{}:{mistake}", path.display());
            Err(Box::new(Finding::warning(
                AREA,
                "raddle.toml",
                detail,
                "fix that line: 'raddle up' refuses the file",
            )))
        }
    }
}

/// Checks whether a service waits as long as a stop may take.
fn check_stop_timeout(
    file: &Path,
    run: &UpService,
    is_compose: bool,
    processes: &[Process],
) -> Finding {
    let needed = HumanDuration(service_manager::stop_grace_period(processes));
    let seconds = needed.0.as_secs_f64().ceil();
    let (name, assigned) = match is_compose {
        true => (
            "stop_grace_period",
            format!("stop_grace_period: {seconds}s"),
        ),
        false => ("TimeoutStopSec", format!("TimeoutStopSec={seconds}")),
    };
    let ok = run.stop_timeout.is_none_or(|within| within >= needed.0);
    let within = run.stop_timeout.map_or("no limit".to_owned(), |within| {
        HumanDuration(within).to_string()
    });
    let verb = if run.is_explicit {
        "sets"
    } else {
        "uses the default of"
    };
    let detail = format!(
        "{}: '{}' {verb} {within}, and a stop may take {needed}: the longest execution_timeout, shutdown_timeout and 2s",
        file.display(),
        run.name
    );
    match ok {
        true => Finding::fine(AREA, name, detail),
        false => Finding::warning(
            AREA,
            name,
            detail,
            format!("write '{assigned}' there: otherwise running tasks are killed"),
        ),
    }
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path())
        .collect();
    files.sort();
    files
}

fn file_name(file: &Path) -> String {
    file.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_each_unit_of_a_machine_with_its_own_file() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let groups = |time: &str| {
            format!(
                "[process.a]\nshutdown_timeout = '1s'\n[[process.a.worker]]\nslug = 'a'\nexecution_timeout = '{time}'\n"
            )
        };
        let at = |name: &str| directory.path().join(name).display().to_string();
        write("long.toml", &groups("10m"));
        write("short/raddle.toml", &groups("1s"));
        let unit = |exec: &str, rest: &str| format!("[Service]\nExecStart={exec}\n{rest}\n");
        write(
            "units/a.service",
            &unit(&format!("/usr/bin/raddle up -f {}", at("long.toml")), ""),
        );
        write(
            "units/b.service",
            &unit(
                "/usr/bin/raddle up",
                &format!("WorkingDirectory={}", at("short")),
            ),
        );
        write("units/c.service", &unit("/usr/bin/docker compose up", ""));
        write(
            "units/d.service",
            &unit("/usr/bin/raddle up -f /nowhere/raddle.toml", ""),
        );
        let check = || {
            check_units(&directory.path().join("units"))
                .iter()
                .map(|finding| (finding.ok, finding.fix.clone()))
                .collect::<Vec<_>>()
        };
        let fix = "write 'TimeoutStopSec=603' there: otherwise running tasks are killed".to_owned();
        assert_eq!(check(), [(false, Some(fix)), (true, None)]);
        write(
            "units/a.service.d/more.conf",
            "[Service]\nTimeoutStopSec=15min\n",
        );
        assert_eq!(check(), [(true, None), (true, None)]);
        assert!(check_units(&directory.path().join("none")).is_empty());
    }
}
