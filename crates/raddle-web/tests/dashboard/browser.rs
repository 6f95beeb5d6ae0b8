//! The dashboard in Chromium.

use std::{fs, path::Path};

use data_encoding::BASE64;
use raddle_web::auth::Role;

use crate::{driver::Browser, site::Site};

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
        ("operations", "/operations".into()),
        ("audit", "/audit".into()),
        ("system", "/system".into()),
        ("new", "/new".into()),
        ("help", "/help".into()),
        ("login", "/login".into()),
    ];
    let shots = [(1280, 860, "light"), (390, 844, "dark"), (1280, 860, "dark")];
    for (name, path) in screens.iter().filter(|(name, _)| name.contains(&only)) {
        for (width, height, theme) in shots {
            browser.size(width, height);
            browser.theme(theme);
            browser.open(&site.url(path));
            browser.wait("the page is there", "return document.readyState === 'complete'");
            save(&directory, &format!("{name}-{width}-{theme}"), &browser);
        }
    }
    for (name, path) in [("overview", "/"), ("tasks", "/tasks"), ("workers", "/workers")] {
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
