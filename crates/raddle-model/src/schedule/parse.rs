//! Parses schedules from text. Errors name the path of the invalid key.

use super::Schedule;
use crate::spec::{
    ParseSpecError,
    parse::{read_json, read_toml},
};

impl Schedule {
    /// Parses and validates a schedule in JSON.
    pub fn from_json(text: &str) -> Result<Self, ParseSpecError> {
        let schedule: Self = read_json(text)?;
        schedule.validate()?;
        Ok(schedule)
    }

    /// Parses and validates a schedule in TOML.
    pub fn from_toml(text: &str) -> Result<Self, ParseSpecError> {
        let schedule: Self = read_toml(text)?;
        schedule.validate()?;
        Ok(schedule)
    }
}
