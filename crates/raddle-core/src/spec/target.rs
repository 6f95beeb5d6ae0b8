//! Reading a target. By hand, because the message about an unknown one is to list those that can be submitted, and no others.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, EnumAccess, VariantAccess, Visitor},
};

use super::Target;

/// What people can submit. Services register themselves: they are read back from where they are stored, and offered to nobody.
const SUBMITTED: &[&str] = &["command", "routine", "handler"];

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_enum("Target", SUBMITTED, TargetVisitor)
    }
}

struct TargetVisitor;

impl<'de> Visitor<'de> for TargetVisitor {
    type Value = Target;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a target, as {\"command\": [\"echo\", \"hello\"]}")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Target, A::Error> {
        let (kind, content): (String, _) = access.variant()?;
        match kind.as_str() {
            "command" => content.newtype_variant().map(Target::Command),
            "routine" => content.newtype_variant().map(Target::Routine),
            "handler" => content.newtype_variant().map(Target::Handler),
            "service" => content.newtype_variant().map(Target::Service),
            other => Err(de::Error::unknown_variant(other, SUBMITTED)),
        }
    }
}
