//! The same commands on a Redis server.

use crate::world::World;

/// Starts a server on a socket in this world, with a password, and stops it at the end.
const SERVER: &str = r#"
set -eu
serve() {
    setpriv --pdeathsig KILL redis-server --port 0 --unixsocket "$PWD/redis.sock" --dir "$PWD" --appendonly yes \
        --save '' --requirepass geheim >server.log &
    server=$!
    for _ in $(seq 2000); do
        # Ready when a command is answered: the socket is there before its data is.
        raddle status >/dev/null 2>&1 && return
        sleep 0.01
    done
    exit 99
}
stop_workers() {
    pids=$(raddle worker list --json | jq '.[].pid')
    raddle worker stop --all | cut -d' ' -f2
    for pid in $pids; do while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done; done
}
stop_server() { kill -9 $server; wait $server 2>/dev/null || true; }
export QUEUE_URL="redis+unix:$PWD/redis.sock?password=geheim&namespace=cli"
serve
trap stop_server EXIT
"#;

fn on_a_server(script: &str) -> String {
    let world = World::new();
    world
        .bash(&format!("{SERVER}{script}"))
        .ok()
        .text()
        .to_owned()
}

#[test]
fn tasks_run_with_and_without_a_worker() {
    let told = on_a_server(
        r#"
raddle run -- echo inline
raddle run -- sh -c 'exit 3' || echo "code $?"
pid=$(raddle worker start --json | jq .pid)
grep -c geheim "/proc/$pid/cmdline" || true
tid=$(raddle submit -- sh -c 'echo by a worker')
raddle wait "$tid" | cut -d' ' -f2
raddle result "$tid"
raddle doctor | grep -c geheim || true
stop_workers
"#,
    );
    assert_eq!(
        told,
        "inline\ncode 3\n0\ncompleted\nby a worker\n0\ncompleted\n"
    );
}

#[test]
fn a_command_does_not_see_the_password_of_its_broker() {
    let told = on_a_server(
        r#"
raddle worker start >worker
raddle run -- sh -c 'echo "inline ${QUEUE_URL-unset}"'
raddle run --no-inline -- sh -c 'echo "worker ${QUEUE_URL-unset}"'
raddle run --env QUEUE_URL=mine -- sh -c 'echo "asked ${QUEUE_URL-unset}"'
stop_workers
"#,
    );
    assert_eq!(told, "inline unset\nworker unset\nasked mine\ncompleted\n");
}

#[test]
fn a_task_continues_during_a_restart_of_the_server() {
    let told = on_a_server(
        r#"
raddle worker start >worker
tid=$(raddle submit -- sh -c 'sleep 1.5; echo survived')
until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
stop_server
serve
raddle wait "$tid" | cut -d' ' -f2
raddle result "$tid"
raddle task status --json "$tid" | jq .attempt
stop_workers
"#,
    );
    assert_eq!(told, "completed\nsurvived\n1\ncompleted\n");
}

/// For longer than a lease: no worker can take over meanwhile, and this worker knows it.
#[test]
fn a_task_continues_while_the_server_is_down() {
    let told = on_a_server(
        r#"
raddle worker start >worker
tid=$(raddle submit -- sh -c 'echo run >>runs; sleep 5.5; echo survived')
until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
stop_server
sleep 4.5
serve
raddle wait "$tid" | cut -d' ' -f2
raddle result "$tid"
raddle task status --json "$tid" | jq -c '[.attempt, .losses]'
wc -l <runs
stop_workers
"#,
    );
    assert_eq!(told, "completed\nsurvived\n[1,0]\n1\ncompleted\n");
}

/// A server that does not answer may answer others. A stop for that reason is not charged to
/// the task.
#[test]
fn a_stalled_server_does_not_fail_a_task() {
    let told = on_a_server(
        r#"
raddle worker start >worker
tid=$(raddle submit -- sh -c 'echo run >>runs; [ "$(wc -l <runs)" -ge 3 ] || sleep 60')
for n in 1 2; do
    until [ "$(raddle task status --json "$tid" | jq -r '"\(.state) \(.attempt)"')" = "running $n" ]; do sleep 0.02; done
    kill -STOP $server
    sleep 4
    kill -CONT $server
done
raddle wait "$tid" | cut -d' ' -f2
raddle task status --json "$tid" | jq -c '[.attempt, .losses]'
stop_workers
"#,
    );
    assert_eq!(told, "completed\n[3,0]\ncompleted\n");
}

#[test]
fn a_killed_worker_loses_no_task() {
    let told = on_a_server(
        r#"
pid=$(raddle worker start --json | jq .pid)
tid=$(raddle submit -- sh -c 'test $RADDLE_ATTEMPT != 1 || sleep 60')
until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
kill -9 "$pid"
raddle worker start >worker
raddle wait "$tid" | cut -d' ' -f2
raddle task status --json "$tid" | jq -c '[.attempt, .losses]'
stop_workers
"#,
    );
    assert_eq!(told, "completed\n[2,1]\ncompleted\n");
}

/// A power cut under `appendfsync everysec` takes the last writes with it. `mark` says how long the
/// log is, `lose_power` goes back to that.
const POWER_CUT: &str = r#"
mark() { stat -c %s appendonlydir/appendonly.aof.1.incr.aof; }
lose_power() { stop_server; truncate -s "$1" appendonlydir/appendonly.aof.1.incr.aof; serve; }
is() { [ "$(raddle task status --json "$1" | jq -r .state)" = "$2" ]; }
"#;

/// The worker lives, so no lease runs out: it finds out by comparing what it holds with what the
/// server assigns to it.
#[test]
fn a_completion_that_the_server_forgot_does_not_leave_its_task_running() {
    let told = on_a_server(&format!(
        r#"{POWER_CUT}
raddle worker start >worker
tid=$(raddle submit --unique-key once -- sh -c 'echo run >>runs; until [ -e go ]; do sleep 0.02; done')
until is "$tid" running; do sleep 0.02; done
size=$(mark)
touch go
raddle wait "$tid" | cut -d' ' -f2
lose_power "$size"
raddle wait --timeout 60 "$tid" | cut -d' ' -f2
wc -l <runs
raddle task status --json "$tid" | jq -c '[.attempt, .failures, .losses]'
raddle submit --unique-key once -- true >/dev/null && echo "the key is free"
stop_workers
"#
    ));
    assert_eq!(
        told,
        "completed\ncompleted\n2\n[2,0,0]\nthe key is free\ncompleted\n"
    );
}

/// Two workers have the task under one attempt number. The first kills its attempt; only the second
/// ends the task.
#[test]
fn a_claim_that_the_server_forgot_ends_with_one_attempt() {
    let told = on_a_server(&format!(
        r#"{POWER_CUT}
first=$(raddle worker start --json | jq -r .tid)
raddle task pause "$first" >/dev/null
tid=$(raddle submit -- sh -c 'echo "$$ $RADDLE_ATTEMPT $RADDLE_FENCING_TOKEN" >>runs; until [ -e go ]; do sleep 0.02; done')
size=$(mark)
raddle task resume "$first" >/dev/null
until is "$tid" running; do sleep 0.02; done
raddle task pause "$first" >/dev/null
lose_power "$size"
second=$(raddle worker start --json | jq -r .tid)
until [ "$(wc -l <runs)" = 2 ]; do sleep 0.02; done
pid=$(head -n1 runs | cut -d' ' -f1)
timeout 60 tail --pid="$pid" -f /dev/null && echo "the first is gone"
touch go
raddle wait --timeout 60 "$tid" | cut -d' ' -f2
cut -d' ' -f2 runs
cut -d' ' -f3 runs | sort -nu | diff - <(cut -d' ' -f3 runs) && echo "tokens grow"
[ "$(raddle task status --json "$tid" | jq -r .worker)" = "$second" ] && echo "by the second"
raddle status --json | jq -c '[.tasks.completed, .stale_writes]'
stop_workers
"#
    ));
    assert_eq!(
        told,
        "the first is gone\ncompleted\n1\n1\ntokens grow\nby the second\n[1,1]\ncompleted\ncompleted\n"
    );
}

/// `doctor` states the loss window, and reports a problem if everything can be lost.
#[test]
fn doctor_says_which_writes_can_be_lost() {
    let told = on_a_server(
        r#"
ask() { redis-cli -s redis.sock --no-auth-warning -a geheim "$@" >/dev/null; }
raddle doctor --json | jq -r '.durability, .ok, (.checks[] | select(.name == "persistence" or .name == "replication") | .detail)'
ask CONFIG SET appendonly no
ask CONFIG SET save ''
code=0; raddle doctor >words || code=$?
echo "code $code"
grep -c 'error broker, database: .*stores nothing on disk.*CONFIG SET appendonly yes' words
code=0; QUEUE_URL="$QUEUE_URL&volatile=yes" raddle doctor >words || code=$?
echo "code $code"
grep -c 'all tasks are lost with the server' words
grep -A1 'error broker, persistence' words | grep -c 'fix: run .redis-cli CONFIG SET appendonly yes'
"#,
    );
    assert_eq!(
        told,
        "writes are synced every second: a crash of the server loses nothing, a power cut about one second; there is no replica\n\
         true\nappendonly yes, appendfsync everysec\nrole master, 0 replicas\ncode 1\n1\ncode 1\n1\n1\n"
    );
}

/// For longer than a lease. Nothing more is taken, and what was accepted goes on.
#[test]
fn a_server_without_memory_answers_reads_and_ends_no_attempt() {
    let told = on_a_server(
        r#"
ask() { redis-cli -s redis.sock --no-auth-warning -a geheim "$@" >/dev/null; }
raddle worker start >worker
tid=$(raddle submit -- sh -c 'echo run >>runs; until [ -e go ]; do sleep 0.05; done')
until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
ask CONFIG SET maxmemory 1
code=0; raddle submit -- true 2>words || code=$?
echo "submit $code"
grep -c 'has no memory left' words
raddle status --json | jq -c '[.tasks.running, (.workers | length)]'
raddle task list --json | jq length
raddle logs "$tid"
raddle doctor >words; echo "doctor $?"
grep -c '^warn  broker, memory: ' words
sleep 4
raddle task status --json "$tid" | jq -c '[.state, .attempt]'
touch go
raddle wait --timeout 30 "$tid" | cut -d' ' -f2
raddle task status --json "$tid" | jq -c '[.attempt, .losses]'
wc -l <runs
ask CONFIG SET maxmemory 0
stop_workers
"#,
    );
    let while_full = "submit 125\n1\n[1,1]\n1\ndoctor 0\n1\n[\"running\",1]\n";
    assert_eq!(
        told,
        format!("{while_full}completed\n[1,0]\n1\ncompleted\n")
    );
}

#[test]
fn requeues_orphans_without_workers() {
    let told = on_a_server(
        r#"
pid=$(raddle worker start --json | jq .pid)
tid=$(raddle submit -- sleep 600)
until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
raddle requeue-orphans --json
kill -9 "$pid"
for _ in $(seq 500); do
    orphans=$(raddle requeue-orphans --json | jq -c '[.[] | .tid, .attempt, .state]')
    [ "$orphans" = '[]' ] || break
    sleep 0.02
done
[ "$orphans" = "[\"$tid\",1,\"created\"]" ] && echo requeued
raddle task status --json "$tid" | jq -c '[.state, .losses]'
"#,
    );
    assert_eq!(told, "[]\nrequeued\n[\"created\",1]\n");
}

/// Each fault is said in words of its own, with the code for a failure of Raddle itself and without
/// the password.
#[test]
fn names_an_unusable_server() {
    let world = World::new();
    let ran = world.bash(&format!(
        r#"{SERVER}
try() {{ code=0; QUEUE_URL="$1" raddle submit -- true || code=$?; echo "code $code"; }}
try "redis+unix:$PWD/redis.sock?password=falsch"
try "redis+unix:$PWD/redis.sock?user=niemand&password=geheim"
try "redis+unix:$PWD/no.sock?password=geheim"
"#
    ));
    let ran = ran
        .ok()
        .stderr_contains("does not accept the user and password")
        .stderr_contains("cannot reach redis+unix:");
    assert_eq!(ran.text(), "code 125\n".repeat(3));
    assert!(
        !ran.stderr.contains("geheim") && !ran.stderr.contains("falsch"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_worker_exits_when_its_server_stays_away() {
    let told = on_a_server(
        r#"
QUEUE_URL="$QUEUE_URL&give_up_after=500ms" raddle worker start --no-detach >worker 2>words &
worker=$!
until [ -s worker ]; do sleep 0.02; done
stop_server
code=0; wait $worker || code=$?
echo "code $code"
grep -c 'cannot reach' words | sed 's/^[1-9].*/said why/'
grep -c geheim words || true
serve
"#,
    );
    assert_eq!(told, "code 125\nsaid why\n0\n");
}

/// A worker in the foreground, as `$worker`, that has a result which it cannot write: its task
/// ended while the server was away.
const UNWRITTEN: &str = r#"
hold() {
    raddle worker start --no-detach >worker 2>words &
    worker=$!
    tid=$(raddle submit -- sh -c 'echo ran >>ran; while ! [ -e go ]; do sleep 0.01; done')
    until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
    stop_server
    touch go
}
again() {
    serve
    raddle worker start >again
    raddle wait --timeout 30 "$tid" | cut -d' ' -f2
    wc -l <ran
    stop_workers
}
"#;

#[test]
fn a_worker_with_a_result_exits_when_its_server_stays_away() {
    let told = on_a_server(&format!(
        r#"{UNWRITTEN}
URL=$QUEUE_URL
export QUEUE_URL="$URL&give_up_after=1s"
hold
code=0; timeout 20 tail --pid=$worker -f /dev/null; wait $worker || code=$?
echo "code $code"
grep -q "could not be written: it will run again tid=$tid" words && echo "named it"
again
"#
    ));
    assert_eq!(told, "code 125\nnamed it\ncompleted\n2\ncompleted\n");
}

#[test]
fn stops_a_worker_whose_result_cannot_be_written() {
    // It would wait for the server for half a minute, and begin anew.
    let told = on_a_server(&format!(
        r#"{UNWRITTEN}
hold
sleep 0.5
for signal in TERM TERM TERM; do kill -$signal $worker; sleep 0.2; done
begun=$(date +%s)
timeout 20 tail --pid=$worker -f /dev/null
[ $(($(date +%s) - begun)) -lt 12 ] && echo "in time"
wait $worker && echo "left"
grep -q "could not be written: it will run again tid=$tid" words && echo "named it"
again
"#
    ));
    assert_eq!(told, "in time\nleft\nnamed it\ncompleted\n2\ncompleted\n");
}

#[test]
fn a_spawner_keeps_workers_and_its_stop_loses_no_task() {
    let told = on_a_server(
        r#"
raddle spawner run --warm-pool 2 --max-workers 6 >first 2>first.err &
spawner=$!
raddle submit --array 1-200 -- sh -c 'echo {} >> ran' >tids
until [ "$(wc -l <ran || echo 0)" -gt 20 ] 2>/dev/null; do sleep 0.01; done
kill -9 $spawner
wait $spawner 2>/dev/null || true
raddle spawner run --warm-pool 1 --max-workers 6 >next 2>next.err &
spawner=$!
raddle wait --timeout 50 $(cat tids) | cut -d' ' -f2 | sort | uniq -c | tr -s ' '
sort -n ran | uniq | wc -l
# Mid-task: a new worker completes it.
tid=$(raddle submit -- sh -c 'test $RADDLE_ATTEMPT != 1 || sleep 600')
until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
busy() { raddle worker list --json | jq '.[] | select(.type == "one-shot" and .load > 0) | .pid'; }
until [ -n "$(busy)" ]; do sleep 0.02; done
kill -9 $(busy)
raddle wait --timeout 5 "$tid" | cut -d' ' -f2
kill $spawner
wait $spawner
tail -n 1 next.err | grep -c launched
"#,
    );
    assert_eq!(told, " 200 completed\n200\ncompleted\n1\n");
}

/// Every command that shows the output says that it is truncated. A stream of exactly the limit is
/// whole.
#[test]
fn reports_output_beyond_the_limit_as_lost() {
    let told = on_a_server(
        r#"
# With its standard output counted, how often a command names what was lost of a stream.
count() { "${@:2}" 2>words | wc -c; grep -ac "only the first [0-9]* bytes of standard $1 are kept: 'max_output'" words || true; }
last() { raddle task list --json --limit 1 | jq -r '.[0].tid'; }
count output raddle run -- head -c 68000000 /dev/zero
URL=$QUEUE_URL
export QUEUE_URL="$URL&max_output=70M"
count output raddle run -- head -c 68000000 /dev/zero
echo small
export QUEUE_URL="$URL&max_output=100K"
count output raddle run -- head -c 102400 /dev/zero
count output raddle run -- sh -c 'head -c 300000 /dev/zero; sleep 0.1; head -c 300000 /dev/zero; exit 3'
tid=$(last)
echo kept
count output raddle result "$tid"
count output raddle logs "$tid"
count output raddle logs --attempt 1 "$tid"
raddle task status "$tid" | grep '^lost'
raddle result --json "$tid" 2>words | jq -c '[.stdout_complete, .stderr_complete]'
echo error
count error raddle run -- sh -c 'echo all; head -c 300000 /dev/zero >&2'
export QUEUE_URL="$URL&max_output=1K"
count output raddle run -- head -c 5000 /dev/zero
"#,
    );
    let lost = "only the first 102400 bytes of standard output are kept: 'max_output' in the queue URL of its worker sets how many";
    let expected = format!(
        "67108864\n1\n68000000\n0\nsmall\n102400\n0\n102400\n1\n\
         kept\n102400\n1\n102400\n1\n102400\n1\nlost       {lost}\n[false,true]\n\
         error\n4\n1\n1024\n1\n"
    );
    assert_eq!(told, expected);
}

#[test]
fn the_operators_interface_serves_a_redis_broker() {
    let told = on_a_server(
        r#"
raddle submit -- true >/dev/null
raddle web --addr 127.0.0.1:0 --json >web.json & web=$!
until [ -s web.json ]; do sleep 0.01; done
url=$(jq -r .url web.json)
get() {
    exec 3<>"/dev/tcp/127.0.0.1/$(echo "$url" | cut -d: -f3 | tr -d /)"
    printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n' "$1" "${url#http://}" "$2" | sed 's|/\r$|\r|' >&3
    head -1 <&3 | cut -d' ' -f2
    cat <&3 >answer
    exec 3>&-
}
get /api/v1/tasks ""
get /api/v1/tasks "Authorization: Bearer $(cat .raddle/web.token)
"
grep -c geheim answer || true
raddle web open >/dev/null && echo opened
cat .raddle/.gitignore
kill $web; wait $web || true
"#,
    );
    assert_eq!(told, "401\n200\n0\nopened\n*\n");
}
