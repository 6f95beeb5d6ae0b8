//! Which handler runs a task: the handler rule, `task.requires ⊆ handler.provides ⊆ worker.caps`.

use std::fmt;

use crate::{CapSet, Spec, Target, spec::ANY_HANDLER};

/// A handler as the rule sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// What it provides.
    pub provides: CapSet,
}

/// Why no handler of a worker runs a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoHandler {
    wanted: String,
    found: Vec<(String, Lacks)>,
}

/// What keeps a handler from running a task.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lacks {
    /// The task requires what the handler does not provide.
    Provision(Vec<String>),
    /// The handler provides what the worker does not offer, so it may run nothing here.
    Worker(Vec<String>),
}

/// The number of the first handler that may run the task on a worker with these capabilities.
pub fn pick(offers: &[Offer], spec: &Spec, caps: &CapSet) -> Result<usize, NoHandler> {
    let Target::Handler(wanted) = &spec.target else { return Err(NoHandler::unknown("")) };
    let mut none = NoHandler::unknown(wanted);
    for (number, offer) in offers.iter().enumerate() {
        if wanted != ANY_HANDLER && *wanted != offer.name {
            continue;
        }
        match lacks(offer, spec, caps) {
            None => return Ok(number),
            Some(lacks) => none.found.push((offer.name.clone(), lacks)),
        }
    }
    Err(none)
}

fn lacks(offer: &Offer, spec: &Spec, caps: &CapSet) -> Option<Lacks> {
    let missing = |set: &CapSet, from: &CapSet| -> Vec<String> { set.missing_from(from).map(str::to_owned).collect() };
    let beyond = missing(&offer.provides, caps);
    if !beyond.is_empty() {
        return Some(Lacks::Worker(beyond));
    }
    let unmet = missing(&spec.requires, &offer.provides);
    (!unmet.is_empty()).then_some(Lacks::Provision(unmet))
}

impl NoHandler {
    fn unknown(wanted: &str) -> Self {
        Self { wanted: wanted.into(), found: Vec::new() }
    }
}

impl fmt::Display for NoHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.found.is_empty() {
            return write!(f, "no handler is called '{}'", self.wanted);
        }
        f.write_str("no handler fits: ")?;
        for (n, (name, lacks)) in self.found.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "; " })?;
            match lacks {
                Lacks::Provision(tags) => write!(f, "'{name}' does not provide {}", tags.join(", "))?,
                Lacks::Worker(tags) => write!(f, "'{name}' provides {}, which the worker does not", tags.join(", "))?,
            }
        }
        Ok(())
    }
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
        pick(offers, &spec, &caps.parse().unwrap()).map_err(|none| none.to_string())
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
