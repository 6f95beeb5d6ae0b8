//! The suite that every engine passes. A difference between two engines is a bug in one of them.
//!
//! An engine gives a [`Fixture`]; [`conformance!`](crate::conformance!) makes a test of every case
//! for it. Cases are grouped by concern, under the names that the engines' own files have. They
//! wait for things with a deadline and never sleep until something has probably happened, with one
//! exception: that a lease has run out can only be seen by letting its time pass.

pub mod batches;
pub mod chain;
pub mod claim;
pub mod complete;
pub mod control;
pub mod expiry;
pub mod find;
pub mod load;
pub mod log;
pub mod managers;
pub mod messages;
pub mod model;
pub mod operations;
pub mod output;
pub mod purge;
pub mod queue_pause;
pub mod queues;
pub mod reclaim;
pub mod registry;
pub mod release;
pub mod resubmit;
pub mod rollups;
pub mod schedules;
pub mod spawned_worker;
pub mod submit;
pub mod submit_and_claim;
pub mod tasks;
pub mod wake;

mod support;

// For the tests of single engines.
pub use support::{completion, info};

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use async_trait::async_trait;

use crate::{Broker, Result};

/// A broker, as one process holds it.
pub type Handle = Arc<dyn Broker>;

/// An empty store of the engine under test, which is gone with the fixture.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// The first handle on the store.
    fn broker(&self) -> &Handle;

    /// Another handle on the same store, as another process would have it.
    async fn reopen(&self) -> Handle;
}

/// No case takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(160);

/// Runs one case on a store of its own.
pub fn run<F: Fixture>(
    make: impl AsyncFnOnce() -> F,
    case: impl AsyncFnOnce(&dyn Fixture) -> Result<()>,
) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the system gives this process threads");
    runtime.block_on(async {
        let store = make().await;
        let outcome = tokio::time::timeout(PATIENCE, Box::pin(case(&store))).await;
        outcome
            .expect("the case comes to an end")
            .expect("the engine does what it was asked to");
    });
}

/// The name of a case, and the case for a store that is made from `T`.
pub type Case<T> = (&'static str, fn(T));

/// Runs all cases that [`conformance!`](crate::conformance!) lists, some at a time, and says which
/// have failed. For a store that takes so long to make that they have to share it.
pub fn run_all<T: Clone + Send + Sync>(cases: Vec<Case<T>>, store: &T) {
    let (queue, failed) = (Mutex::new(cases.into_iter()), Mutex::new(Vec::new()));
    let next = || queue.lock().expect("no holder panics").next();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((name, case)) = next() {
                    let store = store.clone();
                    if std::panic::catch_unwind(AssertUnwindSafe(|| case(store))).is_err() {
                        failed.lock().expect("no holder panics").push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no holder panics");
    assert!(
        failed.is_empty(),
        "these have failed, and said why above: {failed:?}"
    );
}

/// How many cases that share a store run at the same time. Most of them wait most of the time.
const AT_ONCE: usize = 6;

/// Makes a test of every case, for the engine whose fixture the async function `$make` gives. With
/// `list $make($arg)` it is an expression instead: all cases, for
/// [`run_all`](conformance::run_all).
#[macro_export]
macro_rules! conformance {
    ($make:ident) => {
        $crate::conformance! { @all [tests] $make }
    };
    (list $make:ident($arg:ty)) => {
        $crate::conformance! { @all [list $arg] $make }
    };
    (@all $how:tt $make:ident) => {
        $crate::conformance! { @cases $how $make;
            submit {
                stores_tasks_as_given
                a_batch_keeps_its_order
                one_invalid_task_refuses_the_whole_batch
                an_empty_batch_is_nothing
                refuses_to_submit_a_service
                a_spec_too_large_to_store_is_refused
                a_unique_key_gives_the_unfinished_task
                a_unique_key_counts_within_a_batch
                a_unique_key_is_free_once_its_task_is_over
                a_unique_key_is_kept_between_attempts
                ids_increase_over_tasks_messages_and_events
            }
            submit_and_claim {
                claims_a_task_with_its_submission
                no_other_worker_claims_it_in_between
                a_taken_key_registers_no_worker
                a_time_that_has_not_come_claims_nothing
                an_invalid_task_leaves_nothing
                its_worker_leaves_with_it
                a_worker_for_one_task_leaves_with_the_one_it_claims
                reclaims_the_task_of_its_lost_worker
            }
            batches {
                tasks_of_a_batch_are_counted_and_listed
                a_task_that_is_submitted_again_takes_the_place_of_the_old_one
                a_chained_task_joins_its_batch_when_it_is_submitted
                finished_tasks_are_deleted_with_all_that_is_known_of_them
                a_batch_is_gone_with_the_last_of_its_records
            }
            chain {
                submits_chained_tasks_after_success
                hides_chained_tasks_before_the_end
                they_are_as_old_as_the_end
                any_other_end_leaves_nothing
                only_the_attempt_that_succeeds_is_followed
                drops_chained_tasks_of_a_lost_worker
                a_late_attempt_chains_nothing
                refuses_to_chain_without_a_current_attempt
                one_invalid_task_refuses_all_of_its_call
                an_attempt_chains_so_much_and_no_more
                a_thousand_follow_at_once
                honours_the_specs_of_chained_tasks
                a_delayed_one_is_given_when_it_is_due
                one_that_has_waited_for_too_long_expires
                chained_tasks_wake_waiting_workers
                a_key_that_is_taken_then_is_respected
                a_task_may_follow_itself
                a_batch_ends_with_and_without
                chains_a_repeated_call_once
                concurrent_chaining_loses_no_task
                reports_whether_a_racing_chain_call_succeeded
                chains_from_a_task_claimed_with_its_submission
            }
            claim {
                nothing_to_claim_takes_the_whole_wait
                a_claim_begins_an_attempt
                the_urgent_come_first_and_then_the_oldest
                order_holds_over_partitions
                several_are_taken_at_once
                a_batch_may_lose_tasks_from_its_middle
                claims_only_from_served_queues
                claims_only_tasks_whose_needs_are_offered
                a_task_without_a_fitting_worker_delays_no_other
                order_holds_behind_many_tasks_without_a_fitting_worker
                a_target_implies_needs
                one_task_can_be_asked_for
                one_task_that_is_not_ready_is_not_given
                a_delayed_task_is_given_when_it_is_due
                a_time_in_the_past_is_now
                a_task_that_becomes_due_keeps_its_place
                an_unregistered_worker_claims_nothing
                a_worker_with_an_expired_lease_claims_nothing
                a_claim_that_is_given_up_loses_nothing
                a_wait_without_end_is_taken
                started_is_noted_once
                started_by_a_late_attempt_is_passed_over
            }
            expiry {
                does_not_hand_out_expired_tasks
                expires_tasks_without_a_claim
                a_time_is_as_good_as_a_lifetime
                paused_and_delayed_tasks_expire
                a_task_claimed_in_time_does_not_expire
                a_failure_in_time_is_retried_after_the_expiry
                a_task_released_unrun_expires
                one_that_has_expired_is_not_claimed_by_its_submitter
                those_behind_the_expired_are_given_out
                a_key_is_free_once_its_task_has_expired
                many_expire_in_turn
            }
            complete {
                success_completes
                an_attempt_that_ran_is_logged_as_running
                a_success_that_was_never_started_is_logged_as_running
                an_attempt_that_never_ran_is_not_logged_as_running
                a_failure_says_why
                a_failed_attempt_is_followed_by_another
                the_next_attempt_waits_for_its_pause
                used_up_attempts_end_in_the_dead_letter_queue
                clear_keeps_the_exhausted_out_of_the_dead_letter_queue
                requeue_tries_the_exhausted_for_ever
                a_timeout_is_a_state_of_its_own
                a_stopped_attempt_cancels_its_task
                a_stopped_attempt_goes_back_when_the_spec_says_so
                a_killed_attempt_kills_its_task
                a_second_finish_is_stale
                a_finish_of_an_earlier_attempt_is_stale
                a_finish_of_an_unknown_task_is_stale
                a_write_of_another_worker_is_refused
                fencing_tokens_grow
                outcomes_keep_the_order_of_the_batch
                unread_commands_are_deleted_with_the_task
                a_terminal_state_is_final
            }
            release {
                a_released_task_goes_back_uncharged
                a_released_task_keeps_its_place
                a_late_release_is_stale
            }
            reclaim {
                requeues_unstarted_tasks_of_a_lost_worker_uncharged
                counts_started_tasks_of_a_lost_worker_as_lost
                a_task_that_kills_its_workers_is_dead_lettered
                a_task_that_never_gets_to_begin_is_not_believed_for_ever
                the_worker_itself_has_failed
                a_long_task_on_a_live_worker_is_never_taken
                a_late_finish_is_refused_counted_and_logged
                a_late_renewal_reports_an_expired_lease
                a_renewal_reclaims_from_lost_workers
                reclaims_each_task_once
                commands_to_a_lost_attempt_apply_to_the_task
                commands_received_by_a_lost_worker_apply_to_the_task
            }
            registry {
                a_worker_is_a_task
                a_registry_entry_shows_the_worker_info
                a_heartbeat_shows_in_the_registry_entry
                a_worker_that_leaves_has_completed
                a_worker_that_leaves_badly_has_failed
                requeues_tasks_of_a_leaving_worker_uncharged
                leaving_twice_is_leaving_once
                a_worker_without_a_lease_is_not_shown
                renews_leases_on_a_plain_thread
                commands_reach_a_worker
                stores_what_a_worker_announces_to_callers
                a_worker_that_takes_calls_is_gone_with_its_lease
                a_worker_that_takes_calls_takes_no_tasks
            }
            spawned_worker {
                a_spawned_worker_has_the_id_of_its_task
                a_spawned_worker_receives_its_commands
                a_spawned_worker_is_lost_without_the_end_of_its_task
                a_restarted_worker_does_not_hold_what_it_held
                a_stale_attempt_cannot_become_a_worker
            }
            control {
                stop_cancels_a_waiting_task
                stop_keeps_a_waiting_task_with_on_stop_requeue
                kill_ends_a_waiting_task
                pause_holds_and_resume_lets_go
                a_paused_task_keeps_its_time
                ping_and_status_are_answered
                pausing_twice_is_pausing_once
                refuses_commands_to_an_unknown_task
                refuses_commands_to_a_finished_task
                commands_to_an_attempt_reach_only_its_worker
                unread_commands_apply_to_a_released_task
                unread_commands_apply_to_a_retried_task
                logs_and_skips_malformed_commands
                an_ignored_message_to_an_attempt_is_an_event
                an_attempt_that_stands_still_shows_as_paused
                a_pause_outlives_its_attempt
                a_pause_that_was_taken_back_in_time_does_not
            }
            messages {
                messages_are_taken_in_order
                peeking_takes_nothing
                peeking_continues_after_an_id
                messages_become_tasks_once
                messages_become_others_once
                moved_messages_come_last
                queues_exist_while_they_hold_something
                clearing_says_how_many
                each_message_is_taken_once
                waiting_for_a_message_ends
            }
            log {
                created_is_the_task_itself
                events_come_in_order_and_after_an_id
                events_of_one_task
                at_most_as_many_as_asked_for
                an_unknown_task_has_no_events
                events_of_one_task_are_found_behind_those_of_many
                the_last_event_is_known
            }
            output {
                output_is_read_from_any_place
                the_end_follows_what_came_before
                small_output_comes_with_the_end
                bytes_are_kept_as_they_are
                output_of_a_late_attempt_is_refused
                a_late_finish_adds_no_output
                following_gives_everything_once
                following_gives_attempts_in_order
                following_ends_after_large_output
                following_ends_after_all_events
                following_what_is_not_there_fails
                following_waits_no_longer_than_asked
            }
            tasks {
                the_newest_come_first
                tasks_are_listed_in_pages
                tasks_are_found_by_id
                tasks_are_found_by_state
                tasks_are_found_by_name_and_queue
                services_are_shown_on_request
                dead_tasks_are_found
                short_ids_are_completed
                a_task_knows_its_place_in_line
                progress_is_shown_while_the_attempt_runs
                counts_waiting_tasks_that_a_worker_may_claim
                counts_waiting_tasks_by_kind
                many_are_counted_by_kind
                an_unknown_task_is_not_there
                the_summary_adds_up
                the_engine_names_itself
            }
            find {
                slices_find_every_task_once
                a_full_page_says_where_the_next_begins
                queries_find_tasks
            }
            queue_pause {
                a_paused_queue_takes_tasks_and_gives_none
                only_the_named_queue_is_paused
                a_resumed_queue_wakes_a_claim
                a_task_for_its_submitter_waits_too
                running_tasks_of_a_paused_queue_go_on
            }
            rollups {
                outcomes_are_counted_by_name
                a_minute_counts_a_limited_number_of_names
                purge_trims_the_audit_trail
            }
            operations {
                an_operation_retries_each_dead_letter_once
                tasks_that_have_changed_are_left_alone
                named_tasks_are_stopped_and_deleted
                waiting_tasks_are_moved
                a_cancelled_operation_stops_where_it_is
                operations_are_listed_newest_first
                refuses_invalid_operations
            }
            purge {
                old_tasks_go_with_all_their_records
                keeps_unfinished_and_recent_tasks
            }
            resubmit {
                a_finished_task_runs_again_as_a_new_one
                an_unfinished_task_is_not_submitted_again
                a_dead_task_leaves_the_dead_letter_queue
                a_dead_letter_is_submitted_again_once
                a_dead_task_whose_key_is_taken_stays_dead
            }
            schedules {
                a_schedule_is_kept_as_it_was_given
                a_change_is_made_from_what_was_seen
                names_and_tasks_are_checked
                tasks_come_with_the_change_or_not_at_all
                a_task_whose_key_is_taken_is_not_submitted_twice
                nothing_is_fired_before_its_time
                due_items_list_due_schedules
                waits_for_the_next_due_schedule
                a_change_wakes_schedulers
                an_expiring_task_wakes_schedulers
                a_paused_schedule_is_not_due
                fired_tasks_are_claimed_as_any_other
                ten_contenders_fire_a_thousand_due_times_once
            }
            wake {
                a_submission_wakes_a_claim
                a_release_wakes_a_claim
                a_retry_wakes_a_claim
                a_resumed_task_wakes_a_claim
                a_worker_that_leaves_wakes_a_claim
                a_reclaimed_task_wakes_a_claim
                a_nearer_time_wakes_a_claim
                a_batch_wakes_all_waiting_workers
                a_busy_worker_hands_a_due_time_to_another
                a_command_wakes_its_worker
                an_event_wakes_readers_of_the_log
                an_event_wakes_readers_of_its_task
                output_wakes_followers
                the_end_wakes_followers
                a_message_wakes_takers
                a_message_wakes_watchers
                a_moved_message_wakes_takers
                a_command_wakes_watchers
            }
            managers {
                a_request_is_a_task
                requests_find_their_manager
                watches_results_and_commands_managers
                a_worker_has_a_parent
            }
            queues {
                free_queues_are_read_and_written
                the_states_of_a_task_show_in_its_queues
                a_dead_task_stays_reserved
                a_stopped_task_stays_reserved_when_the_spec_says_so
                records_are_read_not_taken
                commands_written_to_a_queue_are_applied
                the_inbox_of_a_worker_takes_requests
                unknown_control_messages_are_refused
                control_messages_are_read_in_any_case
                broadcasts_commands_to_all_workers
                refuses_to_move_commands
                views_show_records
                queues_are_listed_by_name
                the_queues_of_many_tasks_are_listed
                stats_count_messages_and_bytes
                a_broadcast_reaches_queues_that_hold_something
                a_broadcast_reaches_control_queues_only_by_name
                watching_shows_each_message_once
                watching_shows_what_is_moved_there
                watching_shows_records_as_they_come
                watching_for_new_messages_skips_stored_ones
            }
            load {
                eight_claimers_share_two_thousand_tasks
                submitters_on_two_handles_lose_nothing
                claims_given_up_at_any_moment_lose_nothing
            }
            model {
                any_sequence_of_operations_keeps_the_promises
            }
        }
    };
    (@cases [list $arg:ty] $make:ident; $($concern:ident { $($case:ident)* })*) => {
        $crate::conformance! { @list $arg, $make; $($($concern $case)*)* }
    };
    (@list $arg:ty, $make:ident; $($concern:ident $case:ident)*) => {
        vec![$((
            concat!(stringify!($concern), "::", stringify!($case)),
            (|arg| $crate::conformance::run(async move || $make(arg).await, $crate::conformance::$concern::$case)) as fn($arg),
        )),*]
    };
    (@cases [tests] $make:ident; $($concern:ident { $($case:ident)* })*) => {$(
        mod $concern {
            $(
                #[test]
                fn $case() {
                    $crate::conformance::run(super::$make, $crate::conformance::$concern::$case);
                }
            )*
        }
    )*};
}
