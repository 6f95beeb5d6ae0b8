//! Formats times and durations.

use std::time::Duration;

use jiff::Timestamp;
pub(crate) use raddle_client::text::{count, time};

/// The time since `then`: `3s`, `5m`, `2h`, `4d`.
pub(crate) fn age(then: Timestamp, now: Timestamp) -> String {
    one_unit(Duration::try_from(now.duration_since(then)).unwrap_or_default())
}

/// A duration with one unit: `3s`, `5m`, `2h`, `4d`.
pub(crate) fn one_unit(length: Duration) -> String {
    match length.as_secs() {
        secs @ 0..120 => format!("{secs}s"),
        secs @ 120..7_200 => format!("{}m", secs / 60),
        secs @ 7_200..172_800 => format!("{}h", secs / 3600),
        secs => format!("{}d", secs / 86_400),
    }
}

/// A duration to about three digits: `12ms`, `1.2s`, `5m`.
pub(crate) fn three_digits(length: Duration) -> String {
    match length.as_millis() {
        millis @ 0..1_000 => format!("{millis}ms"),
        1_000..100_000 => format!("{:.1}s", length.as_secs_f64()),
        _ => one_unit(length),
    }
}

/// The reported progress of a task.
pub(crate) fn progress(progress: &raddle_model::Progress) -> String {
    match (progress.percent, progress.message.as_str()) {
        (Some(percent), "") => format!("{percent:.0} %"),
        (Some(percent), message) => format!("{percent:.0} %, {message}"),
        (None, message) => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit() {
        let shown: Vec<_> = [0, 119, 120, 7_199, 7_200, 172_799, 172_800]
            .map(Duration::from_secs)
            .map(one_unit)
            .into();
        assert_eq!(shown, ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
        assert_eq!(
            [7, 1_250, 200_000]
                .map(Duration::from_millis)
                .map(three_digits),
            ["7ms", "1.2s", "3m"]
        );
    }
}
