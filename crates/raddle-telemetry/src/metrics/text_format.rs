//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use super::histogram::Histogram;

/// A page of metrics.
#[derive(Debug, Default)]
pub struct MetricsPage(String);

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A distribution, in buckets.
    Histogram,
    /// The name promises one type and the values have another. The name is part of the public
    /// contract, and Prometheus accepts untyped values.
    Untyped,
}

/// One metric with all its samples.
pub struct MetricFamily<'a> {
    page: &'a mut String,
    name: &'static str,
}

impl MetricsPage {
    /// The page as text.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Starts a metric. Its samples must follow at once.
    pub fn family(&mut self, name: &'static str, kind: MetricKind, help: &str) -> MetricFamily<'_> {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Untyped => "untyped",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        MetricFamily {
            page: &mut self.0,
            name,
        }
    }

    /// Adds a counter without labels.
    pub fn count(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, MetricKind::Counter, help)
            .sample(&[], value as f64);
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &'static str, help: &str, value: f64) {
        self.family(name, MetricKind::Gauge, help)
            .sample(&[], value);
    }

    /// Adds a counter with one label.
    pub fn counts<'a>(
        &mut self,
        name: &'static str,
        help: &str,
        label: &str,
        counts: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        let mut family = self.family(name, MetricKind::Counter, help);
        counts
            .into_iter()
            .for_each(|(value, count)| family.sample(&[(label, value)], count as f64));
    }

    pub(super) fn histogram(&mut self, name: &'static str, help: &str, histogram: &Histogram) {
        let mut family = self.family(name, MetricKind::Histogram, help);
        for (bound, count) in histogram.cumulative() {
            family.line("_bucket", &[("le", &number(bound))], count as f64);
        }
        family.line("_bucket", &[("le", "+Inf")], histogram.count() as f64);
        family.line("_sum", &[], histogram.sum());
        family.line("_count", &[], histogram.count() as f64);
    }
}

impl MetricFamily<'_> {
    /// Adds a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, value);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let page = &mut *self.page;
        page.push_str(self.name);
        page.push_str(suffix);
        for (i, (label, text)) in labels.iter().enumerate() {
            let open = if i == 0 { '{' } else { ',' };
            let _ = write!(page, "{open}{label}=\"{}\"", escaped(text));
        }
        if !labels.is_empty() {
            page.push('}');
        }
        let _ = writeln!(page, " {}", number(value));
    }
}

fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    value.to_string()
}

/// Escapes a label's text, so that it cannot end the label or the line.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => safe.push_str("\\\\"),
            '"' => safe.push_str("\\\""),
            '\n' => safe.push_str("\\n"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_samples_by_metric_and_escapes_labels() {
        let mut page = MetricsPage::default();
        page.gauge("a_ratio", "A share.", f64::NAN);
        let mut family = page.family("b_total", MetricKind::Counter, "Things.");
        family.sample(&[("kind", "x\"} 1\nc 2\\"), ("of", "y")], 3.0);
        let text = page.into_text();
        assert_eq!(
            text,
            "# HELP a_ratio A share.\n# TYPE a_ratio gauge\na_ratio NaN\n\
             # HELP b_total Things.\n# TYPE b_total counter\nb_total{kind=\"x\\\"} 1\\nc 2\\\\\",of=\"y\"} 3\n"
        );
    }

    #[test]
    fn histograms_are_cumulative_and_end_with_inf() {
        let mut histogram = Histogram::default();
        [0.0005, 0.003, 0.003, 1e9]
            .into_iter()
            .for_each(|seconds| histogram.observe(seconds));
        let mut page = MetricsPage::default();
        page.histogram("x_seconds", "Time.", &histogram);
        let text = page.into_text();
        for line in [
            "x_seconds_bucket{le=\"0.001\"} 1\n",
            "x_seconds_bucket{le=\"0.005\"} 3\n",
            "x_seconds_bucket{le=\"3600\"} 3\n",
            "x_seconds_bucket{le=\"+Inf\"} 4\n",
            "x_seconds_count 4\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
