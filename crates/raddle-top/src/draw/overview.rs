//! The overview: numbers, and what needs attention.

use std::time::Duration;

use jiff::Timestamp;
use raddle_client::text::{age, count, one_unit, printable, progress};
use raddle_model::TaskState;
use ratatui::{buffer::Buffer, layout::Rect, style::Style};

use super::{put, style::Theme, width};
use crate::{reader::OverviewData, table::why_stuck};

/// The most lines of a section.
const MAX_LINES: usize = 6;
/// How far ahead a schedule is shown.
const SOON: i64 = 3600;

pub(super) fn draw(
    data: &OverviewData,
    now: Timestamp,
    area: Rect,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let numbers = numbers(data);
    let share = area.width / numbers.len() as u16;
    for (index, (label, value, is_bad)) in numbers.iter().enumerate() {
        let x = 1 + share * index as u16;
        let style = if *is_bad { theme.bad() } else { theme.title() };
        put(buffer, area, x, 0, label, theme.quiet());
        put(buffer, area, x, 1, value, style);
    }
    let mut y = 3;
    for (title, lines) in sections(data, now, theme) {
        if lines.is_empty() || y + 1 >= area.height {
            continue;
        }
        put(buffer, area, 1, y, title, theme.title());
        let rest = lines.len().saturating_sub(MAX_LINES);
        for (text, style) in lines.iter().take(MAX_LINES) {
            y += 1;
            put(buffer, area, 3, y, text, *style);
        }
        if rest > 0 {
            let x = 2 + width(title);
            put(
                buffer,
                area,
                x,
                y - MAX_LINES as u16,
                &format!("and {rest} more"),
                theme.quiet(),
            );
        }
        y += 2;
    }
}

/// The five numbers, with whether they are bad.
fn numbers(data: &OverviewData) -> [(&'static str, String, bool); 5] {
    let ready: u64 = data.queues.items.iter().map(|queue| queue.ready).sum();
    let state = |state| data.overview.tasks.get(&state).copied().unwrap_or(0);
    let running = state(TaskState::Running) + state(TaskState::Spawning);
    let oldest = data
        .queues
        .items
        .iter()
        .filter_map(|queue| queue.oldest_wait_seconds);
    let oldest = oldest
        .reduce(f64::max)
        .and_then(|secs| Duration::try_from_secs_f64(secs).ok());
    let slots: u64 = data.hosts.iter().map(|host| host.slots).sum();
    let busy: u64 = data.hosts.iter().map(|host| host.busy).sum();
    let dead = data.overview.dead;
    [
        ("READY", ready.to_string(), false),
        ("RUNNING", running.to_string(), false),
        ("DEAD", dead.to_string(), dead > 0),
        ("OLDEST", oldest.map_or_else(|| "-".into(), one_unit), false),
        ("SLOTS", format!("{busy}/{slots}"), slots == 0 && ready > 0),
    ]
}

type Lines = Vec<(String, Style)>;

fn sections(data: &OverviewData, now: Timestamp, theme: &Theme) -> [(&'static str, Lines); 6] {
    let stuck = data
        .queues
        .items
        .iter()
        .filter(|queue| !queue.stuck.is_empty());
    let stuck = stuck.map(|queue| {
        (
            format!("{}  {}", printable(&queue.queue), why_stuck(queue)),
            theme.bad(),
        )
    });
    let failures = data.failures.items.iter().map(|group| {
        let last = age(group.last_seen, now);
        let (name, exit, line) = (&group.name, &group.exit, &group.line);
        let text = format!("{:>4}  {last:>4} ago  {name}  {exit}  {line}", group.count);
        (printable(&text), theme.plain())
    });
    let hosts = data.hosts.iter().map(|host| {
        let types = host
            .types
            .iter()
            .map(|(kind, number)| format!("{number} {kind}"));
        let types: Vec<String> = types.collect();
        let text = format!(
            "{}  {} of {} busy  {}",
            host.host,
            host.busy,
            count(host.slots, "slot"),
            types.join(", ")
        );
        (printable(&text), theme.plain())
    });
    let queues = data
        .queues
        .items
        .iter()
        .filter(|queue| queue.ready + queue.delayed + queue.paused + queue.running > 0);
    let queues = queues.map(|queue| {
        let text = format!(
            "{}  {} ready, {} delayed, {} paused, {} running",
            queue.queue, queue.ready, queue.delayed, queue.paused, queue.running
        );
        (printable(&text), theme.plain())
    });
    let running = data.overview.progress.iter().map(|task| {
        let text = format!(
            "{}  {}  {}",
            task.tid.short(),
            task.name,
            progress(&task.progress)
        );
        (printable(&text), theme.busy())
    });
    let due = data.schedules.iter().filter_map(|schedule| {
        let due = schedule.view.entry.due()?;
        let left = due.duration_since(now);
        let missed = schedule.view.entry.missed;
        let in_time = Duration::try_from(left).unwrap_or_default();
        let text = format!(
            "{}  in {}, {missed} missed",
            schedule.view.entry.schedule.name,
            one_unit(in_time)
        );
        (left.as_secs() < SOON).then(|| (printable(&text), theme.plain()))
    });
    [
        ("Not moving", stuck.collect()),
        ("Failures", failures.collect()),
        ("Queues", queues.collect()),
        ("Workers", hosts.collect()),
        ("Progress", running.collect()),
        ("Due", due.collect()),
    ]
}
