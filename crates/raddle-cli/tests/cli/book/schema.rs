//! The JSON schemas name the keys that the program reads, and the TOML of the book keeps to them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{page::blocks, pages, read};
use crate::world::World;

/// A schema, the definition of a table in it, a text with the key `zzz` in that table, and the
/// command that reads it from `FILE`.
const TABLES: [(&str, &str, &str, &[&str]); 13] = [
    (
        "spec",
        "spec",
        r#"{"zzz": 1}"#,
        &["submit", "--file", "FILE"],
    ),
    (
        "spec",
        "limits",
        r#"{"limits": {"zzz": 1}}"#,
        &["submit", "--file", "FILE"],
    ),
    (
        "spec",
        "retry",
        r#"{"retry": {"zzz": 1}}"#,
        &["submit", "--file", "FILE"],
    ),
    (
        "schedule",
        "",
        r#"{"zzz": 1}"#,
        &["schedule", "add", "--file", "FILE"],
    ),
    (
        "raddle",
        "process",
        "[process.a]\nzzz = 1",
        &["up", "-f", "FILE"],
    ),
    (
        "raddle",
        "worker",
        "[[process.a.worker]]\nzzz = 1",
        &["up", "-f", "FILE"],
    ),
    (
        "raddle",
        "trigger",
        "[[process.a.worker]]\ntrigger = { zzz = 1 }",
        &["up", "-f", "FILE"],
    ),
    (
        "raddle",
        "reconnect",
        "[process.a]\nreconnect = { zzz = 1 }",
        &["up", "-f", "FILE"],
    ),
    (
        "spawner",
        "spawner",
        "[spawner]\nzzz = 1",
        &["spawner", "run", "--config", "FILE"],
    ),
    (
        "spawner",
        "container",
        "[spawner.container]\nzzz = 1",
        &["spawner", "run", "--config", "FILE"],
    ),
    (
        "spawner",
        "kubernetes",
        "[spawner.kubernetes]\nzzz = 1",
        &["spawner", "run", "--config", "FILE"],
    ),
    (
        "registry",
        "template",
        "[task.a]\nzzz = 1",
        &["manager", "serve", "--type", "a", "--registry", "FILE"],
    ),
    (
        "handler",
        "",
        "zzz = 1",
        &[
            "worker",
            "start",
            "--no-detach",
            "--idle-exit",
            "0",
            "--handlers",
            ".",
        ],
    ),
];

fn schema(name: &str) -> Value {
    let text = read(&format!("docs/reference/schema/{name}.schema.json"));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn schemas_name_the_keys_that_the_program_reads() {
    for (name, table, text, command) in TABLES {
        let world = World::new();
        world.file("raddle.toml", "");
        let file = if name == "handler" {
            "a.handler.toml"
        } else {
            "file"
        };
        let is_toml = !text.starts_with('{');
        let file = if is_toml && name != "handler" {
            "file.toml"
        } else {
            file
        };
        world.file(file, text);
        let ran = world.raddle(
            command
                .iter()
                .map(|word| if *word == "FILE" { file } else { word }),
        );
        let (_, expected) = ran
            .stderr
            .split_once("expected ")
            .unwrap_or_else(|| panic!("{name} {table}: {}", ran.stderr));
        let expected = expected.lines().next().unwrap();
        let known: BTreeSet<&str> = expected.split('`').skip(1).step_by(2).collect();
        let schema = schema(name);
        let definition = match table {
            "" => &schema,
            table => &schema["$defs"][table],
        };
        let listed: BTreeSet<&str> = definition["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(listed, known, "{name} {table}: {}", ran.stderr);
    }
}

/// Why a value does not fit a schema. Knows the keywords that the schemas of this book use.
fn violation(schema: &Value, root: &Value, value: &Value, path: &str) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.strip_prefix("#/$defs/").unwrap();
        return violation(&root["$defs"][name], root, value, path);
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let fits = options
            .iter()
            .any(|option| violation(option, root, value, path).is_none());
        return (!fits).then(|| format!("{path}: fits none of the forms"));
    }
    if let Some(values) = schema["enum"].as_array() {
        return (!values.contains(value))
            .then(|| format!("{path}: {value} is not one of {values:?}"));
    }
    if let Some(constant) = schema.get("const") {
        return (constant != value).then(|| format!("{path}: is not {constant}"));
    }
    let is_of_type = match schema["type"].as_str() {
        None => true,
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("{other}"),
    };
    if !is_of_type {
        return Some(format!(
            "{path}: {value} is not of the type {}",
            schema["type"]
        ));
    }
    if let Some(items) = value.as_array() {
        return items
            .iter()
            .find_map(|item| violation(&schema["items"], root, item, path));
    }
    let table = value.as_object()?;
    for required in schema["required"].as_array().into_iter().flatten() {
        if !table.contains_key(required.as_str().unwrap()) {
            return Some(format!("{path}: {required} is missing"));
        }
    }
    table.iter().find_map(|(key, value)| {
        let path = format!("{path}.{key}");
        match (
            schema["properties"].get(key),
            &schema["additionalProperties"],
        ) {
            (Some(property), _) => violation(property, root, value, &path),
            (None, Value::Bool(false)) => Some(format!("{path}: no such key")),
            (None, other) => violation(other, root, value, &path),
        }
    })
}

/// Which file a block of TOML is, by its first table.
fn schema_of(block: &Value) -> Option<&'static str> {
    let has = |key| block.get(key).is_some();
    match () {
        () if has("process") || has("queue_url") => Some("raddle"),
        () if has("spawner") => Some("spawner"),
        () if has("every") || has("cron") => Some("schedule"),
        () if has("task") => Some("registry"),
        () if has("target") => Some("spec"),
        () if has("provides") => Some("handler"),
        () => None,
    }
}

#[test]
fn files_of_the_book_keep_to_the_schemas() {
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    for page in pages().into_iter().chain(["README.md".to_owned()]) {
        let text = read(&page);
        for block in blocks(&text) {
            let content = block.content.join("\n");
            let value: Value = match block.language {
                "toml" => {
                    toml::from_str(&content).unwrap_or_else(|error| panic!("{page}: {error}"))
                }
                "json" => match serde_json::from_str(&content) {
                    Ok(value) => value,
                    Err(_) => continue,
                },
                _ => continue,
            };
            let Some(name) = schema_of(&value) else {
                continue;
            };
            seen.insert(name);
            let schema = schema(name);
            wrong.extend(violation(
                &schema,
                &schema,
                &value,
                &format!("{page}: {name}"),
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let all = [
        "handler", "raddle", "registry", "schedule", "spawner", "spec",
    ];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
}
