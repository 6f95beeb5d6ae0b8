//! What the user lays over the pods that we make: a part of a pod, in YAML or JSON. Pure.

use serde_json::{Map, Value};

/// A part of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodOverlay(Value);

/// What a pod is known by, and what its worker is known by: neither may be another.
const OURS: [&str; 7] = [
    "/metadata/name",
    "/metadata/generateName",
    "/metadata/namespace",
    "/spec/hostname",
    "/spec/hostNetwork",
    "/spec/setHostnameAsFQDN",
    "/spec/restartPolicy",
];
/// How much of a pod there can be.
const LONGEST: usize = 256 << 10;

impl PodOverlay {
    /// Reads a file.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err("it is too long for a part of a pod".into());
        }
        let part: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        if part.is_null() {
            return Ok(Self::default());
        }
        for (key, must) in [("apiVersion", "v1"), ("kind", "Pod")] {
            if part.get(key).is_some_and(|value| value != must) {
                return Err(format!(
                    "at '{key}': it is laid over a Pod of v1, and is another thing"
                ));
            }
        }
        if !part.is_object()
            || ["metadata", "spec"]
                .iter()
                .any(|key| part.get(key).is_some_and(|it| !it.is_object()))
        {
            return Err(
                "it is not a part of a pod: there is no mapping of metadata and spec".into(),
            );
        }
        if let Some(path) = OURS.iter().find(|path| part.pointer(path).is_some()) {
            let path = path.trim_start_matches('/').replace('/', ".");
            return Err(format!(
                "at '{path}': it is not for a template to say, for workers are found by what we say"
            ));
        }
        for list in ["containers", "initContainers", "volumes"] {
            let items = part.pointer(&format!("/spec/{list}"));
            if items.is_some_and(|items| {
                !items
                    .as_array()
                    .is_some_and(|items| items.iter().all(has_name))
            }) {
                return Err(format!(
                    "at 'spec.{list}': it is not a list of things with names; ours is 'worker'"
                ));
            }
        }
        Ok(Self(part))
    }

    /// Lays it over a pod.
    pub(super) fn over(&self, pod: &mut Value) {
        if !self.0.is_null() {
            lay(pod, &self.0, "");
        }
    }
}

fn has_name(item: &Value) -> bool {
    item.get("name").is_some_and(Value::is_string)
}

/// Mappings are laid over mappings, lists of things with names over those by their names; `null` takes away; all else is replaced.
fn lay(below: &mut Value, above: &Value, key: &str) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => lay_map(below, above),
        (Value::Array(below), Value::Array(above)) if identity(key, above).is_some() => {
            let by = identity(key, above).expect("just seen");
            for item in above {
                match below.iter_mut().find(|other| other.get(by) == item.get(by)) {
                    // Of a variable either the value is said or where it is from: the two are not mixed.
                    Some(other) if key == "env" => *other = item.clone(),
                    Some(other) => lay(other, item, ""),
                    None => below.push(item.clone()),
                }
            }
        }
        (below, above) => *below = above.clone(),
    }
}

fn lay_map(below: &mut Map<String, Value>, above: &Map<String, Value>) {
    for (key, value) in above {
        match below.get_mut(key) {
            _ if value.is_null() => drop(below.remove(key)),
            Some(old) => lay(old, value, key),
            None => drop(below.insert(key.clone(), value.clone())),
        }
    }
}

/// What tells the items of this list apart, if anything does.
fn identity(key: &str, items: &[Value]) -> Option<&'static str> {
    match key {
        "volumeMounts" => Some("mountPath"),
        _ if !items.is_empty() && items.iter().all(has_name) => Some("name"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": { "labels": { "a": "1" } },
            "spec": {
                "volumes": [{ "name": "tmp", "emptyDir": { "sizeLimit": "64Mi" } }],
                "containers": [{
                    "name": "worker",
                    "args": ["worker", "start"],
                    "env": [{ "name": "QUEUE_URL", "value": "redis://x" }],
                    "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
                }],
            },
        })
    }

    #[test]
    fn it_is_laid_over_what_has_the_same_name() {
        let overlay = "
metadata:
  labels: {team: ml}
  annotations: {note: yes it is}
spec:
  nodeSelector: {gpu: 'true'}
  volumes:
  - {name: tmp, emptyDir: {medium: null, sizeLimit: 1Gi}}
  - {name: cache, persistentVolumeClaim: {claimName: cache}}
  containers:
  - name: worker
    args: [other]
    env:
    - {name: QUEUE_URL, valueFrom: {secretKeyRef: {name: q, key: u}}}
    - {name: MORE, value: '1'}
    volumeMounts:
    - {name: cache, mountPath: /cache}
  - {name: sidecar, image: proxy}
";
        let mut pod = pod();
        PodOverlay::read(overlay).unwrap().over(&mut pod);
        let worker = &pod["spec"]["containers"][0];
        assert_eq!(pod["metadata"]["labels"], json!({ "a": "1", "team": "ml" }));
        assert_eq!(pod["spec"]["nodeSelector"]["gpu"], "true");
        assert_eq!(
            pod["spec"]["volumes"][0],
            json!({ "name": "tmp", "emptyDir": { "sizeLimit": "1Gi" } })
        );
        assert_eq!(pod["spec"]["volumes"][1]["name"], "cache");
        assert_eq!(
            worker["args"],
            json!(["other"]),
            "a list of texts is replaced"
        );
        let secret = json!({ "name": "QUEUE_URL", "valueFrom": { "secretKeyRef": { "name": "q", "key": "u" } } });
        assert_eq!(
            worker["env"],
            json!([secret, { "name": "MORE", "value": "1" }])
        );
        assert_eq!(worker["volumeMounts"].as_array().unwrap().len(), 2);
        assert_eq!(pod["spec"]["containers"][1]["image"], "proxy");
    }

    #[test]
    fn json_will_do_and_nothing_is_nothing() {
        let mut laid = pod();
        PodOverlay::read(r#"{"kind": "Pod", "apiVersion": "v1", "spec": {"priority": 7}}"#)
            .unwrap()
            .over(&mut laid);
        assert_eq!(laid["spec"]["priority"], 7);
        let mut laid = pod();
        PodOverlay::read("# all is as it should be\n")
            .unwrap()
            .over(&mut laid);
        assert_eq!(laid, pod());
    }

    #[test]
    fn what_is_no_part_of_a_pod_is_refused() {
        for (text, words) in [
            ("a: [", ""),
            ("just words", "mapping of metadata and spec"),
            ("kind: Deployment", "at 'kind'"),
            ("spec: []", "mapping of metadata and spec"),
            ("spec: {hostNetwork: true}", "at 'spec.hostNetwork'"),
            ("metadata: {name: mine}", "at 'metadata.name'"),
            ("spec: {restartPolicy: Always}", "at 'spec.restartPolicy'"),
            ("spec: {containers: [{image: x}]}", "at 'spec.containers'"),
            ("spec: {containers: worker}", "at 'spec.containers'"),
        ] {
            let error = PodOverlay::read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text: String) {
            if let Ok(overlay) = PodOverlay::read(&text) {
                overlay.over(&mut pod());
            }
        }
    }
}
