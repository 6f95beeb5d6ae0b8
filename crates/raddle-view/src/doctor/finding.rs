//! One result of a check. A bad result always names its fix.

use raddle_broker::HealthCheck;
use raddle_runner::probe::CapabilityProbe;
use serde::Serialize;

/// Checks of the engine whose failure means that work may be lost.
const CRITICAL_CHECKS: [&str; 4] = ["integrity", "journal", "persistence", "writes to disk"];

/// One result of a check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The checked area: the project, the broker, limits and so on.
    pub area: &'static str,
    /// The name of the check.
    pub name: String,
    /// Whether nothing is wrong.
    pub ok: bool,
    /// Whether work cannot be done, or may be lost, until it is fixed.
    pub vital: bool,
    /// The result in words.
    pub detail: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// A good result.
    pub fn fine(area: &'static str, name: &str, detail: String) -> Self {
        Self {
            area,
            name: name.into(),
            ok: true,
            vital: false,
            detail,
            fix: None,
        }
    }

    /// A warning.
    pub fn warning(area: &'static str, name: &str, detail: String, fix: impl Into<String>) -> Self {
        Self {
            area,
            name: name.into(),
            ok: false,
            vital: false,
            detail,
            fix: Some(fix.into()),
        }
    }

    /// An error: work cannot be done, or may be lost.
    pub fn error(area: &'static str, name: &str, detail: String, fix: &str) -> Self {
        Self {
            vital: true,
            ..Self::warning(area, name, detail, fix)
        }
    }

    pub(super) fn from_probe(area: &'static str, probe: CapabilityProbe) -> Self {
        let CapabilityProbe {
            name,
            ok,
            detail,
            fix,
        } = probe;
        Self {
            area,
            name: name.into(),
            ok,
            vital: false,
            detail,
            fix,
        }
    }

    /// The result of an engine's own check.
    pub(super) fn from_health_check(check: HealthCheck) -> Self {
        let HealthCheck {
            name,
            ok,
            detail,
            fix,
        } = check;
        Self {
            area: "broker",
            vital: CRITICAL_CHECKS.contains(&name.as_str()),
            name,
            ok,
            detail,
            fix,
        }
    }

    /// Whether no work may be lost.
    pub fn is_sound(&self) -> bool {
        self.ok || !self.vital
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_critical_checks_of_the_engine_are_vital() {
        let check = |name: &str| HealthCheck {
            name: name.into(),
            ok: false,
            detail: "d".into(),
            fix: Some("f".into()),
        };
        assert!(!Finding::from_health_check(check("integrity")).is_sound());
        assert!(Finding::from_health_check(check("memory")).is_sound());
        assert!(Finding::warning("limits", "x", "low".into(), "raise it").is_sound());
        assert!(!Finding::error("broker", "database", "gone".into(), "restore it").is_sound());
    }
}
