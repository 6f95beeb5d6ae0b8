use raddle_model::{AttemptReport, ExitStatus, TaskSpec, TaskState, worker::WorkerInfo};

use super::*;

fn failed(number: u64, name: &str, exit: ExitStatus, line: &str) -> FailedTask {
    let tid = Tid::from_u64(1_800_000_000_000_000_000 + number).unwrap();
    let ended = Timestamp::from_second(1_800_000_000 + number as i64).unwrap();
    let spec = TaskSpec {
        name: Some(name.into()),
        ..TaskSpec::command(["x"])
    };
    FailedTask {
        task: TaskView {
            state: TaskState::Failed,
            dead: number > 1,
            worker: Tid::from_u64(1_790_000_000_000_000_000),
            finished_at: Some(ended),
            report: Some(AttemptReport::bare(exit, ended)),
            ..TaskView::new(tid, spec, ended)
        },
        line: line.into(),
    }
}

#[test]
fn groups_by_name_end_and_line() {
    let code = |code| ExitStatus::Code { code };
    let tasks = [
        failed(4, "mail", code(1), "cannot reach 10.0.0.7:25"),
        failed(3, "mail", code(2), "cannot reach 10.0.0.9:25"),
        failed(2, "mail", code(1), "cannot reach 10.0.0.8:26"),
        failed(1, "other", code(1), "cannot reach 10.0.0.7:25"),
    ];
    let worker = WorkerEntry::new(
        Tid::from_u64(1_790_000_000_000_000_000).unwrap(),
        WorkerInfo {
            host: "vm".into(),
            ..WorkerInfo::new("w", "resident")
        },
        raddle_model::worker::Heartbeat::default(),
        Timestamp::UNIX_EPOCH,
    );
    let groups = group(&tasks, &[worker]);
    let shown: Vec<_> = groups
        .iter()
        .map(|group| {
            (
                group.name.as_str(),
                group.exit.as_str(),
                group.count,
                group.dead,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("mail", "exit code 1", 2, 2),
            ("mail", "exit code 2", 1, 1),
            ("other", "exit code 1", 1, 0)
        ]
    );
    let first = &groups[0];
    assert_eq!(first.line, "cannot reach #");
    assert_eq!(first.sample_line, "cannot reach 10.0.0.7:25");
    assert_eq!(first.tasks, [tasks[0].task.tid, tasks[2].task.tid]);
    assert_eq!(
        first.last_seen.duration_since(first.first_seen).as_secs(),
        2
    );
    assert!(first.hosts.contains("vm"));
}

#[test]
fn variable_parts_are_masked() {
    for (line, normal) in [
        (
            "no such file: 'frame-0012.png'",
            "no such file: 'frame-#.png'",
        ),
        (
            "request 6f9619ff-8b86-d011-b42d-00cf4fc964ff failed",
            "request # failed",
        ),
        ("at 0x7ffd5c1a in thread 12", "at # in thread #"),
        ("commit deadbeef01 is gone", "commit # is gone"),
        ("took 1.25s at 2026-11-18T03:00:01Z", "took #s at #T#Z"),
        (
            "/tmp/tmpaBcDeF/out.log: disk full",
            "/tmp/#/out.log: disk full",
        ),
        ("cannot open /tmp/xYz: denied", "cannot open /tmp/#: denied"),
        ("/srv/app/main.py is missing", "/srv/app/main.py is missing"),
        ("accessed a face", "accessed a face"),
        ("", ""),
    ] {
        assert_eq!(normalize_line(line), normal, "{line}");
    }
}

#[test]
fn the_last_line_is_plain_text() {
    for (output, line) in [
        (&b"first\nlast \n\n"[..], "last"),
        (b"10 %\r20 %\r", "20 %"),
        (b"\x1b[1;31mred\x1b[0m\x07\n", "red"),
        (b"\xff\n", "\u{fffd}"),
        (b"", ""),
    ] {
        assert_eq!(cause::last_line(output), line);
    }
    assert_eq!(cause::last_line(&[b'x'; 4000]).len(), 200);
}
