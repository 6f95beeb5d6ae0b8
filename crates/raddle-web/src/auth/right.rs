//! Rights, and the roles that bundle them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Right {
    /// Read states, names, counts and events.
    See,
    /// Read arguments, values of the environment, output and messages.
    SeeData,
    /// Stop, kill, pause and resume tasks, queues, workers and schedules.
    Control,
    /// Run finished tasks again.
    Retry,
    /// Turn groups on and off, and scale them.
    Scale,
    /// Delete finished tasks.
    Delete,
    /// Write, move and remove messages.
    Messages,
    /// Submit tasks: run programs on the workers.
    Submit,
    /// Read the audit trail, and revoke tokens.
    Admin,
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u16);

/// A bundle of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Sees states, and no data.
    Viewer,
    /// Sees data, too.
    Reader,
    /// Controls, retries and scales what exists.
    Operator,
    /// Does everything.
    Owner,
}

/// The text is not a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a role: use viewer, reader, operator or owner")]
pub struct UnknownRole(String);

/// The text is not a right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a right: use see, see-data, control, retry, scale, delete, messages, submit or admin"
)]
pub struct UnknownRight(String);

impl Right {
    /// All rights.
    pub const ALL: [Self; 9] = [
        Self::See,
        Self::SeeData,
        Self::Control,
        Self::Retry,
        Self::Scale,
        Self::Delete,
        Self::Messages,
        Self::Submit,
        Self::Admin,
    ];

    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::See => "see",
            Self::SeeData => "see-data",
            Self::Control => "control",
            Self::Retry => "retry",
            Self::Scale => "scale",
            Self::Delete => "delete",
            Self::Messages => "messages",
            Self::Submit => "submit",
            Self::Admin => "admin",
        }
    }
}

impl Rights {
    /// Whether the right is in the set.
    pub fn allow(self, right: Right) -> bool {
        self.0 & (1 << right as u16) != 0
    }

    /// The rights in the set.
    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL
            .into_iter()
            .filter(move |right| self.allow(*right))
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<I: IntoIterator<Item = Right>>(rights: I) -> Self {
        Self(
            rights
                .into_iter()
                .fold(0, |set, right| set | 1 << right as u16),
        )
    }
}

impl Serialize for Rights {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl Role {
    /// All roles, the weakest first.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Reader, Self::Operator, Self::Owner];

    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Reader => "reader",
            Self::Operator => "operator",
            Self::Owner => "owner",
        }
    }

    /// The rights of the role.
    pub fn rights(self) -> Rights {
        use Right::{Control, Retry, Scale, See, SeeData};
        let rights: &[Right] = match self {
            Self::Viewer => &[See],
            Self::Reader => &[See, SeeData],
            Self::Operator => &[See, SeeData, Control, Retry, Scale],
            Self::Owner => &Right::ALL,
        };
        rights.iter().copied().collect()
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| UnknownRole(text.into()))
    }
}

impl FromStr for Right {
    type Err = UnknownRight;

    fn from_str(text: &str) -> Result<Self, UnknownRight> {
        let found = Self::ALL.into_iter().find(|right| right.as_str() == text);
        found.ok_or_else(|| UnknownRight(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_the_rights_of_the_weaker_one() {
        let sets = Role::ALL.map(Role::rights);
        assert!(
            sets.windows(2)
                .all(|pair| pair[0].iter().all(|right| pair[1].allow(right)))
        );
        assert!(!Role::Operator.rights().allow(Right::Submit));
        assert_eq!(Role::Owner.rights().iter().count(), Right::ALL.len());
    }
}
