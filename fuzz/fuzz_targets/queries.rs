//! Fuzzes the query language with arbitrary text: a text is a query or a mistake in it, and the
//! canonical text of a query is an equal query.

#![no_main]

use libfuzzer_sys::fuzz_target;
use raddle_model::TaskQuery;

fuzz_target!(|text: &str| {
    match text.parse::<TaskQuery>() {
        Ok(query) => {
            let canonical = query.to_string();
            let again = canonical.parse::<TaskQuery>();
            assert_eq!(again.as_ref(), Ok(&query));
            assert_eq!(again.map(|query| query.to_string()), Ok(canonical));
        }
        Err(error) => assert!(error.position <= text.chars().count()),
    }
});
