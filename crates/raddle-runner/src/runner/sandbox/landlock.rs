//! Landlock: files are written, and sockets of others found by their path, below a few directories alone. It stands behind the root, should that have a hole,
//! and is the only layer that guards files where there is no root.

use std::{error::Error, io, os::fd::BorrowedFd};

use landlock::{
    ABI, Access, AccessFs, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};

/// The newest version whose rights are asked for. Of an older kernel, those that it knows.
const NEWEST: ABI = ABI::V9;

/// Puts this process, and all that it starts, under rules: what it may read and run, and what it may write besides, as far as that exists, and a program
/// that it may run although no path leads there. From version 6 on, abstract sockets and signals stay inside as well.
pub(super) fn restrict(
    readable: &[&str],
    writable: &[&str],
    program: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    match enforce(readable, writable, program).map_err(|error| os_error(&error))? {
        RulesetStatus::NotEnforced => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn enforce(
    readable: &[&str],
    writable: &[&str],
    program: Option<BorrowedFd<'_>>,
) -> Result<RulesetStatus, RulesetError> {
    let all = AccessFs::from_all(NEWEST);
    let program = program.map(|program| {
        Ok::<_, RulesetError>(PathBeneath::new(
            program,
            AccessFs::Execute | AccessFs::ReadFile,
        ))
    });
    let restricted = Ruleset::default()
        .handle_access(all)?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(NEWEST)))?
        .add_rules(path_beneath_rules(writable, all))?
        .add_rules(program)?
        .restrict_self()?;
    Ok(restricted.ruleset)
}

/// The kernel's own reason.
fn os_error(error: &(dyn Error + 'static)) -> io::Error {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let number = causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    number.map_or_else(
        || io::Error::other(error.to_string()),
        io::Error::from_raw_os_error,
    )
}
