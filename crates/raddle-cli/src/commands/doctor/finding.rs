//! One result of a check. A bad result always names its fix.

use raddle_broker::HealthCheck;
use raddle_runner::probe::CapabilityProbe;
use serde::Serialize;

/// Checks of the engine whose failure means that work may be lost.
const CRITICAL_CHECKS: [&str; 4] = ["integrity", "journal", "persistence", "writes to disk"];

/// One result of a check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    area: &'static str,
    name: String,
    ok: bool,
    /// Whether work cannot be done, or may be lost, until it is fixed.
    vital: bool,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    pub(super) fn fine(area: &'static str, name: &str, detail: String) -> Self {
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
    pub(super) fn warning(
        area: &'static str,
        name: &str,
        detail: String,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            area,
            name: name.into(),
            ok: false,
            vital: false,
            detail,
            fix: Some(fix.into()),
        }
    }

    /// A broker that cannot be opened.
    pub(super) fn broken(name: &str, detail: String, fix: &str) -> Self {
        Self::wrong("broker", name, detail, fix)
    }

    /// An error: work cannot be done, or may be lost.
    pub(super) fn wrong(area: &'static str, name: &str, detail: String, fix: &str) -> Self {
        Self {
            vital: true,
            ..Self::warning(area, name, detail, fix)
        }
    }

    pub(super) fn probed(area: &'static str, probe: CapabilityProbe) -> Self {
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
    pub(super) fn checked(check: HealthCheck) -> Self {
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
    pub(super) fn is_sound(&self) -> bool {
        self.ok || !self.vital
    }

    /// The detail of the result.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// The result as text.
    pub(super) fn text(&self) -> String {
        let Self {
            area,
            name,
            ok,
            vital,
            detail,
            fix,
        } = self;
        let mark = match (ok, vital) {
            (true, _) => "ok   ",
            (false, false) => "warn ",
            (false, true) => "WRONG",
        };
        let fix = fix
            .as_ref()
            .filter(|_| !ok)
            .map(|fix| format!("      to mend it: {fix}\n"));
        format!(
            "{mark} {area}, {name}: {detail}\n{}",
            fix.unwrap_or_default()
        )
    }

    #[cfg(test)]
    pub(super) fn verdict(&self) -> (bool, Option<String>) {
        (self.ok, self.fix.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_amiss_is_shown_with_what_to_do() {
        let amiss = Finding::warning("limits", "x", "low".into(), "raise it");
        assert_eq!(
            amiss.text(),
            "warn  limits, x: low\n      to mend it: raise it\n"
        );
        let broken = Finding::broken("database", "gone".into(), "restore it");
        assert_eq!(
            broken.text(),
            "WRONG broker, database: gone\n      to mend it: restore it\n"
        );
        assert!(amiss.is_sound() && !broken.is_sound());
        assert_eq!(
            Finding::fine("limits", "x", "high".into()).text(),
            "ok    limits, x: high\n"
        );
        let check = |name: &str| HealthCheck {
            name: name.into(),
            ok: false,
            detail: "d".into(),
            fix: Some("f".into()),
        };
        assert!(
            !Finding::checked(check("integrity")).is_sound()
                && Finding::checked(check("memory")).is_sound()
        );
    }
}
