//! Who a worker is, whom it trusts, and who may ask what of it: TLS with certificates on both sides.
//!
//! What is in a key is never shown: not by `Debug`, not in an error, not in a log.

#[cfg(any(feature = "issue", test))]
pub mod issue;
