//! Overlays of a screen: keys, a task, its output, a question.

use std::time::Duration;

use jiff::Timestamp;
use raddle_client::text::{age, count, printable, target_text, three_digits, time};
use raddle_model::Tid;
use raddle_view::{events::AttemptSpan, task_detail::TaskDetail};
use ratatui::{buffer::Buffer, layout::Rect, style::Style};

use super::{put, style::Theme, width};
use crate::{
    action::Action, app::App, line_editor::LineEditor, output::OutputLines, overlay::Overlay,
    table::state_tone,
};

const HELP: &str = "\
1-9 ← → Tab   screen              /     filter: state:failed queue:mail took:>30s
j k ↑ ↓ g G   row; first, last    :     command: :queue NAME  :tid ID  :retry  :q
h l Ctrl-d u  page; half a page   Esc   back; clear the filter
Enter         open                [ ]   back, forward
e             explain             o     output (f follow, w wrap)
x A Space     mark; all; to here  Ctrl-\\ no marks
R T K D       retry, stop, kill, delete the marked tasks or this one
p r           pause, resume; a group: off, on
+ -           scale a group
z < > + -     freeze; walk in time; change the step
y Y           copy the id; copy the command that gives the same answer
q Ctrl-C      quit

More than one task is confirmed; of more than 100 the number is typed.
Stop sends SIGTERM, kill SIGKILL. Retry submits the spec as a new task.";

pub(super) fn draw(app: &App, overlay: &Overlay, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    if let Overlay::Confirm { action, typed } = overlay {
        return draw_question(action, typed.as_ref(), area, buffer, theme);
    }
    clear(area, buffer);
    match overlay {
        Overlay::Help => {
            for (y, line) in (0..).zip(HELP.lines()) {
                put(buffer, area, 1, y, line, theme.plain());
            }
        }
        Overlay::Task {
            detail: None, tid, ..
        } => put(
            buffer,
            area,
            1,
            0,
            &format!("reading task {tid}…"),
            theme.quiet(),
        ),
        Overlay::Task {
            detail: Some(detail),
            scroll,
            ..
        } => {
            let lines = task_lines(detail, app.now, area.width, theme);
            let most = lines.len().saturating_sub(area.height.into());
            let shown = lines.iter().skip((*scroll).min(most));
            for (y, (text, style)) in (0..area.height).zip(shown) {
                put(buffer, area, 1, y, text, *style);
            }
        }
        Overlay::Output {
            tid,
            lines,
            below,
            follows,
            wraps,
        } => {
            let mode = match (*follows, *wraps) {
                (true, true) => "following, wrapped",
                (true, false) => "following",
                (false, true) => "held, wrapped",
                (false, false) => "held",
            };
            draw_output(*tid, lines, (*below, *wraps), mode, area, buffer, theme);
        }
        Overlay::Confirm { .. } => {}
    }
}

fn clear(area: Rect, buffer: &mut Buffer) {
    for y in 0..area.height {
        let blank = " ".repeat(area.width.into());
        buffer.set_stringn(area.x, area.y + y, blank, area.width.into(), Style::reset());
    }
}

fn draw_question(
    action: &Action,
    typed: Option<&LineEditor>,
    area: Rect,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let question = match action {
        Action::Tasks(action, tids) => {
            format!("{} {}?", action.verb(), count(tids.len() as u64, "task"))
        }
        _ => String::new(),
    };
    let answer = match typed {
        Some(line) => format!("type the number, then Enter: {}", line.text()),
        None => "y or Enter: yes, any other key: no".into(),
    };
    let room = width(&question).max(width(&answer)) + 4;
    let panel = Rect {
        x: area.x + area.width.saturating_sub(room) / 2,
        y: area.y + area.height.saturating_sub(4) / 2,
        width: room.min(area.width),
        height: 4.min(area.height),
    };
    clear(panel, buffer);
    let line = "─".repeat(panel.width.into());
    put(buffer, panel, 0, 0, &line, theme.plain());
    put(buffer, panel, 2, 1, &question, theme.bad());
    put(buffer, panel, 2, 2, &answer, theme.plain());
    put(buffer, panel, 0, 3, &line, theme.plain());
}

type Line = (String, Style);

/// All about a task: why it waits comes first.
fn task_lines(detail: &TaskDetail, now: Timestamp, width: u16, theme: &Theme) -> Vec<Line> {
    let task = &detail.task;
    let plain = |text: String| (text, theme.plain());
    let mut lines = vec![
        (
            format!("task {}  {}", task.tid, printable(task.spec.display_name())),
            theme.title(),
        ),
        (explanation(detail), theme.tone(state_tone(task.state))),
    ];
    lines.extend(
        detail
            .explain
            .hint
            .as_ref()
            .map(|hint| plain(printable(hint))),
    );
    lines.push(plain(String::new()));
    let wait = detail.attempts.first().and_then(|first| {
        Duration::try_from(first.claimed_at.duration_since(task.created_at)).ok()
    });
    let fields = [
        ("target", Some(target_text(task))),
        (
            "queue",
            Some(format!(
                "{}, priority {}",
                task.spec.queue, task.spec.priority
            )),
        ),
        (
            "needs",
            (!task.spec.requires.is_empty()).then(|| task.spec.requires.to_string()),
        ),
        ("batch", task.spec.batch.clone()),
        ("parent", task.parent.map(|tid| tid.to_string())),
        ("worker", task.worker.map(|tid| tid.to_string())),
        (
            "created",
            Some(format!(
                "{} ({} ago)",
                time(task.created_at),
                age(task.created_at, now)
            )),
        ),
        ("waited", wait.map(three_digits)),
        ("took", task.run_time(now).map(three_digits)),
        (
            "attempt",
            (task.attempt > 0).then(|| {
                format!(
                    "{} of {}, {} failed, {} lost",
                    task.attempt, task.spec.retry.attempts, task.failures, task.losses
                )
            }),
        ),
        (
            "exit",
            task.report.as_ref().map(|report| report.exit.to_string()),
        ),
        (
            "used",
            task.report.as_ref().map(|report| {
                let cpu = Duration::from_micros(report.usage.user_us + report.usage.system_us);
                format!(
                    "{} MiB at most, {} of cpu",
                    report.usage.peak_rss_bytes >> 20,
                    three_digits(cpu)
                )
            }),
        ),
    ];
    for (label, value) in fields {
        lines.extend(value.map(|value| plain(format!("{label:<9}{}", printable(&value)))));
    }
    if !detail.attempts.is_empty() {
        lines.push(plain(String::new()));
        lines.push(("Attempts  ░ waited  ▒ started  █ ran".into(), theme.title()));
        let bars = attempt_lines(&detail.attempts, detail.read_at, width);
        lines.extend(bars.into_iter().map(plain));
    }
    if !detail.children.items.is_empty() {
        lines.push(plain(String::new()));
        lines.push(("Submitted".into(), theme.title()));
        lines.extend(detail.children.items.iter().map(|child| {
            let text = format!(
                "{}  {}  {}",
                child.tid,
                child.state,
                child.spec.display_name()
            );
            (printable(&text), theme.tone(state_tone(child.state)))
        }));
    }
    lines.push(plain(String::new()));
    lines.push(("Events".into(), theme.title()));
    lines.extend(detail.events.iter().map(|event| {
        let detail = event.detail.as_deref().unwrap_or_default();
        plain(printable(&format!(
            "{}  {:<12} {detail}",
            time(event.at),
            event.event
        )))
    }));
    lines.push(plain(String::new()));
    lines.push(("Spec".into(), theme.title()));
    let spec = serde_json::to_string_pretty(&task.spec).unwrap_or_default();
    // Values of the environment may be secret.
    let shown = match task.spec.env.is_empty() {
        true => spec,
        false => {
            let mut masked = task.spec.clone();
            masked
                .env
                .values_mut()
                .for_each(|value| *value = "…".into());
            serde_json::to_string_pretty(&masked).unwrap_or_default()
        }
    };
    lines.extend(shown.lines().map(|line| plain(printable(line))));
    lines
}

fn explanation(detail: &TaskDetail) -> String {
    printable(&format!("it {}", detail.explain.explanation))
}

/// A bar for each attempt, on one scale of time.
fn attempt_lines(attempts: &[AttemptSpan], now: Timestamp, width: u16) -> Vec<String> {
    let begin = attempts.iter().filter_map(|it| it.waited_from).min();
    let begin = begin
        .or_else(|| attempts.first().map(|it| it.claimed_at))
        .unwrap_or(now);
    let ends = attempts.iter().map(|it| it.ended_at.unwrap_or(now));
    let total = ends
        .max()
        .unwrap_or(now)
        .duration_since(begin)
        .as_secs_f64()
        .max(1e-9);
    let room = f64::from(width.saturating_sub(44).clamp(8, 80));
    let cell = |at: Timestamp| (at.duration_since(begin).as_secs_f64() / total * room) as usize;
    let bar = |attempt: &AttemptSpan| {
        let ended = attempt.ended_at.unwrap_or(now);
        let started = attempt.started_at.unwrap_or(ended);
        let from = cell(attempt.waited_from.unwrap_or(attempt.claimed_at));
        let waits = cell(attempt.claimed_at).saturating_sub(from);
        let starts = cell(started).saturating_sub(from + waits);
        let runs = (cell(ended).saturating_sub(from + waits + starts)).max(1);
        let end = attempt.end.map_or("running", |end| end.as_str());
        let took = Duration::try_from(ended.duration_since(started)).unwrap_or_default();
        let worker = attempt
            .worker
            .map_or_else(String::new, |worker| worker.short().to_string());
        let bar = " ".repeat(from) + &"░".repeat(waits) + &"▒".repeat(starts) + &"█".repeat(runs);
        let room = room as usize + 1;
        format!(
            "{:>3} {end:<10} {:>6} {worker:<10} {bar:<room$}",
            attempt.attempt,
            three_digits(took)
        )
    };
    attempts.iter().map(bar).collect()
}

fn draw_output(
    tid: Tid,
    output: &OutputLines,
    (below, wraps): (usize, bool),
    mode: &str,
    area: Rect,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let state = output.state.map_or("reading…", |state| state.as_str());
    put(
        buffer,
        area,
        1,
        0,
        &format!("output of {tid}  {state}  {mode}"),
        theme.title(),
    );
    let room = usize::from(area.width.saturating_sub(1)).max(1);
    let page = usize::from(area.height.saturating_sub(1));
    let all: Vec<_> = output.lines().collect();
    let end = all.len() - below.min(all.len().saturating_sub(page.min(all.len())));
    // From the end backwards, only as much as fits.
    let mut shown = Vec::new();
    for line in all[..end].iter().rev() {
        let style = if line.is_error {
            theme.bad()
        } else {
            theme.plain()
        };
        let chars: Vec<char> = line.text.chars().collect();
        let pieces: Vec<String> = match wraps && !chars.is_empty() {
            true => chars
                .chunks(room)
                .map(|piece| piece.iter().collect())
                .collect(),
            false => vec![line.text.clone()],
        };
        for piece in pieces.into_iter().rev() {
            shown.push((piece, style));
        }
        if shown.len() >= page {
            break;
        }
    }
    shown.truncate(page);
    if shown.is_empty() && output.state.is_some() {
        shown.push(("no output so far".into(), theme.quiet()));
    }
    for (y, (text, style)) in (1..).zip(shown.iter().rev()) {
        put(buffer, area, 1, y, text, *style);
    }
}
