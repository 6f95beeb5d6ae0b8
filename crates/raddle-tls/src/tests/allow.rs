//! Tests of allow rules.

use proptest::prelude::*;

use super::super::{Action, AllowError, AllowRules, CertificateName, Identity, Rule};

fn uri(name: &str) -> Identity {
    [CertificateName::Uri(name.into())].into_iter().collect()
}

fn host(name: &str) -> Identity {
    [CertificateName::Dns(name.into())].into_iter().collect()
}

fn allow(text: &str) -> AllowRules {
    text.parse().unwrap()
}

#[test]
fn permits_what_a_rule_allows_and_nothing_else() {
    let rules = "
        # the web may count
        spiffe://prod/web    = math.*, image::resize
        *.batch.internal     = *
        spiffe://prod/ops/*  = @stop, @info, @route
    ";
    let rules = allow(rules);
    let may = |who: &Identity, action| rules.permits(Some(who), action);
    let (web, batch, ops) = (
        uri("spiffe://prod/web"),
        host("a.batch.internal"),
        uri("spiffe://prod/ops/a/b"),
    );
    assert!(may(&web, Action::Call("math.add")) && may(&web, Action::Call("image::resize")));
    assert!(
        !may(&web, Action::Call("image::crop"))
            && !may(&web, Action::Stop)
            && !may(&web, Action::Info)
    );
    assert!(
        may(&batch, Action::Call("anything"))
            && !may(&batch, Action::Stop)
            && !may(&batch, Action::Info)
    );
    assert!(may(&ops, Action::Route) && !may(&web, Action::Route) && !may(&batch, Action::Route));
    assert!(
        may(&ops, Action::Stop) && may(&ops, Action::Info) && !may(&ops, Action::Call("math.add"))
    );
    assert!(!may(&uri("spiffe://dev/web"), Action::Call("math.add")));
    // A host rule does not match a URI, and vice versa.
    assert!(
        !may(&uri("a.batch.internal"), Action::Call("x"))
            && !may(&host("spiffe://prod/web"), Action::Call("math.add"))
    );
    assert!(!rules.permits(None, Action::Call("math.add")));
}

#[test]
fn one_matching_name_is_enough() {
    let rules = allow("spiffe://prod/web = math.*");
    let both: Identity = [
        CertificateName::Dns("web".into()),
        CertificateName::Uri("spiffe://prod/web".into()),
    ]
    .into_iter()
    .collect();
    assert!(rules.permits(Some(&both), Action::Call("math.add")));
}

#[test]
fn default_rules_require_a_verified_certificate() {
    let (rules, unnamed) = (AllowRules::default(), Identity::from_iter([]));
    for action in [
        Action::Call("math.add"),
        Action::Stop,
        Action::Info,
        Action::Route,
    ] {
        assert!(rules.permits(Some(&unnamed), action));
        assert_eq!(
            rules.permits(None, action),
            !matches!(action, Action::Stop | Action::Route),
            "{action}"
        );
    }
    assert_eq!(
        rules.to_string(),
        "* = *, @stop, @info, @route\n@anyone = *, @info"
    );
}

#[test]
fn star_matches_verified_peers_and_anyone_matches_all() {
    let verified = allow("* = math.*");
    assert!(verified.permits(Some(&Identity::from_iter([])), Action::Call("math.add")));
    assert!(!verified.permits(None, Action::Call("math.add")));
    assert!(allow("@anyone = math.*").permits(None, Action::Call("math.add")));
}

#[test]
fn invalid_rules_are_refused_with_a_hint() {
    for (text, words) in [
        ("", "there are no rules"),
        ("# nothing\n\n", "there are no rules"),
        ("spiffe://prod/web", "WHO = WHAT"),
        ("= math.*", "WHO = WHAT"),
        ("a.internal =", "WHO = WHAT"),
        ("a.internal = x,,y", "WHO = WHAT"),
        ("a.internal = @halt", "unknown keyword '@halt'"),
        ("@everyone = *", "unknown keyword '@everyone'"),
        ("spiffe://prod* = *", "after the slash"),
        ("a b = *", "without spaces"),
        ("a_b!c = *", "a host name consists"),
        ("10.0.0.7 = *", "not by address"),
        ("10.0.*.* = *", "not by address"),
        ("2001:db8::7 = *", "not by address"),
        ("[::1] = *", "not by address"),
        ("a.internal = math add", "without spaces"),
    ] {
        let error = text.parse::<AllowRules>().unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    // Host names may contain numbers.
    assert!(allow("7.web.internal = x").permits(Some(&host("7.web.internal")), Action::Call("x")));
    // The rule is split at the last `=`, because a URI may contain others.
    let rule = allow("https://host/a?b=c = math.add");
    assert!(rule.permits(Some(&uri("https://host/a?b=c")), Action::Call("math.add")));
    assert_eq!(AllowRules::new([]), Err(AllowError::Empty));
}

fn who() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("*".to_owned()),
        Just("@anyone".to_owned()),
        "spiffe://[a-c]{1,2}(/[a-c*]{1,2}){0,2}",
        "[a-c*]{1,2}(\\.[a-c]{1,2}){0,2}"
            .prop_filter("a single star matches every verified peer", |host| host
                != "*"),
    ]
}

fn what() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("@stop".to_owned()),
        Just("@info".to_owned()),
        "[a-c.*]{1,4}"
    ];
    prop::collection::vec(word, 1..4).prop_map(|words| words.join(" , "))
}

fn rule() -> impl Strategy<Value = Rule> {
    (who(), what()).prop_map(|(who, what)| format!("{who}={what}").parse().unwrap())
}

fn caller() -> impl Strategy<Value = Option<Identity>> {
    let name = prop_oneof![
        "spiffe://[a-c]{1,2}(/[a-c]{1,2}){0,3}".prop_map(CertificateName::Uri),
        "[a-c]{1,2}(\\.[a-c]{1,2}){0,3}".prop_map(CertificateName::Dns),
    ];
    prop::option::of(prop::collection::vec(name, 0..3).prop_map(Identity::from_iter))
}

proptest! {
    #[test]
    fn rules_round_trip(rules in prop::collection::vec(rule(), 1..5)) {
        let rules = AllowRules::new(rules).unwrap();
        prop_assert_eq!(&allow(&rules.to_string()), &rules);
        let written = serde_json::to_string(&rules).unwrap();
        prop_assert_eq!(serde_json::from_str::<AllowRules>(&written).unwrap(), rules);
    }

    #[test]
    fn rules_add_up(
        rules in prop::collection::vec(rule(), 1..4), more in rule(), caller in caller(), routine in "[a-c.]{1,4}",
    ) {
        let fewer = AllowRules::new(rules.clone()).unwrap();
        let all = AllowRules::new(rules.into_iter().chain([more.clone()])).unwrap();
        let alone = AllowRules::new([more]).unwrap();
        for action in [Action::Call(&routine), Action::Stop, Action::Info] {
            let may = |rules: &AllowRules| rules.permits(caller.as_ref(), action);
            prop_assert_eq!(may(&all), may(&fewer) || may(&alone));
        }
    }

    #[test]
    fn peers_without_certificate_get_the_rights_of_anyone(rules in prop::collection::vec(rule(), 1..4), routine in "[a-c.]{1,4}") {
        let for_anyone = rules.iter().any(|rule| rule.to_string().starts_with("@anyone"));
        let rules = AllowRules::new(rules).unwrap();
        for action in [Action::Call(&routine), Action::Stop, Action::Info] {
            prop_assert!(for_anyone || !rules.permits(None, action));
        }
    }

    #[test]
    fn stop_and_info_need_their_own_keywords(who in who(), routine in "[a-c.*]{1,4}", caller in caller()) {
        let rules = allow(&format!("{who} = {routine}, *"));
        prop_assert!(!rules.permits(caller.as_ref(), Action::Stop) && !rules.permits(caller.as_ref(), Action::Info));
    }

    #[test]
    fn parser_never_panics(text in "\\PC{0,60}", lines in "[a-z@*=,/: \n#.]{0,80}") {
        let _ = (text.parse::<AllowRules>(), lines.parse::<AllowRules>());
    }
}
