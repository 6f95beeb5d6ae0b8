//! Which handler runs a task: the handler rule, `task.requires ⊆ handler.provides ⊆ worker.caps`.

use crate::{CapSet, Spec, Target, spec::ANY_HANDLER};

/// A handler as the rule sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// What it provides.
    pub provides: CapSet,
}

/// The number of the first handler that may run the task on a worker with these capabilities. The error says why none may.
pub fn pick(offers: &[Offer], spec: &Spec, caps: &CapSet) -> Result<usize, String> {
    let Target::Handler(wanted) = &spec.target else { return Err("it names no handler".into()) };
    let mut found = Vec::new();
    for (number, Offer { name, provides }) in offers.iter().enumerate() {
        if wanted != ANY_HANDLER && wanted != name {
            continue;
        }
        let beyond: Vec<&str> = provides.missing_from(caps).collect();
        let unmet: Vec<&str> = spec.requires.missing_from(provides).collect();
        if !beyond.is_empty() {
            found.push(format!("'{name}' provides {}, which the worker does not", beyond.join(", ")));
        } else if !unmet.is_empty() {
            found.push(format!("'{name}' does not provide {}", unmet.join(", ")));
        } else {
            return Ok(number);
        }
    }
    if found.is_empty() {
        return Err(format!("no handler is called '{wanted}'"));
    }
    Err(format!("no handler fits: {}", found.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str, provides: &str) -> Offer {
        Offer { name: name.into(), provides: provides.parse().unwrap() }
    }

    fn picked(offers: &[Offer], target: &str, requires: &str, caps: &str) -> Result<usize, String> {
        let mut spec = Spec::command(["x"]);
        spec.target = Target::Handler(target.into());
        spec.requires = requires.parse().unwrap();
        pick(offers, &spec, &caps.parse().unwrap())
    }

    #[test]
    fn the_first_that_fits_runs_it() {
        let offers = [offer("a", "cpu"), offer("b", "cpu,gpu"), offer("c", "cpu,gpu,llm")];
        assert_eq!(picked(&offers, "any", "", "cpu,gpu"), Ok(0));
        assert_eq!(picked(&offers, "any", "gpu", "cpu,gpu"), Ok(1));
        assert_eq!(picked(&offers, "b", "", "cpu,gpu"), Ok(1));
    }

    #[test]
    fn why_none_fits_is_said() {
        let offers = [offer("a", "cpu"), offer("b", "cpu,gpu")];
        let why = "no handler fits: 'a' does not provide gpu; 'b' provides gpu, which the worker does not";
        assert_eq!(picked(&offers, "any", "gpu", "cpu"), Err(why.into()));
        assert_eq!(picked(&offers, "z", "", "cpu"), Err("no handler is called 'z'".into()));
        assert_eq!(picked(&[], "any", "", ""), Err("no handler is called 'any'".into()));
    }
}
