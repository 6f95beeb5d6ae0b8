//! Handler selection. The handler rule is `task.requires ⊆ handler.provides ⊆ worker.caps`.

use crate::{CapSet, Target, TaskSpec, spec::ANY_HANDLER};

/// A handler, as far as the rule needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerOffer {
    /// Name of the handler.
    pub name: String,
    /// Capabilities that it provides.
    pub provides: CapSet,
}

/// Returns the index of the first handler that may run the task on a worker with these
/// capabilities. The error says why none may.
pub fn select_handler(
    offers: &[HandlerOffer],
    spec: &TaskSpec,
    caps: &CapSet,
) -> Result<usize, String> {
    let Target::Handler(wanted) = &spec.target else {
        return Err("it names no handler".into());
    };
    let mut reasons = Vec::new();
    for (number, HandlerOffer { name, provides }) in offers.iter().enumerate() {
        if wanted != ANY_HANDLER && wanted != name {
            continue;
        }
        let unavailable: Vec<&str> = provides.missing_from(caps).collect();
        let unmet: Vec<&str> = spec.requires.missing_from(provides).collect();
        if !unavailable.is_empty() {
            reasons.push(format!(
                "'{name}' provides {}, which the worker does not",
                unavailable.join(", ")
            ));
        } else if !unmet.is_empty() {
            reasons.push(format!("'{name}' does not provide {}", unmet.join(", ")));
        } else {
            return Ok(number);
        }
    }
    if reasons.is_empty() {
        return Err(format!("no handler is called '{wanted}'"));
    }
    Err(format!("no handler fits: {}", reasons.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str, provides: &str) -> HandlerOffer {
        HandlerOffer {
            name: name.into(),
            provides: provides.parse().unwrap(),
        }
    }

    fn select(
        offers: &[HandlerOffer],
        target: &str,
        requires: &str,
        caps: &str,
    ) -> Result<usize, String> {
        let mut spec = TaskSpec::command(["x"]);
        spec.target = Target::Handler(target.into());
        spec.requires = requires.parse().unwrap();
        select_handler(offers, &spec, &caps.parse().unwrap())
    }

    #[test]
    fn selects_the_first_matching_handler() {
        let offers = [
            offer("a", "cpu"),
            offer("b", "cpu,gpu"),
            offer("c", "cpu,gpu,llm"),
        ];
        assert_eq!(select(&offers, "any", "", "cpu,gpu"), Ok(0));
        assert_eq!(select(&offers, "any", "gpu", "cpu,gpu"), Ok(1));
        assert_eq!(select(&offers, "b", "", "cpu,gpu"), Ok(1));
    }

    #[test]
    fn reports_why_no_handler_matches() {
        let offers = [offer("a", "cpu"), offer("b", "cpu,gpu")];
        let why = "no handler fits: 'a' does not provide gpu; 'b' provides gpu, which the worker does not";
        assert_eq!(select(&offers, "any", "gpu", "cpu"), Err(why.into()));
        assert_eq!(
            select(&offers, "z", "", "cpu"),
            Err("no handler is called 'z'".into())
        );
        assert_eq!(
            select(&[], "any", "", ""),
            Err("no handler is called 'any'".into())
        );
    }
}
