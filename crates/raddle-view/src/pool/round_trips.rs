//! Statistics of round trips to workers.

use std::time::Duration;

/// Statistics of round trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    /// The shortest.
    pub min: Duration,
    /// The median.
    pub median: Duration,
    /// The longest.
    pub max: Duration,
}

impl RoundTrips {
    /// Sorts the times. `None` if there are none.
    pub fn new(times: &mut [Duration]) -> Option<Self> {
        times.sort_unstable();
        let (min, max) = (*times.first()?, *times.last()?);
        let (below, above) = (times[(times.len() - 1) / 2], times[times.len() / 2]);
        Some(Self {
            min,
            median: (below + above) / 2,
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let summarize = |times: &[u64]| {
            let mut times: Vec<_> = times.iter().copied().map(Duration::from_millis).collect();
            RoundTrips::new(&mut times)
                .map(|RoundTrips { min, median, max }| [min, median, max].map(|t| t.as_millis()))
        };
        assert_eq!(summarize(&[]), None);
        assert_eq!(summarize(&[7]), Some([7, 7, 7]));
        assert_eq!(summarize(&[9, 1, 2]), Some([1, 2, 9]));
        assert_eq!(summarize(&[8, 1, 2, 4]), Some([1, 3, 8]));
    }
}
