//! The subset relation and the syntax of tags.

use proptest::prelude::*;

use super::*;
use crate::arbitrary::caps;

fn union(a: &CapSet, b: &CapSet) -> CapSet {
    CapSet(a.0.union(&b.0).cloned().collect())
}

proptest! {
    #[test]
    fn subset_is_a_partial_order(a in caps(), b in caps(), c in caps()) {
        prop_assert!(a.is_subset(&a));
        prop_assert!(CapSet::new().is_subset(&a));
        prop_assert_eq!(a.is_subset(&b) && b.is_subset(&a), a == b);
        if a.is_subset(&b) && b.is_subset(&c) {
            prop_assert!(a.is_subset(&c));
        }
    }

    #[test]
    fn is_a_subset_exactly_when_nothing_is_missing(a in caps(), b in caps()) {
        let missing: Vec<_> = a.missing_from(&b).collect();
        prop_assert_eq!(a.is_subset(&b), missing.is_empty());
        prop_assert_eq!(a.is_subset(&b), a.iter().all(|tag| b.iter().any(|other| other == tag)));
        prop_assert!(missing.iter().all(|tag| a.iter().any(|t| t == *tag) && b.iter().all(|t| t != *tag)));
    }

    #[test]
    fn offering_more_never_hurts(a in caps(), b in caps(), more in caps()) {
        if a.is_subset(&b) {
            prop_assert!(a.is_subset(&union(&b, &more)));
        }
        prop_assert!(a.is_subset(&union(&a, &more)));
    }

    #[test]
    fn text_and_json_round_trip(a in caps()) {
        prop_assert_eq!(a.to_string().parse::<CapSet>(), Ok(a.clone()));
        let json = serde_json::to_string(&a).expect("an array");
        prop_assert_eq!(serde_json::from_str::<CapSet>(&json).expect("the same array"), a);
    }

    #[test]
    fn refuses_tags_with_other_characters(tag in "[a-z]{0,3}[^a-zA-Z0-9._:@-][a-z]{0,3}") {
        prop_assert!(CapSet::new().insert(&tag).is_err());
        let json = serde_json::to_string(&[&tag]).expect("an array");
        prop_assert!(serde_json::from_str::<CapSet>(&json).is_err());
    }
}

#[test]
fn users_cannot_set_reserved_tags() {
    for text in ["@sandbox", "gpu, @x", "@", " @docker "] {
        let refused = CapSet::from_people(text).unwrap_err().to_string();
        assert!(
            refused.ends_with("tags that begin with @ are given by Raddle itself"),
            "{refused}"
        );
        let stored: CapSet = text.parse().expect("a stored set parses");
        assert_eq!(stored.implied().count(), 1, "{text}");
    }
    assert_eq!(
        CapSet::from_people("a@b,gpu").unwrap().to_string(),
        "a@b,gpu"
    );
    assert!(matches!(
        CapSet::from_people("a b"),
        Err(InvalidCap::Malformed { .. })
    ));
}

#[test]
fn ignores_blanks_empty_tags_and_duplicates() {
    let set: CapSet = " gpu, ,cpu,,gpu ,".parse().unwrap();
    assert_eq!(set.to_string(), "cpu,gpu");
    assert!("".parse::<CapSet>().unwrap().is_empty());
    assert!(
        "a b"
            .parse::<CapSet>()
            .unwrap_err()
            .to_string()
            .starts_with("'a b' is not a capability")
    );
    assert!("x".repeat(65).parse::<CapSet>().is_err());
    assert!("x".repeat(64).parse::<CapSet>().is_ok());
}
