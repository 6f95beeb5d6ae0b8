//! `deploy/kubernetes`, as the program of a cluster reads it.

use std::{collections::BTreeSet, process::Command};

use serde_json::{Value, json};

use crate::{cluster::Cluster, kubectl::is_kept, world::World};

/// The output of `kubectl kustomize` for a directory of this repository: documents as JSON.
fn kustomized(directory: &str) -> Vec<Value> {
    let directory = format!(
        "{}/../../deploy/kubernetes{directory}",
        env!("CARGO_MANIFEST_DIR")
    );
    let made = Command::new("kubectl")
        .args(["kustomize", &directory])
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let world = World::new();
    let cluster = Cluster::new(&world);
    let file = world.file("all.yaml", &made.stdout);
    let server = format!("--server={}", cluster.url());
    let cache = format!("--cache-dir={}", world.path().display());
    let create = [
        "create",
        "--dry-run=client",
        "--validate=false",
        "--output=json",
        "--namespace=work",
        &server,
        &cache,
    ];
    let known = Command::new("kubectl")
        .args(create)
        .arg("--filename")
        .arg(file)
        .env("KUBECONFIG", "/dev/null")
        .output();
    let known = known.unwrap();
    assert!(
        known.status.success(),
        "{}",
        String::from_utf8_lossy(&known.stderr)
    );
    let stream = serde_json::Deserializer::from_slice(&known.stdout).into_iter::<Value>();
    let objects: Vec<Value> = stream.map(Result::unwrap).collect();
    match &objects[..] {
        [list] if list["kind"] == "List" => list["items"].as_array().unwrap().clone(),
        _ => objects,
    }
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .collect()
}

#[test]
fn a_cluster_accepts_the_manifests() {
    for (directory, name) in [
        ("", "warm-spawner-cpu"),
        ("/overlays/gpu", "warm-spawner-gpu"),
    ] {
        let objects = kustomized(directory);
        let kinds: BTreeSet<&str> = objects
            .iter()
            .map(|object| object["kind"].as_str().unwrap())
            .collect();
        let expected = [
            "ConfigMap",
            "Deployment",
            "NetworkPolicy",
            "Role",
            "RoleBinding",
            "ServiceAccount",
        ];
        assert_eq!(
            kinds,
            expected.into_iter().collect(),
            "no Secret is among them"
        );
        let spawner = of_kind(&objects, "Deployment")[0];
        is_kept("env", &["NO=thing"], spawner);
        let binding = of_kind(&objects, "RoleBinding")[0];
        is_kept("subject", &["--user=stranger"], binding);
        assert_eq!(spawner["metadata"]["name"], name);
        let pod = &spawner["spec"]["template"];
        assert_eq!(pod["metadata"]["annotations"]["prometheus.io/port"], "9464");
        let role = of_kind(&objects, "Role")[0];
        let verbs = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["create", "list", "watch", "delete"] }]);
        assert_eq!(role["rules"], verbs, "the least that will do");
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        assert_eq!(
            binding["subjects"][0]["name"],
            pod["spec"]["serviceAccountName"]
        );
        for policy in of_kind(&objects, "NetworkPolicy") {
            assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        }
        assert_eq!(spawner["spec"]["replicas"], 1);
        reads_its_own_configuration(&objects, pod);
    }
}

/// The spawner of a manifest takes what its ConfigMap says. There is no cluster around it, and that
/// is what it misses.
fn reads_its_own_configuration(objects: &[Value], pod: &Value) {
    let world = World::new();
    let config = of_kind(objects, "ConfigMap")[0];
    assert_eq!(
        pod["spec"]["volumes"][0]["configMap"]["name"],
        config["metadata"]["name"]
    );
    for (file, text) in config["data"].as_object().unwrap() {
        world.file(file, text.as_str().unwrap());
    }
    let container = &pod["spec"]["containers"][0];
    let args = container["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap());
    let args = args
        .map(|arg| arg.strip_prefix("/etc/raddle/").unwrap_or(arg))
        .collect::<Vec<_>>()
        .join(" ");
    let env = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|variable| variable["value"].is_string());
    let env = env.map(|variable| {
        format!(
            "{}={}",
            variable["name"].as_str().unwrap(),
            variable["value"].as_str().unwrap()
        )
    });
    let env = env.collect::<Vec<_>>().join(" ");
    let ran = world.bash(&format!(
        "exec env QUEUE_URL=redis://:x@127.0.0.1:1 {env} raddle {args}"
    ));
    ran.code(2).stderr_contains("this is no pod of a cluster");
}
