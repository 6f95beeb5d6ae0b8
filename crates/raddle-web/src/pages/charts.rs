//! Charts as SVG. Geometry is in attributes and colour in classes, because the content security
//! policy allows no inline style. Every chart has a text alternative.

use std::fmt::Write as _;

use jiff::Timestamp;
use raddle_model::TaskState;

/// An SVG image. All texts in it are escaped.
#[derive(Clone, Debug)]
pub(crate) struct Svg(pub(crate) String);

/// A span of a [`gantt`]: its begin and end, and the class of its colour.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) class: &'static str,
    pub(crate) label: String,
}

const WIDTH: f64 = 600.0;

/// A line over an area, without axes: `tone` is `run` or `bad`.
pub(crate) fn sparkline(values: &[u64], tone: &str) -> Option<Svg> {
    let max = *values.iter().max()?;
    if values.len() < 2 || max == 0 {
        return None;
    }
    let step = 100.0 / (values.len() - 1) as f64;
    let line = values
        .iter()
        .enumerate()
        .fold(String::new(), |mut line, (i, value)| {
            let (x, y) = (i as f64 * step, 28.0 - *value as f64 / max as f64 * 26.0);
            write!(line, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' })
                .expect("a string takes any text");
            line
        });
    Some(Svg(format!(
        r#"<svg viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true"><path class="a-{tone}" d="{line}L100 30L0 30Z"/><path class="l-{tone}" d="{line}"/></svg>"#
    )))
}

/// Rows of spans on one axis of time.
pub(crate) fn gantt(rows: &[(String, Vec<Span>)], what: &str) -> Option<Svg> {
    const ROW: f64 = 24.0;
    const LEFT: f64 = 78.0;
    let spans = || rows.iter().flat_map(|(_, spans)| spans);
    let from = spans().map(|span| span.from).min()?;
    let to = spans().map(|span| span.to).max()?;
    let total = to.duration_since(from).as_secs_f64().max(0.001);
    let x = |at: Timestamp| LEFT + at.duration_since(from).as_secs_f64() / total * (WIDTH - LEFT);
    let mut out = String::new();
    for (i, (label, spans)) in rows.iter().enumerate() {
        let y = i as f64 * ROW;
        write!(
            out,
            r#"<text x="0" y="{:.0}">{}</text>"#,
            y + 15.0,
            escape(label)
        )
        .expect("a string takes any text");
        for span in spans {
            let (x0, width) = (x(span.from), (x(span.to) - x(span.from)).max(2.0));
            let (class, label) = (span.class, escape(&span.label));
            write!(out, r#"<rect class="{class}" x="{x0:.1}" y="{:.0}" width="{width:.1}" height="14" rx="2"><title>{label}</title></rect>"#, y + 4.0)
                .expect("a string takes any text");
        }
    }
    let bottom = rows.len() as f64 * ROW;
    let clock = |at: Timestamp| at.strftime("%H:%M:%S").to_string();
    write!(
        out,
        r#"<path class="l-axis" d="M{LEFT} {bottom}H600"/><text x="{LEFT}" y="{text}">{}</text><text x="600" y="{text}" text-anchor="end">{}</text>"#,
        clock(from),
        clock(to),
        text = bottom + 15.0,
    )
    .expect("a string takes any text");
    let what = escape(what);
    Some(Svg(format!(
        r#"<svg class="chart" viewBox="0 0 600 {}" role="img" aria-label="{what}">{out}</svg>"#,
        bottom + 20.0
    )))
}

/// The state machine of a task, with the way that it has taken.
pub(crate) fn state_machine(at: TaskState, visited: &[TaskState]) -> Svg {
    use TaskState::{Cancelled, Completed, Created, Failed, Killed, Running, Spawning, Timeout};
    const STATES: [(TaskState, u16, u16); 8] = [
        (Created, 0, 56),
        (Spawning, 130, 56),
        (Running, 260, 56),
        (Completed, 430, 0),
        (Failed, 430, 28),
        (Timeout, 430, 56),
        (Cancelled, 430, 84),
        (Killed, 430, 112),
    ];
    let was = |state: TaskState| state == at || visited.contains(&state);
    let mut out = String::new();
    let mut edge = |d: String, is_taken: bool| {
        let class = if is_taken { "edge was" } else { "edge" };
        write!(out, r#"<path class="{class}" d="{d}"/>"#).expect("a string takes any text");
    };
    edge("M100 67H130".into(), was(Spawning));
    edge("M230 67H260".into(), was(Running));
    edge(
        "M310 78V96H50V78".into(),
        visited.iter().filter(|state| **state == Created).count() > 1,
    );
    for (state, x, y) in STATES.into_iter().filter(|(state, ..)| state.is_terminal()) {
        edge(
            format!("M360 67C400 67 390 {y} {x} {y}", y = y + 11),
            state == at,
        );
    }
    for (state, x, y) in STATES {
        let class = match state {
            _ if state == at => "at",
            _ if was(state) => "was",
            _ => "",
        };
        write!(
            out,
            r#"<rect class="node {class}" x="{x}" y="{y}" width="100" height="22" rx="5"/><text class="{class}" x="{}" y="{}" text-anchor="middle">{state}</text>"#,
            x + 50,
            y + 15,
        )
        .expect("a string takes any text");
    }
    Svg(format!(
        r#"<svg class="chart" viewBox="-1 -1 533 137" role="img" aria-label="The task is {at}">{out}</svg>"#
    ))
}

fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_escape_labels_and_hold_no_style() {
        let at = |secs| Timestamp::from_second(secs).unwrap();
        let span = Span {
            from: at(0),
            to: at(5),
            class: "f-run",
            label: "<b>\"".into(),
        };
        let svg = gantt(&[("<i>".into(), vec![span])], "\"x").unwrap().0
            + &state_machine(TaskState::Running, &[TaskState::Created]).0;
        assert!(
            !svg.contains("<b>") && !svg.contains("<i>") && !svg.contains("style="),
            "{svg}"
        );
        assert!(sparkline(&[0, 0], "run").is_none() && sparkline(&[], "run").is_none());
    }
}
