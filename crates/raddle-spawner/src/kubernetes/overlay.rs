//! `PodOverlay`: the user's part of a pod, in YAML or JSON, which is merged into each pod. Pure.

use serde_json::{Map, Value};

/// A part of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodOverlay(Value);

/// Fields that identify a pod and its worker, which an overlay may not set.
const OURS: [&str; 7] = [
    "/metadata/name",
    "/metadata/generateName",
    "/metadata/namespace",
    "/spec/hostname",
    "/spec/hostNetwork",
    "/spec/setHostnameAsFQDN",
    "/spec/restartPolicy",
];
/// Most bytes of an overlay.
const MAX_BYTES: usize = 256 << 10;

impl PodOverlay {
    /// Parses a file.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err("it is too long for a part of a pod".into());
        }
        let part: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        if part.is_null() {
            return Ok(Self::default());
        }
        for (key, must) in [("apiVersion", "v1"), ("kind", "Pod")] {
            if part.get(key).is_some_and(|value| value != must) {
                return Err(format!("at '{key}': the file must describe a Pod of v1"));
            }
        }
        if !part.is_object()
            || ["metadata", "spec"]
                .iter()
                .any(|key| part.get(key).is_some_and(|it| !it.is_object()))
        {
            return Err("it is no part of a pod: give a mapping with metadata and spec".into());
        }
        if let Some(path) = OURS.iter().find(|path| part.pointer(path).is_some()) {
            let path = path.trim_start_matches('/').replace('/', ".");
            return Err(format!(
                "at '{path}': a template may not set this, because workers are found by it"
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
                    "at 'spec.{list}': it must be a list of items with names; own_ids is 'worker'"
                ));
            }
        }
        Ok(Self(part))
    }

    /// Merges the overlay into a pod.
    pub(super) fn apply_to(&self, pod: &mut Value) {
        if !self.0.is_null() {
            merge(pod, &self.0, "");
        }
    }
}

fn has_name(item: &Value) -> bool {
    item.get("name").is_some_and(Value::is_string)
}

/// Merges mappings with mappings, and lists of named items by name. `null` removes a value, and
/// anything else replaces it.
fn merge(below: &mut Value, above: &Value, key: &str) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => merge_map(below, above),
        (Value::Array(below), Value::Array(above)) if item_key(key, above).is_some() => {
            let by = item_key(key, above).expect("just seen");
            for item in above {
                match below.iter_mut().find(|other| other.get(by) == item.get(by)) {
                    // A variable has either a value or a source. They must not be mixed.
                    Some(other) if key == "env" => *other = item.clone(),
                    Some(other) => merge(other, item, ""),
                    None => below.push(item.clone()),
                }
            }
        }
        (below, above) => *below = above.clone(),
    }
}

fn merge_map(below: &mut Map<String, Value>, above: &Map<String, Value>) {
    for (key, value) in above {
        match below.get_mut(key) {
            _ if value.is_null() => drop(below.remove(key)),
            Some(old) => merge(old, value, key),
            None => drop(below.insert(key.clone(), value.clone())),
        }
    }
}

/// The key that identifies items of this list, if any.
fn item_key(key: &str, items: &[Value]) -> Option<&'static str> {
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
    fn merges_items_by_name() {
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
        PodOverlay::read(overlay).unwrap().apply_to(&mut pod);
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
    fn accepts_json_and_empty_files() {
        let mut laid = pod();
        PodOverlay::read(r#"{"kind": "Pod", "apiVersion": "v1", "spec": {"priority": 7}}"#)
            .unwrap()
            .apply_to(&mut laid);
        assert_eq!(laid["spec"]["priority"], 7);
        let mut laid = pod();
        PodOverlay::read("# nothing to change\n")
            .unwrap()
            .apply_to(&mut laid);
        assert_eq!(laid, pod());
    }

    #[test]
    fn refuses_files_that_are_no_part_of_a_pod() {
        for (text, words) in [
            ("a: [", ""),
            ("just words", "mapping with metadata and spec"),
            ("kind: Deployment", "at 'kind'"),
            ("spec: []", "mapping with metadata and spec"),
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
        fn the_parser_never_panics(text: String) {
            if let Ok(overlay) = PodOverlay::read(&text) {
                overlay.apply_to(&mut pod());
            }
        }
    }
}
