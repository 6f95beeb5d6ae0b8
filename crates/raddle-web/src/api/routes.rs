//! The table of the API: the only place that names its paths.

use axum::routing::{delete, get, patch, post, put};

use super::{
    audit, control, events, groups, info, messages, openapi, operations, output, schedules, series,
    status, submit, tasks,
};
use crate::{
    auth::Right::{Admin, Control, Delete, Messages, Retry, Scale, See, SeeData, Submit},
    route::{
        Access::{Needs, SignedIn},
        Parameter, Route,
        Verb::{self, Get, Patch, Post, Put},
    },
};

const LIMIT: Parameter = ("limit", "The most items: 1 to 1000, 50 unless given");
const TIMEOUT: Parameter = ("timeout", "How long to wait for the outcome: 10s at most");
const REASON: Parameter = ("reason", "Why, for the audit trail");
const COMMAND: &[Parameter] = &[TIMEOUT, REASON];
const OUTCOME: &str = "The outcome: `tid`, `command`, `status`, `state`; 202 while it is pending";

/// The routes of the API, relative to `/api/v1`.
pub(crate) const ROUTES: &[Route] = &[
    Route::api(Get, "/", Needs(See), "The version, the engine, and the rights of the caller", || get(info::show))
        .returns("`version`, `broker`, `engine`, `durability`, `name`, `role`, `rights`, `read_only`"),
    Route::api(Get, "/openapi.json", SignedIn, "This API as OpenAPI 3.1", || get(openapi::show))
        .returns("An OpenAPI document"),
    Route::api(Get, "/status", Needs(See), "Counts of tasks, and the live workers", || get(status::status))
        .held()
        .returns("As `raddle status --json`"),
    Route::api(Get, "/tasks", Needs(See), "Tasks, the newest first", || get(tasks::list))
        .held()
        .parameters(&[
            ("q", "A query, as in `raddle task list`"),
            LIMIT,
            ("cursor", "The `next` of the previous answer"),
            ("fields", "Names of fields, with commas between them: only these"),
            ("all", "`1` for Raddle's own services, too"),
        ])
        .returns("A list of tasks, as `raddle task list --json`"),
    Route::api(Post, "/tasks", Needs(Submit), "Submits tasks, all or none", || post(submit::submit))
        .body("A task spec, or `{\"tasks\": [spec, …]}`. The header `Idempotency-Key` submits them once")
        .returns("201, and the ids in `items`"),
    Route::api(Get, "/tasks/{tid}", Needs(See), "One task or worker", || get(tasks::show))
        .held()
        .returns("As `raddle task status --json`"),
    Route::api(Verb::Delete, "/tasks/{tid}", Needs(Delete), "Deletes the record of a finished task", || delete(control::delete))
        .returns("`deleted`"),
    Route::api(Get, "/tasks/{tid}/explain", Needs(See), "Why a task is not running", || get(tasks::explain))
        .held()
        .returns("As `raddle task explain --json`"),
    Route::api(Get, "/tasks/{tid}/attempts", Needs(See), "The attempts of a task: where each ran, when, and how it ended", || get(tasks::attempts))
        .held()
        .returns("A list of attempts"),
    Route::api(Get, "/tasks/{tid}/events", Needs(See), "The events of a task, the oldest first", || get(tasks::events))
        .held()
        .parameters(&[("after", "Only events after this id"), LIMIT])
        .returns("A list of events"),
    Route::api(Get, "/tasks/{tid}/tree", Needs(See), "A task and what it has submitted", || get(tasks::tree))
        .returns("As `raddle task tree --json`"),
    Route::api(Get, "/tasks/{tid}/result", Needs(SeeData), "A finished task, with the output of its last attempt", || get(tasks::result))
        .returns("As `raddle result --json`"),
    Route::api(Get, "/tasks/{tid}/logs", Needs(SeeData), "The output of all attempts, in order", || get(output::logs))
        .parameters(&[("follow", "`1` for a stream of events until the task is finished")])
        .returns("As `raddle logs --json`, one record to a line; bytes with `Accept: text/plain`"),
    Route::api(Get, "/tasks/{tid}/output/{attempt}/{stream}", Needs(SeeData), "The bytes of `stdout` or `stderr` of one attempt", || get(output::output))
        .parameters(&[("follow", "`1` for a stream of events, whose ids are `attempt:offset`")])
        .returns("Bytes. `Range` asks for a part"),
    Route::api(Post, "/tasks/{tid}/stop", Needs(Control), "Stops a task", || post(control::stop))
        .parameters(COMMAND)
        .returns(OUTCOME),
    Route::api(Post, "/tasks/{tid}/kill", Needs(Control), "Kills a task", || post(control::kill))
        .parameters(COMMAND)
        .returns(OUTCOME),
    Route::api(Post, "/tasks/{tid}/pause", Needs(Control), "Pauses a task", || post(control::pause))
        .parameters(COMMAND)
        .returns(OUTCOME),
    Route::api(Post, "/tasks/{tid}/resume", Needs(Control), "Resumes a task", || post(control::resume))
        .parameters(COMMAND)
        .returns(OUTCOME),
    Route::api(Post, "/tasks/{tid}/ping", Needs(Control), "Asks a task whether it is alive", || post(control::ping))
        .parameters(COMMAND)
        .returns(OUTCOME),
    Route::api(Post, "/tasks/{tid}/retry", Needs(Retry), "Submits a finished task again", || post(control::retry))
        .parameters(&[REASON])
        .returns("201, the new `tid`, and `retry_of`"),
    Route::api(Post, "/tasks/{tid}/recover", Needs(Retry), "Recovers a stuck task", || post(control::recover))
        .parameters(&[TIMEOUT, ("force", "`1` to run a completed task again"), REASON])
        .returns("As `raddle task recover --json`"),
    Route::api(Get, "/failures", Needs(See), "Failed tasks, grouped by cause", || get(status::failures))
        .held()
        .parameters(&[("q", "A query, as in `raddle task list`")])
        .returns("A list of groups, as `raddle failures --json`"),
    Route::api(Get, "/queues", Needs(See), "Queues with tasks or messages", || get(status::queues))
        .held()
        .parameters(&[("pattern", "Only names that match; `*` matches anything, and Raddle's own queues")])
        .returns("A list, as `raddle queue list --json`"),
    Route::api(Get, "/queues/{queue}", Needs(See), "The size and age of a queue", || get(status::queue))
        .held()
        .returns("As `raddle queue stats --json`"),
    Route::api(Post, "/queues/{queue}/pause", Needs(Control), "Pauses a queue: nothing is claimed from it", || post(status::pause_queue))
        .returns("As `raddle queue pause --json`"),
    Route::api(Post, "/queues/{queue}/resume", Needs(Control), "Resumes a queue", || post(status::resume_queue))
        .returns("As `raddle queue resume --json`"),
    Route::api(Get, "/workers", Needs(See), "The live workers", || get(status::workers))
        .held()
        .returns("A list, as `raddle worker list --json`"),
    Route::api(Get, "/workers/{tid}", Needs(See), "One live worker", || get(status::worker))
        .held()
        .returns("An item of the list of workers"),
    Route::api(Post, "/workers/{tid}/stop", Needs(Control), "Stops a worker when its tasks are finished", || post(control::stop_worker))
        .parameters(COMMAND)
        .returns(OUTCOME),
    Route::api(Post, "/workers/{tid}/kill", Needs(Control), "Stops a worker and returns its tasks to their queues", || post(control::kill_worker))
        .parameters(COMMAND)
        .returns(OUTCOME),
    Route::api(Post, "/workers/{tid}/pause", Needs(Control), "Pauses a worker: it claims nothing", || post(control::pause_worker))
        .parameters(COMMAND)
        .returns(OUTCOME),
    Route::api(Post, "/workers/{tid}/resume", Needs(Control), "Resumes a worker", || post(control::resume_worker))
        .parameters(COMMAND)
        .returns(OUTCOME),
    Route::api(Get, "/pools", Needs(See), "The pools of this user on this machine", || get(status::pools))
        .returns("A list, as `raddle pool list --json`"),
    Route::api(Get, "/pools/{pool}", Needs(See), "The workers of a pool, and what they report", || get(status::pool))
        .returns("A list, as `raddle pool workers --json`"),
    Route::api(Get, "/groups", Needs(See), "The workers of groups", || get(groups::list))
        .held()
        .returns("A list, as `raddle group list --json`"),
    Route::api(Get, "/groups/{slug}", Needs(See), "One worker of a group", || get(groups::show))
        .held()
        .returns("An item of the list of groups"),
    Route::api(Patch, "/groups/{slug}", Needs(Scale), "Turns a worker of a group on or off, or scales its process", || patch(groups::change))
        .body("`on`, `replicas` or both")
        .returns("As `raddle group scale --json`"),
    Route::api(Get, "/schedules", Needs(See), "Schedules by name", || get(schedules::list))
        .held()
        .returns("A list, as `raddle schedule list --json`"),
    Route::api(Get, "/schedules/{name}", Needs(See), "One schedule, with its next due times", || get(schedules::show))
        .held()
        .parameters(&[("count", "How many due times: 5 unless given")])
        .returns("As `raddle schedule show --json`"),
    Route::api(Put, "/schedules/{name}", Needs(Submit), "Adds or replaces a schedule", || put(schedules::put))
        .body("A schedule, as in `raddle schedule add --file`. `If-Match` names the `version` that is replaced")
        .returns("As `raddle schedule add --json`"),
    Route::api(Verb::Delete, "/schedules/{name}", Needs(Submit), "Removes a schedule", || delete(schedules::remove))
        .returns("As `raddle schedule remove --json`"),
    Route::api(Post, "/schedules/{name}/pause", Needs(Control), "Pauses a schedule", || post(schedules::pause))
        .returns("As `raddle schedule pause --json`"),
    Route::api(Post, "/schedules/{name}/resume", Needs(Control), "Resumes a schedule", || post(schedules::resume))
        .returns("As `raddle schedule resume --json`"),
    Route::api(Post, "/schedules/{name}/run-now", Needs(Submit), "Submits the task of a schedule now", || post(schedules::run_now))
        .returns("As `raddle schedule run-now --json`"),
    Route::api(Get, "/messages", Needs(SeeData), "Queues with messages", || get(messages::list))
        .held()
        .returns("A list, as `raddle queue list --json`"),
    Route::api(Get, "/messages/{queue}", Needs(SeeData), "The oldest messages of a queue, which stay there", || get(messages::peek))
        .held()
        .parameters(&[LIMIT])
        .returns("A list, as `raddle queue peek --json`"),
    Route::api(Post, "/messages/{queue}", Needs(Messages), "Writes messages", || post(messages::write))
        .body("`messages`: an array of texts")
        .returns("As `raddle queue write --json`"),
    Route::api(Verb::Delete, "/messages/{queue}", Needs(Messages), "Removes all messages of a queue", || delete(messages::clear))
        .returns("`deleted`"),
    Route::api(Post, "/messages/{queue}/move", Needs(Messages), "Moves messages to the end of another queue", || post(messages::move_messages))
        .body("`to`: the other queue; `max`: how many")
        .returns("`moved`"),
    Route::api(Get, "/events", Needs(See), "The event log, the oldest first; a stream with `Accept: text/event-stream`", || get(events::events))
        .parameters(&[("after", "Only events after this id; a stream without it begins now"), LIMIT])
        .returns("A list of events, or a stream whose ids are those of the log: `Last-Event-ID` continues it"),
    Route::api(Get, "/series", Needs(See), "Outcomes by minute and name, of 72 hours at most", || get(series::series))
        .parameters(&[
            ("name", "Only tasks of this name"),
            ("from", "The first minute, as a time: an hour ago unless given"),
            ("until", "The time after the last minute: now unless given"),
        ])
        .returns("A list of minutes"),
    Route::api(Post, "/operations", SignedIn, "Retries, stops, kills, deletes or moves many tasks; needs the right to the action", || post(operations::start))
        .body("`action` (`retry`, `stop`, `kill`, `delete` or `{\"move\": {\"queue\": NAME}}`), and `tids` or `q`; `as_of` of the list that you have seen, `expect` (how many), `reason`, `dry_run`")
        .returns("202, and the operation; with `dry_run`, `count` and `sample`. Tasks that have changed after `as_of` are left alone. 409 if `expect` does not fit"),
    Route::api(Get, "/operations", Needs(See), "Operations, the newest first", || get(operations::list))
        .parameters(&[LIMIT])
        .returns("A list, as `raddle operation list --json`"),
    Route::api(Get, "/operations/{id}", Needs(See), "One operation and its progress", || get(operations::show))
        .returns("As `raddle operation status --json`"),
    Route::api(Post, "/operations/{id}/cancel", SignedIn, "Cancels an operation, for those with the right to its action; its changes stay", || post(operations::cancel))
        .returns("As `raddle operation cancel --json`"),
    Route::api(Get, "/audit", Needs(Admin), "Changes and their authors, the newest first", || get(audit::audit))
        .parameters(&[LIMIT])
        .returns("A list of entries"),
    Route::api(Get, "/doctor", Needs(See), "Checks of the broker and of this machine", || get(status::doctor))
        .returns("As `raddle doctor --json`"),
];
