//! What workers can be published under.

use std::io;

use super::DiscoveryError;

/// Whether workers can be published under this name. It may become the name of a directory, and a part of a record.
pub fn check(namespace: &str) -> Result<(), DiscoveryError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    if (1..=64).contains(&namespace.len())
        && !namespace.starts_with('.')
        && namespace.chars().all(is_name)
    {
        return Ok(());
    }
    let source = io::Error::new(
        io::ErrorKind::InvalidInput,
        "use 1 to 64 letters, digits, dots, dashes and underscores, and no dot first",
    );
    Err(DiscoveryError {
        what: format!("'{namespace}' is no name for a pool"),
        source,
    })
}
