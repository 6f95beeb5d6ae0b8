//! Accepted expressions and schedules, and the errors for invalid ones.

use super::*;

fn wrong(text: &str) -> String {
    text.parse::<Cron>().unwrap_err().to_string()
}

#[test]
fn expressions_keep_their_text() {
    for text in [
        "0 3 * * 1-5",
        "*/5 * * * *",
        "@Daily",
        "0 0 12 * * ?",
        "0 0 L * *",
        "0 9 * JAN,jul mon#1,5L",
        "5/15 * * * 7",
    ] {
        let cron: Cron = text.parse().unwrap();
        assert_eq!((cron.as_str(), cron.to_string().as_str()), (text, text));
        let json = serde_json::to_string(&cron).unwrap();
        assert_eq!(serde_json::from_str::<Cron>(&json).unwrap(), cron);
    }
}

#[test]
fn reports_what_is_wrong_with_an_expression() {
    for (text, message) in [
        ("", "has 0 fields: write five"),
        ("* * * *", "has 4 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("60 * * * *", "the minute '60' is not a number from 0 to 59"),
        ("* 24 * * *", "the hour '24' is not a number from 0 to 23"),
        (
            "* * 0 * *",
            "the day of the month '0' is not a number from 1 to 31",
        ),
        (
            "* * * 13 *",
            "the month '13' is not a number from 1 to 12, nor a name such as FEB",
        ),
        (
            "* * * * 8",
            "the day of the week '8' is not a number from 0 to 7, nor a name such as MON",
        ),
        ("-1 * * * *", "the minute '' is not a number"),
        ("+1 * * * *", "the minute '+1' is not a number"),
        ("1,,2 * * * *", "the minute '' is not a number"),
        (
            "* 22-2 * * *",
            "begins after its end: write two ranges, 22-23,0-2",
        ),
        (
            "*/0 * * * *",
            "the step in '*/0' of the minute has to be a number from 1 to 59",
        ),
        ("*/60 * * * *", "from 1 to 59"),
        (
            "* * * * MON#6",
            "a number from 1 to 5 has to follow the '#'",
        ),
        ("* * * * #2", "the day of the week '' is not a number"),
        ("* * 30 2 *", "is never due: there is no such day"),
        ("* * 31 4,6,9,11 *", "is never due"),
        (
            "@noon",
            "is not a known shorthand: use one of @hourly, @daily",
        ),
        ("ä * * * *", "the minute 'ä' is not a number"),
    ] {
        let error = wrong(text);
        assert!(
            error.starts_with(&format!("cron '{text}': ")) && error.contains(message),
            "{text}: {error}"
        );
    }
    assert!(wrong(&"*".repeat(300)).contains("is longer than 256 bytes"));
}

#[test]
fn parses_schedules_from_toml_and_json() {
    let text = "name = 'backup'\ncron = '0 3 * * 1-5'\ntimezone = 'Europe/Berlin'\nmissed = 'all'\nlifetime = '10m'
                start = 2026-01-01T00:00:00Z\n[task]\ntarget.command = ['./backup']\nretry.attempts = 3";
    let schedule = Schedule::from_toml(text).unwrap();
    let mut by_hand = Schedule::cron("backup", "0 3 * * 1-5")
        .timezone("Europe/Berlin")
        .missed(MissedPolicy::All)
        .lifetime(Duration::from_secs(600))
        .start(timestamp("2026-01-01T00:00:00Z"))
        .task(TaskSpec::command(["./backup"]))
        .unwrap();
    by_hand.task.retry.attempts = 3;
    assert_eq!(schedule, by_hand);
    let json = serde_json::to_string(&schedule).unwrap();
    assert_eq!(Schedule::from_json(&json).unwrap(), schedule);
    let short = r#"{"name":"beat","every":60,"task":{"target":{"command":["true"]}}}"#;
    assert_eq!(
        serde_json::to_string(&Schedule::from_json(short).unwrap()).unwrap(),
        short
    );
}

#[test]
fn errors_name_the_path_of_the_key() {
    let error = |rest: &str| {
        let text = format!("name = 'x'\n{rest}\n[task]\ntarget.command = ['true']");
        Schedule::from_toml(&text).unwrap_err().to_string()
    };
    for (rest, message) in [
        ("evry = 5", "at 'evry': unknown field"),
        ("every = 'soon'", "at 'every': "),
        ("every = '1ms'", "at 'every': must be at least 10ms"),
        (
            "every = 5\ncron = '* * * * *'",
            "at 'cron': and every exclude each other",
        ),
        ("", "at 'every': and cron are both absent"),
        ("cron = '* * *'", "at 'cron': cron '* * *': has 3 fields"),
        (
            "cron = '@daily'\ntimezone = 'Europe/Atlantis'",
            "at 'timezone': 'Europe/Atlantis' is not a time zone",
        ),
        (
            "cron = '@daily'\ntimezone = '../../etc/passwd'",
            "is not a time zone",
        ),
        (
            "every = 5\ntimezone = 'Europe/Berlin'",
            "at 'timezone': means nothing without cron",
        ),
        ("every = 5\nmissed = 'some'", "at 'missed': "),
        (
            "every = 5\nlifetime = 0",
            "at 'lifetime': must be longer than zero",
        ),
        (
            "every = 5\nlifetime = 3\njitter = 3",
            "at 'jitter': must be shorter than the lifetime",
        ),
    ] {
        let error = error(rest);
        assert!(error.contains(message), "{rest}: {error}");
    }
    let task = |rest: &str| {
        let text = format!("name = 'x'\nevery = 5\n[task]\ntarget.command = ['true']\n{rest}");
        Schedule::from_toml(&text).unwrap_err().to_string()
    };
    assert!(
        task("tmeout = 3").starts_with("at 'task.tmeout': unknown"),
        "{}",
        task("tmeout = 3")
    );
    assert!(task("delay = 3").starts_with("at 'task.delay': belongs to the schedule"));
    assert!(task("lifetime = 3").starts_with("at 'task.lifetime': belongs to the schedule"));
    assert!(task("priority = 11").starts_with("at 'task.priority': must be 0 to 9"));
    for name in ["", "a b", "ä", "a/b", &"n".repeat(65)] {
        let schedule =
            Schedule::every(name, Duration::from_secs(1)).task(TaskSpec::command(["true"]));
        assert!(
            schedule.unwrap_err().to_string().starts_with("at 'name'"),
            "{name}"
        );
    }
    let wrong = Schedule::cron("x", "nonsense")
        .timezone("UTC")
        .task(TaskSpec::command(["true"]))
        .unwrap_err();
    assert!(
        wrong
            .to_string()
            .starts_with("at 'cron': cron 'nonsense': has 1 fields"),
        "{wrong}"
    );
}

#[test]
fn time_zones_are_bundled() {
    for name in [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Asia/Kolkata",
        "Pacific/Apia",
    ] {
        assert!(known_zone(name).is_some(), "{name}");
    }
}
