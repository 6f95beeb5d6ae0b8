//! A small Kubernetes: an API server on loopback that knows pods, and a node on which each is a
//! process. It leaves out everything that the launcher does not use.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::world::{MARK, World};

/// The cluster. It is gone when this is dropped, and with it all that runs in it.
pub(crate) struct Cluster {
    site: Arc<Site>,
    port: u16,
    serving: Option<JoinHandle<()>>,
}

struct Site {
    directory: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    version: u64,
    pods: BTreeMap<String, Pod>,
    /// All that has happened, and when.
    history: Vec<(u64, &'static str, Value)>,
    /// Older events are forgotten.
    oldest: u64,
    /// Faults for the next calls by these verbs.
    mishaps: Vec<(&'static str, Mishap)>,
    /// The states of the next pods.
    fates: Vec<Value>,
    secrets: HashMap<String, String>,
    /// The calls there were: the verb, and what was sent.
    calls: Vec<(&'static str, Value)>,
    /// Those that follow what happens are sent away when this changes.
    hangups: u64,
    is_over: bool,
}

struct Pod {
    object: Value,
    pid: Option<u32>,
}

/// The fault of a call.
pub(crate) enum Mishap {
    /// It is refused, with a code, a reason, and how many seconds to wait.
    Refused(u16, &'static str, Option<u32>),
    /// It is performed, and its reply is lost.
    Unanswered,
}

/// The state of a pod that no node takes.
pub(crate) fn pending() -> Value {
    json!({ "phase": "Pending" })
}

/// A pod that waits for a reason.
pub(crate) fn waiting(reason: &str, message: &str) -> Value {
    let state = json!({ "waiting": { "reason": reason, "message": message } });
    json!({ "phase": "Pending", "containerStatuses": [{ "name": "worker", "image": "some/image:1", "state": state }] })
}

fn terminated(code: i32, reason: &str, message: &str) -> Value {
    let state = json!({ "terminated": { "exitCode": code, "reason": reason, "message": message } });
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    json!({ "phase": phase, "containerStatuses": [{ "name": "worker", "image": "some/image:1", "state": state }] })
}

impl Cluster {
    pub(crate) fn new(world: &World) -> Self {
        let directory = world.path().join("cluster");
        fs::create_dir(&directory).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Mutex::new(State {
            version: 1,
            ..State::default()
        });
        let site = Arc::new(Site {
            directory,
            state,
            changed: Condvar::new(),
        });
        let serving = Some(serve(listener, Arc::clone(&site)));
        Self {
            site,
            port,
            serving,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The next call by this verb goes wrong.
    pub(crate) fn mishap(&self, verb: &'static str, mishap: Mishap) {
        self.site.lock().mishaps.push((verb, mishap));
    }

    /// The next pods do not run, but are in this state.
    pub(crate) fn next_pods(&self, count: usize, status: &Value) {
        self.site.lock().fates.extend(vec![status.clone(); count]);
    }

    pub(crate) fn secret(&self, name: &str, key: &str, value: &str) {
        self.site
            .lock()
            .secrets
            .insert(format!("{name}/{key}"), value.into());
    }

    /// The pods that there are.
    pub(crate) fn pods(&self) -> Vec<Value> {
        self.site
            .lock()
            .pods
            .values()
            .map(|pod| pod.object.clone())
            .collect()
    }

    /// Returns the bodies of all calls by this verb.
    pub(crate) fn calls(&self, verb: &str) -> Vec<Value> {
        self.site
            .lock()
            .calls
            .iter()
            .filter(|(other, _)| *other == verb)
            .map(|(_, sent)| sent.clone())
            .collect()
    }

    /// Forgets what has happened, and sends away who follows it.
    pub(crate) fn forget(&self) {
        let mut state = self.site.lock();
        state.oldest = state.version + 1;
        state.version += 2;
        state.hangups += 1;
        self.site.changed.notify_all();
    }

    /// Sends away who follows what happens.
    pub(crate) fn hang_up(&self) {
        self.site.lock().hangups += 1;
        self.site.changed.notify_all();
    }

    /// Ends what runs in a pod, and says that this was why.
    pub(crate) fn kill(&self, host: &str, reason: &'static str) {
        let mut state = self.site.lock();
        let pod = state.pods.get_mut(host).unwrap();
        pod.object["double"] = reason.into();
        signal(pod.pid.unwrap(), libc::SIGKILL);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut state = self.site.lock();
        state.is_over = true;
        for pid in state.pods.values().filter_map(|pod| pod.pid) {
            signal(pid, libc::SIGKILL);
        }
        drop(state);
        self.site.changed.notify_all();
        // Wakes who waits for the next connection.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let ended = self.serving.take().unwrap().join();
        let begun = Instant::now();
        while self.site.lock().pods.values().any(|pod| pod.pid.is_some())
            && begun.elapsed() < Duration::from_secs(10)
        {
            thread::sleep(Duration::from_millis(5));
        }
        if !thread::panicking() {
            ended.unwrap();
        }
    }
}

fn signal(pid: u32, signal: i32) {
    crate::world::kill(pid as i32, signal);
}

// -- the API server

fn serve(listener: TcpListener, site: Arc<Site>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut answering = Vec::new();
        for stream in listener.incoming() {
            if site.lock().is_over {
                break;
            }
            let (site, stream) = (Arc::clone(&site), stream.unwrap());
            answering.push(thread::spawn(move || {
                // The client may be gone.
                let _ = answer(&site, stream);
            }));
            answering.retain(|thread| !thread.is_finished());
        }
        answering
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    })
}

fn answer(site: &Arc<Site>, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        if header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query: HashMap<&str, &str> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    if let Some(found) = discovered(path) {
        return reply(&mut stream, 200, &found, None);
    }
    let Some(rest) = path.strip_prefix("/api/v1/namespaces/work/pods") else {
        return reply(&mut stream, 404, &failure(404, "NotFound", path), None);
    };
    let (verb, sent) = match method.as_str() {
        "POST" => ("create", body),
        "DELETE" => ("delete", body),
        _ if query.contains_key("watch") => ("watch", json!(target)),
        _ => ("list", json!(target)),
    };
    let mishap = {
        let mut state = site.lock();
        state.calls.push((verb, sent.clone()));
        let next = state.mishaps.iter().position(|(other, _)| *other == verb);
        next.map(|next| state.mishaps.remove(next).1)
    };
    if let Some(Mishap::Refused(code, reason, wait)) = mishap {
        return reply(&mut stream, code, &failure(code, reason, "so it is"), wait);
    }
    let (code, answer) = match verb {
        "create" => site.create(sent),
        "delete" => site.delete(
            rest.trim_start_matches('/'),
            sent["gracePeriodSeconds"].as_u64(),
        ),
        "watch" => return follow(site, &mut stream, &query),
        _ => site.list(query["labelSelector"]),
    };
    if let Some(Mishap::Unanswered) = mishap {
        return Ok(());
    }
    reply(&mut stream, code, &answer, None)
}

fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message })
}

fn reply(
    stream: &mut TcpStream,
    code: u16,
    answer: &Value,
    wait: Option<u32>,
) -> std::io::Result<()> {
    let (body, wait) = (
        answer.to_string(),
        wait.map(|secs| format!("Retry-After: {secs}\r\n"))
            .unwrap_or_default(),
    );
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {code} Whatever\r\nContent-Type: application/json\r\n{wait}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Tells what happens, a line each, until it is asked not to.
fn follow(site: &Site, stream: &mut TcpStream, query: &HashMap<&str, &str>) -> std::io::Result<()> {
    let mut version: u64 = query["resourceVersion"].parse().unwrap();
    let until = Instant::now() + Duration::from_secs(query["timeoutSeconds"].parse().unwrap());
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes())?;
    let mut say = |line: Value| {
        let line = format!("{line}\n");
        write!(stream, "{:x}\r\n{line}\r\n", line.len())
    };
    let mut state = site.lock();
    let hangups = state.hangups;
    loop {
        if version < state.oldest {
            let gone = failure(410, "Expired", "too old resource version");
            say(json!({ "type": "ERROR", "object": gone }))?;
            break;
        }
        let news: Vec<Value> = state
            .history
            .iter()
            .filter(|(at, _, object)| *at > version && is_selected(object, query["labelSelector"]))
            .map(|(_, kind, object)| json!({ "type": kind, "object": object }))
            .collect();
        version = state.version;
        drop(state);
        news.into_iter().try_for_each(&mut say)?;
        state = site.lock();
        if state.is_over || state.hangups != hangups || Instant::now() >= until {
            break;
        }
        if state.version == version {
            let (later, waited) = site
                .changed
                .wait_timeout(state, Duration::from_millis(500))
                .unwrap();
            state = later;
            if waited.timed_out() {
                let moment =
                    json!({ "metadata": { "resourceVersion": state.version.to_string() } });
                say(json!({ "type": "BOOKMARK", "object": moment }))?;
            }
        }
    }
    drop(state);
    stream.write_all(b"0\r\n\r\n")
}

/// The first request of `kubectl`: the list of resource types.
fn discovered(path: &str) -> Option<Value> {
    let list = |version: &str, things: &[(&str, &str)]| {
        let things = things.iter().map(|(name, kind)| {
            json!({ "name": name, "singularName": "", "kind": kind, "namespaced": true, "verbs": ["create", "get"] })
        });
        let things: Vec<Value> = things.collect();
        Some(
            json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": things }),
        )
    };
    match path {
        "/api" => Some(json!({ "kind": "APIVersions", "versions": ["v1"] })),
        "/apis" => {
            let group = |name: &str| {
                let version = json!({ "groupVersion": format!("{name}/v1"), "version": "v1" });
                json!({ "name": name, "versions": [version], "preferredVersion": version })
            };
            let groups = ["apps", "networking.k8s.io", "rbac.authorization.k8s.io"].map(group);
            Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        "/api/v1" => list(
            "v1",
            &[
                ("pods", "Pod"),
                ("configmaps", "ConfigMap"),
                ("secrets", "Secret"),
                ("serviceaccounts", "ServiceAccount"),
            ],
        ),
        "/apis/apps/v1" => list("apps/v1", &[("deployments", "Deployment")]),
        "/apis/networking.k8s.io/v1" => list(
            "networking.k8s.io/v1",
            &[("networkpolicies", "NetworkPolicy")],
        ),
        "/apis/rbac.authorization.k8s.io/v1" => list(
            "rbac.authorization.k8s.io/v1",
            &[("roles", "Role"), ("rolebindings", "RoleBinding")],
        ),
        _ => None,
    }
}

fn is_selected(object: &Value, selector: &str) -> bool {
    let (key, value) = selector.split_once("%3D").unwrap();
    object["metadata"]["labels"][key] == value
}

impl Site {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn create(self: &Arc<Self>, mut object: Value) -> (u16, Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut state = self.lock();
        if state.pods.contains_key(&name) {
            return (409, failure(409, "AlreadyExists", &name));
        }
        object["status"] = pending();
        state.pods.insert(name.clone(), Pod { object, pid: None });
        state.happened(&name, "ADDED");
        let fate = (!state.fates.is_empty()).then(|| state.fates.remove(0));
        let missing = state.missing_secret(&name);
        let status = match fate.or(missing) {
            Some(status) => status,
            None => {
                let pid = self.run(&mut state, &name);
                state.pods.get_mut(&name).unwrap().pid = Some(pid);
                let running = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
                json!({ "phase": "Running", "containerStatuses": [{ "name": "worker", "state": running }] })
            }
        };
        state.pods.get_mut(&name).unwrap().object["status"] = status;
        state.happened(&name, "MODIFIED");
        self.changed.notify_all();
        (201, state.pods[&name].object.clone())
    }

    fn list(&self, selector: &str) -> (u16, Value) {
        let state = self.lock();
        let pods = state
            .pods
            .values()
            .map(|pod| &pod.object)
            .filter(|object| is_selected(object, selector));
        let pods: Vec<&Value> = pods.collect();
        let metadata = json!({ "resourceVersion": state.version.to_string() });
        (
            200,
            json!({ "kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods }),
        )
    }

    fn delete(self: &Arc<Self>, name: &str, grace: Option<u64>) -> (u16, Value) {
        let mut state = self.lock();
        let Some(pod) = state.pods.get_mut(name) else {
            return (404, failure(404, "NotFound", name));
        };
        let Some(pid) = pod.pid else {
            state.removed(name);
            self.changed.notify_all();
            return (200, json!({ "kind": "Status", "status": "Success" }));
        };
        pod.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let spec = &pod.object["spec"]["terminationGracePeriodSeconds"];
        let grace = Duration::from_secs(grace.or(spec.as_u64()).unwrap());
        signal(pid, libc::SIGTERM);
        state.happened(name, "MODIFIED");
        self.changed.notify_all();
        let (site, name) = (Arc::clone(self), name.to_owned());
        // Ended by the end of the pod, or of the cluster.
        thread::spawn(move || {
            let by = Instant::now() + grace;
            let mut state = site.lock();
            while state
                .pods
                .get(&name)
                .is_some_and(|pod| pod.pid == Some(pid))
                && Instant::now() < by
                && !state.is_over
            {
                state = site
                    .changed
                    .wait_timeout(state, Duration::from_millis(100))
                    .unwrap()
                    .0;
            }
            if state
                .pods
                .get(&name)
                .is_some_and(|pod| pod.pid == Some(pid))
            {
                signal(pid, libc::SIGKILL);
            }
        });
        (200, json!({ "kind": "Pod" }))
    }

    // -- the node

    /// Runs the worker of a pod, as a process whose host name is the pod's.
    fn run(self: &Arc<Self>, state: &mut State, name: &str) -> u32 {
        let container = &state.pods[name].object["spec"]["containers"][0];
        // A mount of a node is a file here.
        let log = self.directory.join(name);
        File::create(&log).unwrap();
        let inside = container["terminationMessagePath"].as_str().unwrap();
        let output = File::create(self.directory.join(format!("{name}.out"))).unwrap();
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command
            .args([
                "--uts",
                "sh",
                "-c",
                "echo \"$0\" > /proc/sys/kernel/hostname && exec \"$@\"",
                name,
            ])
            .arg(env!("CARGO_BIN_EXE_raddle"))
            .args(
                container["args"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|arg| arg.as_str().unwrap()),
            )
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env(MARK, self.directory.parent().unwrap())
            .current_dir(self.directory.parent().unwrap())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        for variable in container["env"].as_array().unwrap() {
            let value = match variable["value"].as_str() {
                Some(value) if value == inside => log.to_str().unwrap().to_owned(),
                Some(value) => value.to_owned(),
                None => state.secrets[&reference(variable)].clone(),
            };
            command.env(variable["name"].as_str().unwrap(), value);
        }
        let mut child = command.spawn().unwrap();
        let (pid, site, name) = (child.id(), Arc::clone(self), name.to_owned());
        thread::spawn(move || {
            let status = child.wait().unwrap();
            let code = status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap());
            site.ended(&name, code, &log);
        });
        pid
    }

    fn ended(&self, name: &str, code: i32, log: &Path) {
        let mut state = self.lock();
        let Some(pod) = state.pods.get_mut(name) else {
            return;
        };
        pod.pid = None;
        let mut message = fs::read_to_string(log).unwrap_or_default();
        if message.is_empty() && code != 0 {
            message = fs::read_to_string(log.with_extension("out")).unwrap_or_default();
        }
        let reason = pod.object["double"]
            .as_str()
            .unwrap_or(if code == 0 { "Completed" } else { "Error" })
            .to_owned();
        pod.object["status"] = match reason.as_str() {
            "Evicted" => {
                json!({ "phase": "Failed", "reason": reason, "message": "the node was low on memory" })
            }
            _ => terminated(code, &reason, &message),
        };
        let is_leaving = pod.object["metadata"]["deletionTimestamp"].is_string();
        state.happened(name, "MODIFIED");
        if is_leaving {
            state.removed(name);
        }
        self.changed.notify_all();
    }
}

/// The Secret and the key that a variable is from.
fn reference(variable: &Value) -> String {
    let from = &variable["valueFrom"]["secretKeyRef"];
    format!(
        "{}/{}",
        from["name"].as_str().unwrap(),
        from["key"].as_str().unwrap()
    )
}

impl State {
    fn happened(&mut self, name: &str, kind: &'static str) {
        self.version += 1;
        let object = &mut self.pods.get_mut(name).unwrap().object;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.history.push((self.version, kind, object.clone()));
    }

    fn removed(&mut self, name: &str) {
        self.happened(name, "DELETED");
        self.pods.remove(name);
    }

    /// The status of a pod that needs a Secret which does not exist.
    fn missing_secret(&self, name: &str) -> Option<Value> {
        let env = self.pods[name].object["spec"]["containers"][0]["env"]
            .as_array()
            .unwrap();
        let needs = env
            .iter()
            .filter(|variable| variable["value"].is_null())
            .map(reference);
        let missing = needs
            .into_iter()
            .find(|key| !self.secrets.contains_key(key))?;
        let secret = missing.split('/').next().unwrap();
        Some(waiting(
            "CreateContainerConfigError",
            &format!("secret \"{secret}\" not found"),
        ))
    }
}
