//! One thing that was looked at. What is not as it should be cannot be told without what to do about it.

use raddle_broker::Check;
use raddle_exec::probe::Probe;
use serde::Serialize;

/// Checks of the engine that, when they fail, mean that work may be lost.
const VITAL: [&str; 4] = ["integrity", "journal", "persistence", "writes to disk"];

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    area: &'static str,
    name: String,
    ok: bool,
    /// Whether work cannot be done, or may be lost, while it is not as it should be.
    vital: bool,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    pub(super) fn fine(area: &'static str, name: &str, detail: String) -> Self {
        Self { area, name: name.into(), ok: true, vital: false, detail, fix: None }
    }

    /// Worth knowing.
    pub(super) fn amiss(area: &'static str, name: &str, detail: String, fix: impl Into<String>) -> Self {
        Self { area, name: name.into(), ok: false, vital: false, detail, fix: Some(fix.into()) }
    }

    /// Of a broker, which cannot be asked.
    pub(super) fn broken(name: &str, detail: String, fix: &str) -> Self {
        Self::wrong("broker", name, detail, fix)
    }

    /// Work cannot be done, or may be lost.
    pub(super) fn wrong(area: &'static str, name: &str, detail: String, fix: &str) -> Self {
        Self { vital: true, ..Self::amiss(area, name, detail, fix) }
    }

    pub(super) fn probed(area: &'static str, probe: Probe) -> Self {
        let Probe { name, ok, detail, fix } = probe;
        Self { area, name: name.into(), ok, vital: false, detail, fix }
    }

    /// What an engine has said of itself.
    pub(super) fn checked(check: Check) -> Self {
        let Check { name, ok, detail, fix } = check;
        Self { area: "broker", vital: VITAL.contains(&name.as_str()), name, ok, detail, fix }
    }

    /// Whether no work may be lost for it.
    pub(super) fn is_sound(&self) -> bool {
        self.ok || !self.vital
    }

    /// What was found.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// As people are shown it.
    pub(super) fn text(&self) -> String {
        let Self { area, name, ok, vital, detail, fix } = self;
        let mark = match (ok, vital) {
            (true, _) => "ok   ",
            (false, false) => "warn ",
            (false, true) => "WRONG",
        };
        let fix = fix.as_ref().filter(|_| !ok).map(|fix| format!("      to mend it: {fix}\n"));
        format!("{mark} {area}, {name}: {detail}\n{}", fix.unwrap_or_default())
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
        let amiss = Finding::amiss("limits", "x", "low".into(), "raise it");
        assert_eq!(amiss.text(), "warn  limits, x: low\n      to mend it: raise it\n");
        let broken = Finding::broken("database", "gone".into(), "restore it");
        assert_eq!(broken.text(), "WRONG broker, database: gone\n      to mend it: restore it\n");
        assert!(amiss.is_sound() && !broken.is_sound());
        assert_eq!(Finding::fine("limits", "x", "high".into()).text(), "ok    limits, x: high\n");
        let check = |name: &str| Check { name: name.into(), ok: false, detail: "d".into(), fix: Some("f".into()) };
        assert!(!Finding::checked(check("integrity")).is_sound() && Finding::checked(check("memory")).is_sound());
    }
}
