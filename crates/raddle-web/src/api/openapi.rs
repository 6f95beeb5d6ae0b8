//! The OpenAPI document, made from the table of routes.

use axum::{Json, extract::State};
use serde_json::{Map, Value, json};

use super::ROUTES;
use crate::{
    route::{Access, Route},
    state::AppState,
};

pub(super) async fn show(State(state): State<AppState>) -> Json<Value> {
    Json(document(&state.options.prefix))
}

/// The API as OpenAPI 3.1.
fn document(prefix: &str) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb.as_str()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Raddle",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Tasks, queues and workers of a Raddle broker. Ids are text: they have 19 digits.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": format!("{prefix}/api/v1") }],
        "security": [{ "token": [] }, { "cookie": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "cookie": { "type": "apiKey", "in": "cookie", "name": "raddle_" },
            },
            "schemas": { "Problem": problem(), "List": list() },
        },
    })
}

fn operation(route: &Route) -> Value {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        Some(json!({
            "name": name, "in": "path", "required": true, "schema": { "type": "string" },
            "description": path_parameter(name),
        }))
    });
    let parameters: Vec<Value> = in_path
        .chain(route.all_parameters().map(|(name, description)| {
            json!({ "name": name, "in": "query", "schema": { "type": "string" }, "description": description })
        }))
        .collect();
    let error = json!({
        "description": "A problem",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    let kind = if route.returns.starts_with("A list") {
        json!({ "$ref": "#/components/schemas/List" })
    } else {
        json!({})
    };
    let success = json!({
        "description": route.returns,
        "content": { "application/json": { "schema": kind } },
    });
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "description": format!("Needs {}.", right(route)),
        "x-right": right_name(route),
        "parameters": parameters,
        "responses": { "2XX": success, "4XX": error, "5XX": error },
    });
    if let Some(body) = route.body {
        operation["requestBody"] = json!({
            "required": true,
            "description": body,
            "content": { "application/json": { "schema": { "type": "object" } } },
        });
    }
    operation
}

fn path_parameter(name: &str) -> &'static str {
    match name {
        "tid" => "The 19 digits of the id, or the last ten",
        "attempt" => "The number of the attempt, from 1 on",
        "stream" => "stdout or stderr",
        "queue" => "The name of the queue; a slash in it is %2F",
        "slug" => "The name of the worker",
        _ => "The name",
    }
}

/// The method and the words of the path.
fn operation_id(route: &Route) -> String {
    let words = route.path.split('/').filter(|word| !word.is_empty());
    words.fold(route.verb.as_str().to_owned(), |id, word| {
        let word: String = word.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        format!("{id}_{word}")
    })
}

/// The beginning of the reference.
const INTRODUCTION: &str = "# HTTP API

This page is generated from the table of routes, as is the OpenAPI 3.1 document that a server has at `/api/v1/openapi.json`. [Use the HTTP API](../how-to/web.md) has recipes.

- Paths are relative to `/api/v1`. A request has the header `Authorization: Bearer TOKEN`, or the cookie of a browser that has signed in.
- Bodies are JSON. Ids are text: they have 19 digits. Times are RFC 3339. A record has the shape of the command that is named, with `--json`.
- A list is `items`, `next` (the `cursor` of the next part, or null), `as_of` (the id of the last event before it was read), `looked_at` and `complete`. It has no total, which would count all records.
- An error is `application/problem+json`: `title`, `status`, `detail`, and as it applies `hint` (what to do next), `position` (in the query), `tid` and `right` (the one that is missing). The statuses: 400 malformed, 401 not signed in, 403 not allowed, 404 not there, 409 in the way of the task `tid`, 412 changed meanwhile, 413 too large, 415 not JSON, 421 another host name, 422 refused, 429 too many wrong tokens, 503 the broker does not answer.
- `?wait=30s&after=ID` holds a request until an event after `ID`. Each answer of such a route has an `ETag`; `If-None-Match` gets a 304.

Roles and rights: *viewer* has `see`; *reader* also `see-data`; *operator* also `control`, `retry` and `scale`; *owner* all, also `delete`, `messages`, `submit` and `admin`. A token can have single rights besides its role.

## Routes
";

/// The routes as Markdown, for the reference.
pub fn reference() -> String {
    let routes: String = ROUTES.iter().map(describe).collect();
    format!("{INTRODUCTION}{routes}")
}

fn describe(route: &Route) -> String {
    let mut text = format!(
        "\n### `{} {}`\n\n{}. Needs {}.\n",
        route.verb.as_str().to_uppercase(),
        route.path,
        route.summary,
        right(route)
    );
    for (name, about) in route.all_parameters() {
        text.push_str(&format!("\n- `{name}`: {about}"));
    }
    if route.all_parameters().next().is_some() {
        text.push('\n');
    }
    if let Some(body) = route.body {
        text.push_str(&format!("\nBody: {body}.\n"));
    }
    if !route.returns.is_empty() {
        text.push_str(&format!("\nReturns: {}.\n", route.returns));
    }
    text
}

/// The right in words.
fn right(route: &Route) -> String {
    match route.access {
        Access::Needs(right) => format!("the right `{right}`"),
        Access::SignedIn => "sign-in".into(),
        Access::Open => "nothing".into(),
    }
}

fn right_name(route: &Route) -> Option<&'static str> {
    match route.access {
        Access::Needs(right) => Some(right.as_str()),
        _ => None,
    }
}

fn problem() -> Value {
    json!({
        "description": "An error, as in RFC 9457.",
        "type": "object",
        "required": ["title", "status", "detail"],
        "properties": {
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string", "description": "What failed, and why." },
            "hint": { "type": "string", "description": "What to do next." },
            "position": { "type": "integer", "description": "How many characters of the query are before the mistake." },
            "tid": { "type": "string", "description": "The task that is in the way, or that was named." },
            "right": { "type": "string", "description": "The right that is missing." },
        },
    })
}

fn list() -> Value {
    json!({
        "description": "A part of a list.",
        "type": "object",
        "required": ["items", "next", "as_of", "looked_at", "complete"],
        "properties": {
            "items": { "type": "array" },
            "next": { "type": ["string", "null"], "description": "The cursor of the next part." },
            "as_of": { "type": "string", "description": "The id of the last event before the list was read." },
            "looked_at": { "type": "integer", "description": "How many records were looked at." },
            "complete": { "type": "boolean", "description": "Whether all records were looked at." },
        },
    })
}
