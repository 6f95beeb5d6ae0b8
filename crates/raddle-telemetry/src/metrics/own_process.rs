//! Metrics of this process, under the names that Prometheus's own libraries use.

use std::fs;

use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

use super::text_format::{MetricKind, MetricsPage};

/// Adds the version of the program, and the processor time, memory and descriptors of this
/// process. A value that `/proc` does not show is left out.
pub fn show_process(page: &mut MetricsPage) {
    page.family(
        "build_info",
        MetricKind::Gauge,
        "The version of Raddle; always 1.",
    )
    .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    if let Some(ProcessStat {
        cpu_seconds,
        started_at,
        resident_bytes,
    }) = ProcessStat::read()
    {
        let help = "Processor time of this process.";
        page.family("process_cpu_seconds_total", MetricKind::Counter, help)
            .sample(&[], cpu_seconds);
        let help = "When this process started, in seconds since the epoch.";
        page.gauge("process_start_time_seconds", help, started_at);
        let help = "Memory of this process that is resident.";
        page.gauge("process_resident_memory_bytes", help, resident_bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them reads the directory.
        let count = open.count().saturating_sub(1);
        page.gauge("process_open_fds", "Open file descriptors.", count as f64);
    }
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(f64::INFINITY, |limit| limit as f64);
    page.gauge(
        "process_max_fds",
        "The limit of open file descriptors.",
        limit,
    );
}

/// The fields of `/proc/self/stat` that are shown.
struct ProcessStat {
    cpu_seconds: f64,
    started_at: f64,
    resident_bytes: f64,
}

impl ProcessStat {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let boot = fs::read_to_string("/proc/stat").ok()?;
        Self::parse(&stat, &boot)
    }

    fn parse(stat: &str, boot: &str) -> Option<Self> {
        // The name of the program, in parentheses, may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        // Numbered as in proc_pid_stat(5); the first one after the name is the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?;
        let ticks = clock_ticks_per_second() as f64;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            started_at: boot.trim().parse::<f64>().ok()? + field(22)? / ticks,
            resident_bytes: field(24)? * page_size() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_fields_behind_any_name() {
        let ticks = clock_ticks_per_second();
        let stat = format!(
            "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 {ticks} {ticks} 0 0 20 0 1 0 {} 4096 3 18446744073709551615",
            ticks * 10
        );
        let found = ProcessStat::parse(&stat, "cpu 1\nbtime 1000\n").unwrap();
        assert_eq!((found.cpu_seconds, found.started_at), (2.0, 1010.0));
        assert_eq!(found.resident_bytes, 3.0 * page_size() as f64);
        assert!(ProcessStat::parse("", "").is_none());
    }

    #[test]
    fn shows_this_process() {
        let mut page = MetricsPage::default();
        show_process(&mut page);
        let text = page.into_text();
        for name in [
            "build_info{version=",
            "process_cpu_seconds_total ",
            "process_open_fds ",
        ] {
            assert!(text.contains(name), "{text}");
        }
    }
}
