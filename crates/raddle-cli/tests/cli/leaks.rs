//! Tasks of every kind leave nothing behind: no key, row, file, socket, descriptor or process is
//! left once their records are purged.
//!
//! A round is some 350 tasks. More rounds: `RADDLE_LEAK_TASKS=10000 cargo test -p raddle-cli --test
//! cli leaks`.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use raddle_broker_connect::{BrokerUrl, connect};

use crate::{
    spawner::{end, on_redis},
    world::World,
};

/// Fewer tasks than this are not a round.
const TASKS_IN_A_ROUND: u64 = 300;
/// Rounds of a usual test run: the first makes what is made once, and the others must add nothing
/// to it.
const ROUNDS: u64 = 2;
/// `worker:TID`, which shows a worker to operators, outlives it by 15 s.
const GONE_WITHIN: Duration = Duration::from_secs(40);

/// Everything that a task can be and become, first without a worker, then on a resident worker,
/// then on one-shot workers. `$1` is how many tasks of the cheapest kinds there are.
const ROUND: &str = r#"
set -eu
n=$1 few=$(($1 / 8))
mkdir -p tmp
export TMPDIR=$PWD/tmp

# Every wait has a deadline.
eventually() {
    for _ in $(seq 1000); do if "$@"; then return; fi; sleep 0.02; done
    echo "in vain: $*" >&2
    exit 98
}
is() { [ "$(raddle task status --json "$1" | jq -r .state)" = "$2" ]; }
is_over() { [ "$(raddle status --json | jq '[.tasks | to_entries[] | select(.key | IN("created", "spawning", "running")) | .value] | add // 0')" = 0 ]; }
is_filled() { [ -s "$1" ]; }
has_fired() { [ "$(raddle schedule show --json beat | jq .fired)" -ge "$few" ]; }

serve() {
    : >worker.out
    raddle worker start --no-detach --concurrency 4 --handlers . >worker.out 2>worker.err &
    worker=$!
    eventually is_filled worker.out
}
# Open files and children of the worker.
held() { echo $(($(ls "/proc/$worker/fd" | wc -l) + $(pgrep -c -P "$worker"))); }
holds_no_more_than() { [ "$(held)" -le "$1" ]; }

submit() { raddle submit "$@" >/dev/null; }
work() {
    submit --array "1-$n" -- true
    submit --array "1-$n" --priority 7 -- echo {}
    submit --array "1-$few" -- sh -c 'head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2'
    submit --array "1-$few" -- sh -c 'echo one; sleep 0.02; echo two'
    submit --array "1-$few" --retry 2 --retry-base 10ms -- sh -c 'echo no; exit 3'
    submit --array 1-2 --timeout 100ms -- sleep 600
    submit --array "1-$few" --memory 100 -- true
    submit --array "1-$few" --queue nowhere --lifetime 10ms -- true
    submit --array "1-$few" --lifetime 1h -- true
    submit --array "1-$few" --delay 50ms -- true
    submit --array "1-$few" --unique-key 'key-{}' -- true
    submit --unique-key key-1 -- true 2>/dev/null
    submit --array "1-$few" -- raddle submit --chain -- true
    submit --array "1-$few" --handler kind -- 1
    submit --handler kind -- 2
    submit -- no-such-program
    if raddle worker list | grep -q @sandbox; then submit --array 1-2 --isolation sandbox -- true; fi

    # Ended, or held back, before a worker took them.
    tids=$(raddle submit --queue nowhere --array "1-$few" -- true)
    raddle task pause $tids >/dev/null
    raddle task resume $tids >/dev/null
    raddle task stop $tids >/dev/null
    # And while they ran.
    for word in stop kill; do
        tid=$(raddle submit --priority 9 -- sleep 600)
        eventually is "$tid" running
        raddle queue write "T$tid.inbox" hello >/dev/null
        raddle task ping "$tid" >/dev/null
        raddle task pause "$tid" >/dev/null
        raddle task resume "$tid" >/dev/null
        raddle task $word "$tid" >/dev/null
    done

    raddle schedule add beat --every 20ms -- true 2>/dev/null
    eventually has_fired
    raddle schedule remove beat >/dev/null 2>&1
    raddle queue write orders one two >/dev/null
    raddle queue read orders --limit 2 >/dev/null
    eventually is_over
    # Dead letters are submitted again, and fail again.
    raddle task retry --all-dead >/dev/null
    eventually is_over
}

# Without a worker, `run` is the worker of its task alone.
for i in $(seq "$few"); do raddle run -- sh -c 'echo out; echo err >&2' >/dev/null 2>&1; done
raddle run -- head -c 100000 /dev/zero >/dev/null
raddle run -- raddle submit --chain -- true 2>/dev/null
# A new partition wakes all workers, this one among them.
raddle run -- raddle submit --queue "new-$(date +%N)" --lifetime 10ms -- true >/dev/null
raddle run --timeout 100ms -- sleep 600 2>/dev/null && exit 97
raddle run --retry 1 --retry-base 10ms -- false && exit 97

serve
work
before=$(held)
work
# Slots replace runners when they need one: a few more is no leak, one for each task is.
eventually holds_no_more_than $((before + 20))
tid=$(raddle submit -- sh -c 'test $RADDLE_ATTEMPT != 1 || sleep 600')
eventually is "$tid" running
kill -9 $worker
wait $worker 2>/dev/null || true
serve
eventually is "$tid" completed
kill $worker
wait $worker

raddle spawner run --warm-pool 2 --max-workers 4 --handlers . >spawner.out 2>spawner.err &
spawner=$!
eventually is_filled spawner.out
submit --array "1-$few" -- echo {}
submit --array "1-$few" --handler kind -- 1
submit -- sh -c 'exit 3'
eventually is_over
kill $spawner
wait $spawner
raddle status --json | jq '[.tasks[]] | add'
"#;

/// A handler whose progress is stored before it answers, and that fails for the argument 2.
const HANDLER: &str = r#"
read task
echo '{"progress":{"percent":50,"message":"halfway"}}'
echo '{"log":"a line"}'
for _ in $(seq 500); do
    if raddle task status --json "$RADDLE_TID" | grep -q halfway; then break; fi
    sleep 0.02
done
case $task in *'[2]'*) exit 3 ;; esac
echo '{"result":1}'
"#;

/// The number of elements of each key that has any. Replies in `meta` expire, and its fields in
/// letters are counters. Outcomes of a minute expire. The list that wakes workers of a partition has a few elements at most, for
/// as long as the partition exists.
const REDIS_ELEMENTS: &str = r#"
local counts = { string = 'STRLEN', hash = 'HLEN', set = 'SCARD', zset = 'ZCARD', list = 'LLEN', stream = 'XLEN' }
local prefix, found = 'raddle:{cli}:', {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local name = string.sub(key, #prefix + 1)
  local n = redis.call(counts[redis.call('TYPE', key).ok], key)
  if name == 'meta' then
    n = 0
    for _, field in ipairs(redis.call('HKEYS', key)) do
      if not string.match(field, '^[%a_]+$') and not string.match(field, '^%x+:%d+:%d+$') then n = n + 1 end
    end
  elseif name == 'counters' then
    n = 0
    for _, value in ipairs(redis.call('HVALS', key)) do
      if value ~= '0' then n = n + 1 end
    end
  elseif name == 'partitions' or string.match(name, '^outcomes:%d+$') then
    n = 0
  elseif redis.call('SISMEMBER', prefix .. 'partitions', string.match(name, '^wake:partition:(.*)') or '') == 1 then
    n = 0
  end
  if n > 0 then found[#found + 1] = name .. ' ' .. n end
end
table.sort(found)
return table.concat(found, '\n')
"#;

/// Where the tasks are.
#[derive(Clone, Copy)]
enum Engine {
    Sqlite,
    Redis,
}

impl Engine {
    fn url(self, world: &World) -> BrokerUrl {
        let url = match self {
            Self::Sqlite => format!(
                "sqlite:{}",
                world.path().join(".raddle/raddle.db").display()
            ),
            Self::Redis => format!(
                "redis+unix:{}?namespace=cli",
                world.path().join("redis.sock").display()
            ),
        };
        url.parse().unwrap()
    }

    /// Lets the time come at which the records of all finished tasks and workers are removed.
    fn expire_records(self, world: &World) {
        let script = match self {
            Self::Sqlite => {
                "sqlite3 -cmd '.timeout 20000' .raddle/raddle.db \"UPDATE finished SET expires_at = 0;
                 UPDATE rollups SET minute = -minute;
                 DELETE FROM meta WHERE key IN ('next_expiry', 'round_expiry', 'swept_done')\""
            }
            Self::Redis => {
                "redis-cli -s redis.sock EVAL \"for _, tid in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
                 redis.call('ZADD', KEYS[1], 0, tid) end\" 1 'raddle:{cli}:retention'"
            }
        };
        world.bash(script).ok();
    }

    /// The stored rows and keys, one line for each kind.
    fn elements(self, world: &World) -> String {
        let script = match self {
            // Meta has counters, and `partitions` the queues and capabilities that tasks have named,
            // with a row of `counts` for each.
            Self::Sqlite => {
                "db() { sqlite3 -cmd '.timeout 20000' .raddle/raddle.db \"$1\"; }
                 for table in $(db \"SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT IN ('meta', 'partitions', 'counts')\"); do
                     n=$(db \"SELECT count(*) FROM $table\"); [ $n = 0 ] || echo $table $n
                 done
                 db \"SELECT 'meta ' || key FROM meta WHERE key GLOB '*[0-9]*'\"
                 db \"SELECT 'counts of ' || partition_id FROM counts WHERE ready != 0 OR delayed != 0 OR paused != 0
                     OR spawning != 0 OR running != 0 OR completed != 0 OR failed != 0 OR timeout != 0
                     OR cancelled != 0 OR killed != 0 OR dead != 0\""
            }
            Self::Redis => "redis-cli -s redis.sock --eval elements.lua",
        };
        world.bash(script).ok().text().trim().to_owned()
    }
}

fn purge(world: &World, engine: Engine) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let broker = connect(&engine.url(world)).await.unwrap();
        while broker.purge().await.unwrap() > 0 {}
    });
}

/// The rows and keys that are left after a purge. Keys that expire have time for it.
fn stored_after_purge(world: &World, engine: Engine) -> String {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        engine.expire_records(world);
        purge(world, engine);
        let left = engine.elements(world);
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Files, directories and sockets, but for those of the Redis server, which rewrites its own.
fn files(world: &World) -> Vec<String> {
    let find = "find . -path './appendonly*' -prune -o -print | sort";
    world
        .bash(find)
        .ok()
        .lines()
        .into_iter()
        .map(str::to_owned)
        .collect()
}

fn rounds() -> u64 {
    let tasks = env::var("RADDLE_LEAK_TASKS")
        .ok()
        .map(|tasks| tasks.parse::<u64>().unwrap());
    tasks.map_or(ROUNDS, |tasks| tasks.div_ceil(TASKS_IN_A_ROUND).max(ROUNDS))
}

fn leave_nothing(world: &World, engine: Engine) {
    world.file("round.sh", ROUND);
    world.file("elements.lua", REDIS_ELEMENTS);
    world.file("kind.sh", HANDLER);
    world.file(
        "kind.handler.toml",
        "name = 'kind'\ncommand = ['sh', 'kind.sh']\n",
    );
    let mut before = None;
    for round in 0..rounds() {
        let ran = world
            .bash("bash round.sh 40")
            .ok()
            .text()
            .trim()
            .parse::<u64>()
            .unwrap();
        assert!(ran >= TASKS_IN_A_ROUND, "{ran} tasks are too few");
        assert_eq!(stored_after_purge(world, engine), "", "after round {round}");
        let now = (world.processes().len(), files(world));
        let before = before.get_or_insert_with(|| now.clone());
        assert_eq!(now, *before, "after round {round}");
    }
}

#[test]
fn tasks_of_every_kind_leave_no_process_and_no_file() {
    leave_nothing(&World::new(), Engine::Sqlite);
}

#[test]
fn tasks_of_every_kind_leave_no_process_and_no_file_on_redis() {
    let (world, server) = on_redis();
    leave_nothing(&world, Engine::Redis);
    end(server);
}
