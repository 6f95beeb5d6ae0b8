//! Deserializes targets. Hand-written, so that the error about an unknown target lists only those
//! that can be submitted.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};

use super::Target;

/// Targets that users can submit. Services register themselves, and requests are written to a
/// manager's queue: both are deserialized from the store, but not offered to users.
const SUBMITTABLE: &[&str; 3] = &["command", "routine", "handler"];

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A map, not an enum: users may name two targets, which an enum deserializer reports as a
        // syntax error.
        deserializer.deserialize_map(TargetVisitor)
    }
}

struct TargetVisitor;

impl<'de> Visitor<'de> for TargetVisitor {
    type Value = Target;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a target, as {\"command\": [\"echo\", \"hello\"]}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Target, A::Error> {
        let Some(kind) = map.next_key::<String>()? else {
            return Err(de::Error::custom(format!(
                "names nothing to run, expected one of {}",
                format_submittable()
            )));
        };
        let target = match kind.as_str() {
            "command" => Target::Command(map.next_value()?),
            "routine" => Target::Routine(map.next_value()?),
            "handler" => Target::Handler(map.next_value()?),
            "service" => Target::Service(map.next_value()?),
            "request" => Target::Request(map.next_value()?),
            other => return Err(de::Error::unknown_variant(other, SUBMITTABLE)),
        };
        match map.next_key::<String>()? {
            None => Ok(target),
            Some(second) => Err(de::Error::custom(format!(
                "names two targets, `{kind}` and `{second}`: give one"
            ))),
        }
    }
}

fn format_submittable() -> String {
    SUBMITTABLE.map(|kind| format!("`{kind}`")).join(", ")
}
