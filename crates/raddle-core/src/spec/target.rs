//! Reading a target. By hand, because the message about an unknown one is to list those that can be submitted, and no others.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};

use super::Target;

/// What people can submit. Services register themselves, and requests are written to a manager's queue: they are read back from where they are
/// stored, and offered to nobody.
const SUBMITTED: &[&str; 3] = &["command", "routine", "handler"];

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // What people write may name two, which a reader of enums takes for a mistake in the form of the text.
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
            return Err(de::Error::custom(format!("names nothing to run, expected one of {}", listed())));
        };
        let target = match kind.as_str() {
            "command" => Target::Command(map.next_value()?),
            "routine" => Target::Routine(map.next_value()?),
            "handler" => Target::Handler(map.next_value()?),
            "service" => Target::Service(map.next_value()?),
            "request" => Target::Request(map.next_value()?),
            other => return Err(de::Error::unknown_variant(other, SUBMITTED)),
        };
        match map.next_key::<String>()? {
            None => Ok(target),
            Some(second) => Err(de::Error::custom(format!("names two targets, `{kind}` and `{second}`: give one"))),
        }
    }
}

fn listed() -> String {
    SUBMITTED.map(|kind| format!("`{kind}`")).join(", ")
}
