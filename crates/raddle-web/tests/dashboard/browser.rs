//! The dashboard in Chromium.

use std::{fs, path::Path};

use data_encoding::BASE64;
use raddle_model::{ExitStatus, TaskState};
use raddle_web::auth::Role;
use serde_json::{Value, json};

use crate::{
    driver::Browser,
    pages::screens,
    site::{Site, spec},
};

const DONE: ExitStatus = ExitStatus::Code { code: 0 };
const BAD: ExitStatus = ExitStatus::Code { code: 1 };

#[test]
fn a_reader_sees_changes_without_reload_and_acts_on_what_was_chosen() {
    let site = Site::new(Role::Owner);
    let browser = Browser::start();
    browser.size(1280, 860);

    // A newcomer sees the first task come and go.
    browser.open(&site.url("/tasks"));
    browser.wait_for_text("#live", "live");
    browser.run("window.isSame = true");
    assert!(browser.text("main").contains("raddle submit -- echo hello"));
    let tid = site.submit(spec("hello", "default", &["echo", "hello"]));
    browser.wait_for_text("#more", "1 new");
    browser.open(&site.url(&format!("/tasks/{tid}")));
    browser.wait_for_text("#b-head", "created");
    browser.wait_for_text("#b-explain", "no worker is alive");
    browser.run("window.isSame = true");
    let worker = site.worker("worker-1", &["default"], 4);
    let leased = site.claim(worker, tid);
    site.start_task(&leased);
    browser.wait_for_text("#b-head", "running");
    site.end(&leased, DONE, "");
    browser.wait_for_text("#b-head", "completed");
    browser.wait_for_text("#b-stdout", "step 2");
    assert_eq!(
        browser.run("return window.isSame"),
        Value::Bool(true),
        "the page was not reloaded"
    );

    // A filter is in the URL, and Back restores what was before.
    for n in 0..5 {
        site.run(
            worker,
            spec(&format!("broken-{n}"), "default", &["false"]),
            BAD,
            "",
        );
    }
    browser.open(&site.url("/tasks"));
    browser.type_into("#q", "state:failed\u{e007}");
    browser.wait("the filter is applied", "return location.search === '?q=state%3Afailed' && document.querySelectorAll('tbody tr').length === 5");
    assert_eq!(
        browser.run("return document.querySelector('#q').value"),
        json!("state:failed")
    );
    browser.back();
    browser.wait(
        "back shows all",
        "return location.search === '' && document.querySelectorAll('tbody tr').length === 6",
    );

    // Three are chosen, others arrive, and exactly the three are retried.
    browser.open(&site.url("/tasks?q=state:failed"));
    browser.wait_for_text("#live", "live");
    for row in [2, 3, 5] {
        browser.click(&format!("tbody tr:nth-child({row}) input"));
    }
    let before = browser
        .run("return [...document.querySelectorAll('input[name=tid]:checked')].map(e => e.value)");
    assert_eq!(browser.text("#picked"), "3 selected");
    for n in 0..3 {
        site.run(
            worker,
            spec(&format!("late-{n}"), "default", &["false"]),
            BAD,
            "",
        );
    }
    browser.wait_for_text("#more", "3 new");
    browser.click(".bulk button[value=retry]");
    browser.wait_for_text(".flash", "Retry: 3 tasks");
    let chosen: Vec<String> = serde_json::from_value(before).unwrap();
    for tid in site
        .runtime
        .block_on(site.broker.tasks(raddle_broker::TaskFilter::default()))
        .unwrap()
    {
        let is_failed = tid.state == TaskState::Failed;
        let was_chosen = chosen.contains(&tid.tid.to_string());
        assert_eq!(
            tid.dead,
            is_failed && !was_chosen,
            "{}",
            tid.spec.display_name()
        );
    }
    assert!(browser.console().is_empty());
}

#[test]
fn patches_leave_alone_what_the_reader_uses() {
    let site = Site::new(Role::Owner);
    let worker = site.worker("worker-1", &["default"], 4);
    let tid = site.submit(spec("long", "default", &["x"]));
    let leased = site.claim(worker, tid);
    site.start_task(&leased);
    let browser = Browser::start();
    browser.open(&site.url("/"));
    browser.wait_for_text("#live", "live");
    // The reader selects a text in one block, and has the caret in the query box.
    browser.run("document.querySelector('#b-running a').focus(); document.querySelector('#q').value = 'state:'");
    browser.run("getSelection().selectAllChildren(document.querySelector('#b-workers h2')); document.querySelector('.as').open = true");
    for n in 0..3 {
        site.run(
            worker,
            spec(&format!("other-{n}"), "default", &["true"]),
            DONE,
            "",
        );
    }
    let second = site.submit(spec("second", "default", &["x"]));
    site.start_task(&site.claim(worker, second));
    browser.wait_for_text("#b-numbers", "Completed\n3");
    browser.wait(
        "the held block is marked",
        "return document.querySelector('#b-running').dataset.changed === ''",
    );
    assert!(
        !browser.text("#b-running").contains("second"),
        "a block with focus is not replaced"
    );
    assert_eq!(
        browser.run("return getSelection().toString()"),
        json!("Workers")
    );
    assert_eq!(
        browser.run("return document.querySelector('.as').open"),
        json!(true)
    );
    assert_eq!(
        browser.run("return document.querySelector('#q').value"),
        json!("state:")
    );
    // When the reader is done, it catches up.
    browser.run("document.activeElement.blur(); getSelection().removeAllRanges()");
    browser.wait_for_text("#b-running", "second");
}

#[test]
fn twelve_tabs_share_one_stream_and_survive_a_restart() {
    let mut site = Site::new(Role::Owner);
    let browser = Browser::start();
    browser.open(&site.url("/"));
    browser.wait_for_text("#live", "live");
    for n in 1..12 {
        browser.new_tab();
        browser.open(&site.url(if n % 2 == 0 { "/events" } else { "/" }));
        browser.wait_for_text("#live", "live");
    }
    assert_eq!(site.streams.load(std::sync::atomic::Ordering::Relaxed), 1);
    // The last tab shows the overview.
    site.cut();
    browser.wait_for_text("#live", "no connection");
    let tid = site.submit(spec("meanwhile", "default", &["x"]));
    site.start();
    browser.wait_for_text("#live", "live");
    browser.wait_for_text("#b-numbers", "Ready\n1");
    browser.open(&site.url("/events"));
    browser.wait_for_text("#b-events", &tid.short().to_string());
    assert!(browser.url().ends_with("/events"));
}

#[test]
fn every_screen_is_accessible_in_both_themes_and_keeps_the_policy() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/servers/axe/axe_playwright_python/axe.min.js"
    );
    let axe = fs::read_to_string(path)
        .expect("axe-core must be there: 'cargo xtask test --quick' installs it");
    let site = Site::new(Role::Owner);
    let mut screens = screens(&site);
    screens.push("/login".into());
    let browser = Browser::start();
    let mut findings = Vec::new();
    for (theme, width) in [("light", 1280), ("dark", 390)] {
        browser.size(width, 860);
        browser.theme(theme);
        for path in &screens {
            browser.open(&site.url(path));
            browser.run(&axe);
            let found = browser.run_async(
                "const done = arguments[0]; axe.run(document, { resultTypes: ['violations'] }).then(r => done(r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html + ' ' + n.failureSummary).slice(0, 2).join(' | '))))",
            );
            let found: Vec<String> = serde_json::from_value(found).unwrap();
            findings.extend(
                found
                    .into_iter()
                    .map(|finding| format!("{theme} {path} {finding}")),
            );
            let is_wide = browser.run("return document.documentElement.scrollWidth > innerWidth");
            if is_wide == Value::Bool(true) {
                findings.push(format!("{theme} {path} is wider than {width} pixels"));
            }
        }
    }
    findings.extend(browser.console());
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn without_script_tasks_are_found_retried_and_stopped() {
    let site = Site::new(Role::Owner);
    let [_, failed, _, waiting] = site.fill();
    let browser = Browser::start();
    browser.cdp(
        "Emulation.setScriptExecutionDisabled",
        json!({ "value": true }),
    );
    browser.open(&site.url("/tasks"));
    browser.click(".pager a");
    browser.wait(
        "the next page",
        "return location.search.includes('before=')",
    );
    browser.type_into("#q", "name:import-orders\u{e007}");
    browser.wait(
        "the filter",
        "return location.search.includes('import-orders')",
    );
    browser.click("tbody input");
    browser.click(".bulk button[value=retry]");
    browser.wait_for_text(".flash", "Retry");
    let is_dead = site
        .runtime
        .block_on(site.broker.task(failed))
        .unwrap()
        .unwrap()
        .dead;
    assert!(!is_dead, "it was submitted again");
    browser.open(&site.url(&format!("/tasks/{waiting}")));
    browser.click(".actions form:first-child button");
    browser.wait_for_text("#b-head", "cancelled");
    assert_eq!(browser.count("#more"), 0);
}

/// Writes images of all screens, for those who work on their look:
/// `SCREENSHOTS=/tmp/shots cargo test -p raddle-web --test dashboard -- --ignored screens`.
#[test]
#[ignore = "writes images, and checks nothing"]
fn takes_images_of_all_screens() {
    let directory = std::env::var("SCREENSHOTS").unwrap_or_else(|_| "/tmp/screenshots".into());
    fs::create_dir_all(&directory).unwrap();
    let only = std::env::var("ONLY").unwrap_or_default();
    let site = Site::new(Role::Owner);
    let empty = Site::new(Role::Owner);
    let [done, failed, running, waiting] = site.fill();
    let browser = Browser::start();
    let screens = [
        ("overview", "/".to_owned()),
        ("tasks", "/tasks".into()),
        ("task-done", format!("/tasks/{done}")),
        ("task-failed", format!("/tasks/{failed}")),
        ("task-running", format!("/tasks/{running}")),
        ("task-waiting", format!("/tasks/{waiting}")),
        ("failures", "/failures".into()),
        ("queues", "/queues".into()),
        ("queue", "/queues/video".into()),
        ("workers", "/workers".into()),
        ("groups", "/groups".into()),
        ("schedules", "/schedules".into()),
        ("schedule", "/schedules/nightly-backup".into()),
        ("messages", "/messages".into()),
        ("message", "/messages/orders".into()),
        ("events", "/events".into()),
        ("audit", "/audit".into()),
        ("system", "/system".into()),
        ("new", "/new".into()),
        ("help", "/help".into()),
        ("login", "/login".into()),
    ];
    let shots = [
        (1280, 860, "light"),
        (390, 844, "dark"),
        (1280, 860, "dark"),
    ];
    for (name, path) in screens.iter().filter(|(name, _)| name.contains(&only)) {
        for (width, height, theme) in shots {
            browser.size(width, height);
            browser.theme(theme);
            browser.open(&site.url(path));
            browser.wait(
                "the page is there",
                "return document.readyState === 'complete'",
            );
            save(&directory, &format!("{name}-{width}-{theme}"), &browser);
        }
    }
    for (name, path) in [
        ("overview", "/"),
        ("tasks", "/tasks"),
        ("workers", "/workers"),
    ] {
        browser.size(1280, 860);
        browser.theme("light");
        browser.open(&empty.url(path));
        save(&directory, &format!("{name}-empty"), &browser);
    }
    println!("{:?}", browser.console());
}

fn save(directory: &str, name: &str, browser: &Browser) {
    let image = BASE64.decode(browser.screenshot().as_bytes()).unwrap();
    fs::write(Path::new(directory).join(format!("{name}.png")), image).unwrap();
}
