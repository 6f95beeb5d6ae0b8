//! The screens.

/// A screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Screen {
    #[default]
    Overview,
    Tasks,
    Failures,
    Queues,
    Workers,
    Pools,
    Groups,
    Schedules,
    Events,
}

impl Screen {
    /// All screens, in the order of their keys.
    pub(crate) const ALL: [Self; 9] = [
        Self::Overview,
        Self::Tasks,
        Self::Failures,
        Self::Queues,
        Self::Workers,
        Self::Pools,
        Self::Groups,
        Self::Schedules,
        Self::Events,
    ];

    /// The title.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Tasks => "Tasks",
            Self::Failures => "Failures",
            Self::Queues => "Queues",
            Self::Workers => "Workers",
            Self::Pools => "Pools",
            Self::Groups => "Groups",
            Self::Schedules => "Schedules",
            Self::Events => "Events",
        }
    }

    /// The name in commands.
    pub(crate) fn name(self) -> String {
        self.title().to_lowercase()
    }

    /// The screen so many places further.
    pub(crate) fn step(self, by: isize) -> Self {
        let count = Self::ALL.len() as isize;
        Self::ALL[(self as isize + by).rem_euclid(count) as usize]
    }

    /// The screen with this key, from `1` to `9`.
    pub(crate) fn with_key(key: char) -> Option<Self> {
        let index = key.to_digit(10)?.checked_sub(1)?;
        Self::ALL.get(index as usize).copied()
    }

    /// Whether the screen shows the state at an earlier time, if asked.
    pub(crate) fn has_past(self) -> bool {
        matches!(self, Self::Tasks | Self::Events)
    }

    /// Whether a query of tasks selects what the screen shows.
    pub(crate) fn takes_query(self) -> bool {
        matches!(self, Self::Tasks | Self::Failures)
    }
}
