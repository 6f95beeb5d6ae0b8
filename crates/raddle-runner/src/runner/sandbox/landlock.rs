//! Landlock: limits writing, and reaching other processes' sockets by path, to a few directories.
//! It backs up the root, and is the only protection of files where there is no root.

use std::{error::Error, io, os::fd::BorrowedFd};

use landlock::{
    ABI, Access, AccessFs, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};

/// Newest ABI whose rights are requested. Older kernels ignore the rights that they do not know.
const NEWEST: ABI = ABI::V9;

/// Restricts this process and its children: the paths that may be read and executed, the paths that
/// may also be written, if they exist, and a program that may be executed although no path leads to
/// it. From ABI 6 on, abstract sockets and signals also stay inside.
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

/// Extracts the kernel's error.
fn os_error(error: &(dyn Error + 'static)) -> io::Error {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let number = causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    number.map_or_else(
        || io::Error::other(error.to_string()),
        io::Error::from_raw_os_error,
    )
}
