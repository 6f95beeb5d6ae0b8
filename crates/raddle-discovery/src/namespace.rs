//! Validation of namespaces.

use std::io;

use super::DiscoveryError;

/// Checks that workers can be published under this name, which becomes part of file names and
/// DNS-SD records.
pub fn check_namespace(namespace: &str) -> Result<(), DiscoveryError> {
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
        operation: format!("invalid pool name '{namespace}'"),
        source,
    })
}
