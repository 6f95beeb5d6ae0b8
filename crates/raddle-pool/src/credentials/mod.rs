//! Who a worker is, whom it trusts, and who may ask what of it: TLS with certificates on both sides.
//!
//! [`Identity`] is what the certificate of a caller says of him, and [`Allow`] what he may do. What is in a key is never shown: not by `Debug`,
//! not in an error, not in a log.

mod allow;
mod identity;
#[cfg(any(feature = "issue", test))]
pub mod issue;
mod pattern;
#[cfg(test)]
mod tests;

pub use self::{
    allow::{Action, Allow, AllowError, Rule},
    identity::{Identity, IdentityError, Name},
    pattern::PatternError,
};
