//! Why a text is not a query.

use super::{MAX_BYTES, MAX_TOKENS};

/// A text is not a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("query, character {}: {kind}", position + 1)]
pub struct QueryError {
    /// The number of characters before the mistake.
    pub position: usize,
    /// The mistake.
    pub kind: QueryErrorKind,
}

/// A mistake in a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryErrorKind {
    /// The query has too many bytes.
    #[error("it is longer than {MAX_BYTES} bytes: shorten it")]
    TooLong,
    /// The query has too many values.
    #[error("it has more than {MAX_TOKENS} values: shorten it")]
    TooMany,
    /// A quote has no end.
    #[error("a quote has no end: add \"")]
    OpenQuote,
    /// A character needs quotes.
    #[error(
        "'{0}' is only possible in quotes: write \"…\" around the whole value, and \\ before it"
    )]
    NeedsQuotes(char),
    /// A value is missing.
    #[error("a value is missing: write 'state:failed', or quote a name that has a colon or comma")]
    NoValue,
    /// There is no such field.
    #[error("there is no field '{0}': use one of {FIELDS}, or quote a name that has a colon")]
    UnknownField(String),
    /// The field takes no such value.
    #[error("'{value}' is not possible for {field}: {hint}")]
    BadValue {
        /// The field.
        field: String,
        /// The value.
        value: String,
        /// The possible values.
        hint: String,
    },
}

/// The fields, for messages.
pub(super) const FIELDS: &str = "state, name, queue, kind, batch, cap, id, worker, parent, dead, paused, \
                      delayed, tries, priority, exit, error, took, waited, since, until, meta.KEY";
