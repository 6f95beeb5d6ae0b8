//! Reading a schedule from text, with the path of the key that is wrong.

use super::Schedule;
use crate::spec::{
    ParseSpecError,
    parse::{read_json, read_toml},
};

impl Schedule {
    /// Reads and checks a schedule in JSON.
    pub fn from_json(text: &str) -> Result<Self, ParseSpecError> {
        let schedule: Self = read_json(text)?;
        schedule.validate()?;
        Ok(schedule)
    }

    /// Reads and checks a schedule in TOML.
    pub fn from_toml(text: &str) -> Result<Self, ParseSpecError> {
        let schedule: Self = read_toml(text)?;
        schedule.validate()?;
        Ok(schedule)
    }
}
