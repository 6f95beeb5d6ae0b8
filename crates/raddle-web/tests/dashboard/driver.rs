//! Drives Chromium by WebDriver, through Debian's `chromedriver`.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::send;

/// How long a condition may take: the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// A browser. Dropping it ends it.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser with a profile of its own.
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver must be installed: apt-get install chromium chromium-driver");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                line.split("on port ")
                    .nth(1)?
                    .trim_end_matches('.')
                    .trim()
                    .parse::<u16>()
                    .ok()
                    .filter(|port| *port > 0)
            })
            .expect("chromedriver must say its port");
        // Its output must be read as long as it runs.
        std::thread::spawn(move || lines.for_each(drop));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let directory = format!("--user-data-dir={}", profile.path().display());
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--force-color-profile=srgb",
            "--hide-scrollbars",
            "--disable-background-networking",
            &directory,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "binary": "/usr/bin/chromium", "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
            "unhandledPromptBehavior": "ignore",
        } } });
        let mut browser = Self {
            driver,
            address,
            session: String::new(),
            _profile: profile,
        };
        let created = browser.call("POST", "/session", &wanted);
        browser.session = format!("/session/{}", created["sessionId"].as_str().unwrap());
        browser
    }

    fn try_call(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if method == "GET" {
            String::new()
        } else {
            body.to_string()
        };
        let reply = send(
            self.address,
            method,
            path,
            &[("Content-Type", "application/json")],
            &body,
        );
        let value: Value = serde_json::from_str(&reply.body).unwrap_or_default();
        match reply.status {
            200 => Ok(value["value"].clone()),
            _ => Err(format!("{method} {path}: {}", reply.body)),
        }
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        self.try_call(method, path, body).unwrap()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    fn get(&self, path: &str) -> Value {
        self.call("GET", &format!("{}{path}", self.session), &Value::Null)
    }

    pub(crate) fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    pub(crate) fn url(&self) -> String {
        self.get("/url").as_str().unwrap().to_owned()
    }

    pub(crate) fn back(&self) {
        self.post("/back", &json!({}));
    }

    /// Runs a script, and returns its value.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs a script that calls its last argument with a value.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        self.post("/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// A command of the Chrome DevTools Protocol.
    pub(crate) fn cdp(&self, command: &str, params: Value) -> Value {
        self.post(
            "/goog/cdp/execute",
            &json!({ "cmd": command, "params": params }),
        )
    }

    pub(crate) fn text(&self, selector: &str) -> String {
        let script = format!(
            "const e = document.querySelector({}); return e ? e.innerText : ''",
            json!(selector)
        );
        self.run(&script).as_str().unwrap().to_owned()
    }

    pub(crate) fn count(&self, selector: &str) -> u64 {
        self.run(&format!(
            "return document.querySelectorAll({}).length",
            json!(selector)
        ))
        .as_u64()
        .unwrap()
    }

    /// Clicks as a reader does, with the mouse.
    pub(crate) fn click(&self, selector: &str) {
        self.on_element(selector, "click", &json!({}));
    }

    /// Types into an element. `\u{e007}` is Enter.
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        self.on_element(selector, "value", &json!({ "text": text }));
    }

    /// Does something to an element. A patch may replace it just then, so it is tried again.
    fn on_element(&self, selector: &str, action: &str, body: &Value) {
        let deadline = Instant::now() + DEADLINE;
        let find = json!({ "using": "css selector", "value": selector });
        loop {
            let done = self
                .try_call("POST", &format!("{}/element", self.session), &find)
                .and_then(|element| {
                    let id = element
                        .as_object()
                        .and_then(|it| it.values().next()?.as_str().map(str::to_owned));
                    let path = format!(
                        "{}/element/{}/{action}",
                        self.session,
                        id.unwrap_or_default()
                    );
                    self.try_call("POST", &path, body)
                });
            match done {
                Ok(_) => return,
                Err(error) => assert!(Instant::now() < deadline, "{selector}: {error}"),
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits until a script returns true.
    pub(crate) fn wait(&self, what: &str, script: &str) {
        let deadline = Instant::now() + DEADLINE;
        while self.run(script) != Value::Bool(true) {
            assert!(
                Instant::now() < deadline,
                "never: {what}\n{}",
                self.text("body")
            );
            std::thread::sleep(POLL);
        }
    }

    pub(crate) fn wait_for_text(&self, selector: &str, text: &str) {
        let script = format!(
            "const e = document.querySelector({}); return !!e && e.innerText.includes({})",
            json!(selector),
            json!(text)
        );
        self.wait(&format!("{selector} says {text}"), &script);
    }

    pub(crate) fn new_tab(&self) -> String {
        let tab = self.post("/window/new", &json!({ "type": "tab" }));
        let handle = tab["handle"].as_str().unwrap().to_owned();
        self.switch(&handle);
        handle
    }

    pub(crate) fn switch(&self, handle: &str) {
        self.post("/window", &json!({ "handle": handle }));
    }

    /// The lines of the console since the last call: violations of the content security policy, and
    /// errors of scripts.
    pub(crate) fn console(&self) -> Vec<String> {
        let entries = self.post("/se/log", &json!({ "type": "browser" }));
        entries
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["message"].as_str().unwrap().to_owned())
            .collect()
    }

    pub(crate) fn size(&self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.cdp("Emulation.setDeviceMetricsOverride", metrics);
    }

    pub(crate) fn theme(&self, name: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": name }] });
        self.cdp("Emulation.setEmulatedMedia", features);
    }

    /// An image of the whole page, as PNG in base 64.
    pub(crate) fn screenshot(&self) -> String {
        let taken = self.cdp("Page.captureScreenshot", json!({ "format": "png" }));
        taken["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            send(self.address, "DELETE", &self.session, &[], "");
        }
        // Ends the browser too, if it did not start in time.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
