//! Files and directories that are not as they should be.

use std::{fs, path::Path};

use raddle_testnet::is_root;

use crate::world::{CommandOutput, World};

/// Every command that opens the database leaves with 125, names it, and leaves it as it is.
fn refused(world: &World, path: &Path, says: &str) {
    let before = fs::read(path).unwrap();
    let commands: [&[&str]; 6] = [
        &["run", "--", "true"],
        &["submit", "--", "true"],
        &["status"],
        &["task", "list"],
        &["queue", "write", "q", "x"],
        &["worker", "start"],
    ];
    for command in commands {
        let ran = world
            .raddle(command)
            .code(125)
            .stderr_contains("raddle.db")
            .stderr_contains(says);
        assert!(ran.stdout.is_empty(), "{ran:?}");
        assert_eq!(ran.stderr.matches("raddle: ").count(), 1, "{ran:?}");
    }
    let doctor = world.raddle(["doctor"]).code(1);
    assert!(doctor.text().contains("error "), "{}", doctor.text());
    assert_eq!(fs::read(path).unwrap(), before, "the file is as it was");
}

/// Nothing was made beside the file.
fn alone(path: &Path) {
    let beside: Vec<_> = fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
}

fn database(world: &World, content: &[u8]) -> std::path::PathBuf {
    fs::create_dir(world.path().join(".raddle")).unwrap();
    world.file(".raddle/raddle.db", content)
}

#[test]
fn does_not_touch_a_file_that_is_no_database() {
    let world = World::new();
    let path = database(&world, &b"this is a stranger's diary. ".repeat(100));
    refused(&world, &path, "not a Raddle database");
    alone(&path);
}

#[test]
fn does_not_touch_the_database_of_another_program() {
    let world = World::new();
    let path = database(&world, b"");
    world
        .bash("sqlite3 .raddle/raddle.db 'CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1);'")
        .ok();
    refused(&world, &path, "another program's");
    alone(&path);
}

#[test]
fn refuses_a_wal_without_its_database() {
    let world = World::new();
    (0..3).for_each(|_| drop(world.submit(&["--", "true"])));
    let path = world.path().join(".raddle/raddle.db");
    let away = world.path().join("away.db");
    fs::rename(&path, &away).unwrap();
    refused(
        &world,
        &world.path().join(".raddle/raddle.db-wal"),
        "is missing, but its WAL exists",
    );
    fs::rename(&away, &path).unwrap();
    assert_eq!(
        world.raddle(["status", "--json"]).ok().json()["tasks"]["created"],
        3
    );
}

#[test]
fn does_not_touch_a_database_of_a_newer_version() {
    let world = World::new();
    world.raddle(["run", "--", "true"]).ok();
    world.bash("sqlite3 .raddle/raddle.db 'PRAGMA user_version = 4711; PRAGMA wal_checkpoint(TRUNCATE);'").ok();
    for name in ["raddle.db-wal", "raddle.db-shm", "raddle.db-state"] {
        let _ = fs::remove_file(world.path().join(".raddle").join(name));
    }
    refused(&world, &world.path().join(".raddle/raddle.db"), "upgrade");
}

#[test]
fn does_not_touch_a_damaged_database() {
    let world = World::new();
    world.raddle(["run", "--", "true"]).ok();
    world
        .bash("sqlite3 .raddle/raddle.db 'PRAGMA wal_checkpoint(TRUNCATE);'")
        .ok();
    for name in ["raddle.db-wal", "raddle.db-shm", "raddle.db-state"] {
        let _ = fs::remove_file(world.path().join(".raddle").join(name));
    }
    let path = world.path().join(".raddle/raddle.db");
    let mut bytes = fs::read(&path).unwrap();
    // The header stays, so that it still looks like ours; the pages behind it are noise.
    bytes[100..]
        .iter_mut()
        .enumerate()
        .for_each(|(i, byte)| *byte = (i * 31 % 251) as u8);
    fs::write(&path, &bytes).unwrap();
    let ran = world
        .raddle(["run", "--", "true"])
        .code(125)
        .stderr_contains("raddle.db")
        .stderr_contains("damaged");
    assert!(ran.stdout.is_empty());
    assert_eq!(fs::read(&path).unwrap(), bytes, "the file is as it was");
    world.raddle(["doctor"]).code(1);
}

#[test]
fn names_a_directory_without_write_permission() {
    let world = World::new();
    world.file("file", "");
    world
        .raddle(["run", "--queue-url", "sqlite:file/x.db", "--", "true"])
        .code(125)
        .stderr_contains("file");
    world
        .raddle([
            "run",
            "--queue-url",
            "sqlite:absent/directory/x.db",
            "--",
            "true",
        ])
        .code(125)
        .stderr_contains("does not exist");
    fs::create_dir(world.path().join("ro")).unwrap();
    let script =
        "set -e; mount -t tmpfs none ro; mount -o remount,ro ro; cd ro; raddle run -- true";
    world
        .bash_in_namespaces(script)
        .code(125)
        .stderr_contains("cannot write")
        .stderr_contains("ro/.raddle");
}

/// "None" with exit code 0 would look like a broker without work.
#[test]
fn names_a_missing_broker() {
    let world = World::new();
    let commands: [&[&str]; 5] = [
        &["status"],
        &["task", "list"],
        &["queue", "list"],
        &["worker", "stop", "--all"],
        &["task", "retry", "--all-dead"],
    ];
    for command in commands {
        let ran = world
            .raddle([&["--queue-url", "sqlite:absent/directory/x.db"], command].concat())
            .code(2);
        let ran = ran
            .stderr_contains("no broker at sqlite:")
            .stderr_contains("absent/directory/x.db")
            .stderr_contains("Check --queue-url");
        assert!(ran.stdout.is_empty(), "{ran:?}");
    }
    let doctor = world
        .raddle(["--queue-url", "sqlite:absent/directory/x.db", "doctor"])
        .code(1);
    assert!(
        doctor.text().contains("error broker, database: "),
        "{}",
        doctor.text()
    );
    world.file("raddle.toml", "queue_url = 'sqlite:x.db'");
    world
        .raddle(["status"])
        .code(2)
        .stderr_contains("raddle.toml names does not exist");
    assert!(!world.path().join("x.db").exists() && !world.path().join("absent").exists());
}

#[test]
fn a_command_in_a_directory_below_the_project_names_the_project() {
    let world = World::new();
    world.submit(&["--", "true"]);
    let ran = world
        .bash("mkdir -p sub/dir && cd sub/dir && raddle status")
        .code(2);
    let ran = ran
        .stderr_contains("sub/dir/.raddle/raddle.db")
        .stderr_contains("has a broker. Run 'cd ");
    let named = ran
        .stderr
        .split("'cd ")
        .nth(1)
        .unwrap()
        .split('\'')
        .next()
        .unwrap();
    assert_eq!(
        fs::canonicalize(named).unwrap(),
        fs::canonicalize(world.path()).unwrap()
    );
}

#[test]
fn a_project_on_a_read_only_mount_can_be_read_and_not_written() {
    let world = World::new();
    fs::create_dir(world.path().join("ro")).unwrap();
    let script = r#"mount -t tmpfs none ro && cd ro || exit 99
        tid=$(raddle run --json -- echo kept | jq -r .tid)
        large=$(raddle run --json -- head -c 100000 /dev/zero | jq -r .tid)
        raddle submit -- true >/dev/null
        look() {
            raddle status --json | jq -c '[.tasks.created, .tasks.completed, (.workers | length)]'
            raddle task list --json | jq length
            raddle result $tid; raddle logs $tid; raddle logs $large | wc -c; raddle worker list --json
            raddle doctor >/dev/null; echo "doctor $?"
        }
        mount -o remount,ro .
        look
        for command in 'run -- true' 'submit -- true' 'worker start' 'queue write q x'; do
            raddle $command; echo $?
        done
        # As a backup has it: the database alone.
        mount -o remount,rw . && sqlite3 .raddle/raddle.db 'PRAGMA wal_checkpoint(TRUNCATE)' >/dev/null
        rm .raddle/raddle.db-wal .raddle/raddle.db-shm .raddle/raddle.db-state && mount -o remount,ro .
        look"#;
    let ran = world.bash_in_namespaces(script).ok();
    let looked = "[1,2,0]\n3\nkept\nkept\n100000\n[]\ndoctor 0\n";
    assert_eq!(
        ran.text(),
        format!("{looked}{}{looked}", "125\n".repeat(4)),
        "{}",
        ran.stderr
    );
    let advice = "raddle.db: its file system is read-only: mount it for writing";
    assert_eq!(ran.stderr.matches(advice).count(), 4, "{}", ran.stderr);
}

#[test]
fn a_full_disk_loses_nothing_that_was_accepted() {
    let world = World::new();
    fs::create_dir(world.path().join("small")).unwrap();
    let script = "mount -t tmpfs -o size=2m none small && cd small || exit 99
        raddle submit --array 1-100000 -- true > ../accepted; echo $?
        raddle status --json | jq .tasks.created
        mount -o remount,size=20m .
        raddle run -- echo there is room again";
    let ran = world
        .bash_in_namespaces(script)
        .ok()
        .stderr_contains("no space left");
    let lines = ran.lines();
    let accepted = world.read("accepted").lines().count();
    assert_eq!(
        (lines[0], lines[2]),
        ("125", "there is room again"),
        "{ran:?}"
    );
    assert!(
        lines[1].parse::<usize>().unwrap() >= accepted && accepted > 0,
        "{accepted} were accepted: {ran:?}"
    );
}

#[test]
fn a_run_reports_output_that_does_not_fit_on_the_disk() {
    let world = World::new();
    fs::create_dir(world.path().join("small")).unwrap();
    let script = r#"mount -t tmpfs -o size=2m none small && cd small || exit 99
        raddle run -- true
        dd if=/dev/zero of=filler bs=1k count=1400 2>/dev/null
        raddle run -- seq 130000 >/dev/null 2>../words &
        for i in $(seq 500); do grep -q 'cannot be kept yet' ../words && break; sleep 0.02; done
        rm filler; wait $!; echo $?"#;
    let ran = world.bash_in_namespaces(script).ok();
    assert_eq!(ran.text(), "0\n", "{ran:?}");
    let words = world.read("words");
    assert!(
        words.contains("output cannot be stored yet") && words.contains("no space left"),
        "{words}"
    );
}

/// In place of ending, to be started again and again by what keeps it.
#[test]
fn workers_and_managers_that_start_on_a_full_disk_wait_for_space() {
    let world = World::new();
    fs::create_dir(world.path().join("small")).unwrap();
    world.file(
        "groups.toml",
        "[process.w]\nreplicas = 2\n[[process.w.worker]]\nslug = 'w'\ncommand = ['true']\n",
    );
    let script = r#"
        set -eu
        mount -t tmpfs -o size=4m none small; cp groups.toml small/raddle.toml; cd small
        raddle run -- true
        fill() { dd if=/dev/zero of=filler bs=1k 2>/dev/null || true; }
        full() { until grep -qs 'waiting for space.*no space left\|no space left.*waiting for space' "$1"; do sleep 0.02; done; }
        ends() { kill -TERM "$1"; code=0; wait "$1" || code=$?; echo "ends with $code"; }
        for what in 'worker start --no-detach' 'spawner run --warm-pool 2' up; do
            echo "$what"
            fill
            rm -f ../out ../words
            raddle $what >../out 2>../words & starting=$!
            full ../words
            ends $starting
            rm -f ../out ../words
            raddle $what >../out 2>../words & starting=$!
            full ../words
            rm filler
            until [ -s ../out ]; do sleep 0.02; done
            tid=$(raddle submit --queue "$([ "$what" = up ] && echo w || echo default)" -- true)
            raddle wait --timeout 60 "$tid" | cut -d' ' -f2
            grep -c 'waiting for space' ../words
            ends $starting
        done"#;
    let one = "ends with 0\ncompleted\n1\nends with 0\n";
    let expected: String = [
        "worker start --no-detach",
        "spawner run --warm-pool 2",
        "up",
    ]
    .map(|what| format!("{what}\n{one}"))
    .concat();
    let ran = world.bash_in_namespaces(script).ok();
    assert_eq!(ran.text(), expected, "{}", world.read("words"));
}

/// A worker that is to start says in the end what keeps it.
#[test]
fn a_background_worker_reports_a_full_disk() {
    let world = World::new();
    fs::create_dir(world.path().join("small")).unwrap();
    let script = "mount -t tmpfs -o size=4m none small && cd small || exit 99
        raddle run -- true; dd if=/dev/zero of=filler bs=1k 2>/dev/null
        raddle worker start";
    world
        .bash_in_namespaces(script)
        .code(125)
        .stderr_contains("did not start within 10 s")
        .stderr_contains("no space left");
}

/// Those that keep workers start no more of them than the disk has space for, and their workers go
/// on when there is space.
#[test]
fn a_full_disk_causes_no_restart_storm() {
    let world = World::new();
    fs::create_dir(world.path().join("small")).unwrap();
    world.file(
        "groups.toml",
        "[process.w]\nreplicas = 3\n[[process.w.worker]]\nslug = 'w'\ncommand = ['true']\n",
    );
    let script = r#"
        set -eu
        mount -t tmpfs -o size=8m none small; cp groups.toml small/raddle.toml; cd small
        raddle up >../up 2>../up.log & up=$!
        raddle spawner run --warm-pool 3 >../spawner 2>../spawner.log & spawner=$!
        workers() { raddle worker list --json | jq "[.[] | select(.type == \"$1\")] | length"; }
        until [ "$(workers resident)" = 3 ] && [ "$(workers one-shot)" = 3 ]; do sleep 0.05; done
        dd if=/dev/zero of=filler bs=1k 2>/dev/null || true
        pkill -KILL -f 'raddle-[0-9]*:(w|worker):'
        for log in up spawner; do until grep -qs 'waiting for space' ../$log.log; do sleep 0.05; done; done
        # Long enough for each to have been started again several times.
        sleep 5
        echo "exits $(cat ../up.log ../spawner.log | grep -c 'exited with 125')"
        rm filler
        for queue in default w; do
            tid=$(raddle submit --queue $queue -- true)
            raddle wait --timeout 60 "$tid" | cut -d' ' -f2
        done
        kill $up $spawner; wait $up; wait $spawner; echo left"#;
    let ran = world.bash_in_namespaces(script);
    let logs = [world.read("up.log"), world.read("spawner.log")].concat();
    assert_eq!(
        ran.text(),
        "exits 0\ncompleted\ncompleted\nleft\n",
        "{ran:?}\n{logs}"
    );
}

#[test]
fn stops_a_worker_whose_result_does_not_fit_on_the_disk() {
    let world = World::new();
    fs::create_dir(world.path().join("small")).unwrap();
    let script = r#"
        set -eu
        mount -t tmpfs -o size=8m none small; cd small
        raddle worker start --no-detach >../worker 2>../words &
        worker=$!
        tid=$(raddle submit -- sh -c 'echo ran >>../ran; while ! [ -e ../go ]; do sleep 0.01; done; head -c 60000 /dev/zero')
        until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
        dd if=/dev/zero of=filler bs=1k 2>/dev/null || true
        touch ../go
        until grep -q 'cannot be written yet' ../words; do sleep 0.02; done
        for signal in TERM TERM TERM; do kill -$signal $worker; sleep 0.2; done
        timeout 20 tail --pid=$worker -f /dev/null
        grep -q "could not be written: it will run again tid=$tid" ../words && echo "named it"
        rm filler
        raddle worker start >../again
        raddle wait --timeout 30 "$tid" | cut -d' ' -f2
        wc -l <../ran"#;
    assert_eq!(
        world.bash_in_namespaces(script).ok().text(),
        "named it\ncompleted\n2\n"
    );
}

#[test]
fn stops_a_worker_whose_database_stays_locked() {
    let world = World::new();
    let script = r#"
        set -eu
        raddle worker start --no-detach >worker 2>words &
        worker=$!
        tid=$(raddle submit -- sh -c 'echo ran >>ran; while ! [ -e go ]; do sleep 0.01; done')
        until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
        exec 9<.raddle/raddle.db-state
        flock 9
        touch go
        # Long enough for the task to end: what is then under way stands still in the kernel.
        sleep 0.5
        for signal in TERM TERM TERM; do kill -$signal $worker; sleep 0.2; done
        timeout 20 tail --pid=$worker -f /dev/null && echo "left"
        exec 9<&-
        grep -q "could not be written: it will run again tid=$tid" words && echo "named it"
        raddle worker start >again
        raddle wait --timeout 30 "$tid" | cut -d' ' -f2
        wc -l <ran"#;
    assert_eq!(
        world.bash(script).ok().text(),
        "left\nnamed it\ncompleted\n2\n"
    );
}

/// It would live for ever otherwise, where no command finds it.
#[test]
fn workers_exit_when_their_database_is_deleted_or_replaced() {
    let world = World::new();
    let script = r#"
        set -eu
        for way in deleted replaced; do
            mkdir $way; cd $way
            raddle worker start --no-detach --concurrency 1 >busy 2>busy.err & busy=$!
            tid=$(raddle submit -- sleep 600)
            until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
            raddle worker start --no-detach --queues other >idle 2>idle.err & idle=$!
            until [ "$(raddle worker list --json | jq length)" = 2 ]; do sleep 0.02; done
            rm -r .raddle
            [ $way = deleted ] || raddle submit --queue other -- true >/dev/null
            for pid in $busy $idle; do
                timeout 30 tail --pid=$pid -f /dev/null
                code=0; wait $pid || code=$?
                echo $code
            done
            grep -lE '^raddle: .*raddle.db: was deleted or replaced' busy.err idle.err
            cd ..
        done
        ls -d deleted/.raddle 2>/dev/null || echo none
        cd replaced; raddle status --json | jq -c '[.tasks.created, (.workers | length)]'"#;
    let ended = "125\n125\nbusy.err\nidle.err\n".repeat(2);
    assert_eq!(
        world.bash(script).ok().text(),
        format!("{ended}none\n[1,0]\n")
    );
}

/// The start of a script that acts as other users. Only root can do that.
const AS_OTHERS: &str = r#"
    set -eu
    umask 022
    cp "$(command -v raddle)" raddle; chmod a+rx raddle .; program=$PWD/raddle
    as() { local user=$1; shift; setpriv --reuid="$user" --regid="$user" --clear-groups "$@"; }
"#;

fn as_others(world: &World, script: &str) -> Option<CommandOutput> {
    is_root("act for several users").then(|| world.bash(&format!("{AS_OTHERS}{script}")))
}

/// In a directory that every user can write to, a project file may belong to any of them.
#[test]
fn refuses_project_files_of_another_user() {
    let world = World::new();
    let script = r#"
        mkdir file directory link; chmod 1777 file directory link; mkdir file/below
        (cd file; as 4711 sh -c "echo \"queue_url = 'sqlite:theirs.db'\" >raddle.toml"; as 4711 "$program" submit -- touch "$PWD/harm" >/dev/null)
        (cd directory; as 4711 "$program" submit -- touch "$PWD/harm" >/dev/null)
        (cd link; as 4711 ln -s ../mine.toml raddle.toml); echo >mine.toml
        for place in file file/below directory link; do
            for command in 'worker start' 'run -- true' 'submit -- true' status; do
                code=0; (cd $place; "$program" $command >/dev/null 2>../words$code) || code=$?
                echo "$place $command: $code"
            done
        done
        # The owner can be chosen: by path, by sudo, or by a nearer file of the own user.
        "$program" --queue-url "sqlite:$PWD/directory/.raddle/raddle.db" status --json | jq .tasks.created
        (cd directory; SUDO_UID=4711 "$program" status --json | jq .tasks.created)
        (cd file/below; echo >raddle.toml; "$program" run -- echo mine)
        ls file/harm directory/harm 2>/dev/null || echo no harm"#;
    let Some(ran) = as_others(&world, script) else {
        return;
    };
    let refused = ["file", "file/below", "directory", "link"].map(|place| {
        ["worker start", "run -- true", "submit -- true", "status"]
            .map(|command| format!("{place} {command}: 2\n"))
            .concat()
    });
    assert_eq!(
        ran.ok().text(),
        format!("{}1\n1\nmine\nno harm\n", refused.concat())
    );
    let words = world.read("words0");
    assert!(
        words.contains("belongs to user 4711") && words.contains("--queue-url"),
        "{words}"
    );
}

#[test]
fn does_not_block_on_a_project_file_that_is_a_fifo() {
    let world = World::new();
    world.bash("mkfifo raddle.toml").ok();
    world
        .raddle(["status"])
        .code(2)
        .stderr_contains("raddle.toml")
        .stderr_contains("not a file");
}

/// Specs hold what people put into environments.
#[test]
fn files_are_private_whatever_the_umask() {
    let world = World::new();
    let script = r#"
        try() {
            umask "$1"
            "$program" run -- true
            "$program" worker start --concurrency 1 --serve "$PWD/socket" >/dev/null
            "$program" run -- head -c 100000 /dev/zero >/dev/null
            "$program" --queue-url "unix:$PWD/socket" run -- true
            find . ! -type d -printf '%P %m\n' | grep -v 'toml' | grep -v ' 600$' || true
            find . -mindepth 1 -type d -printf '%P %m\n' | grep -v ' 700$' || true
            find . -name '*.out' | grep -c .
            "$program" worker stop --all >/dev/null
        }
        export -f try; export program
        for mask in 0000 0022 0777; do
            mkdir a$mask b$mask; chown 4711 a$mask b$mask
            (cd a$mask; as 4711 bash -c "try $mask")
            # A directory and an empty file that were there before.
            (cd b$mask; as 4711 bash -c "touch x.db; echo \"queue_url = 'sqlite:x.db'\" >raddle.toml; try $mask")
        done"#;
    let Some(ran) = as_others(&world, script) else {
        return;
    };
    assert_eq!(ran.ok().text(), "1\n".repeat(6));
}

/// Root works on it once, and its owner goes on.
#[test]
fn files_that_root_creates_belong_to_the_owner_of_the_database() {
    let world = World::new();
    let script = r#"
        mkdir theirs; chown 4711 theirs; cd theirs
        as 4711 "$program" run -- true
        rm .raddle/raddle.db-*
        SUDO_UID=4711 "$program" run -- head -c 100000 /dev/zero >/dev/null
        find . ! -user 4711
        as 4711 "$program" worker start --concurrency 1 >/dev/null
        as 4711 "$program" run -- head -c 100000 /dev/zero | wc -c
        as 4711 "$program" worker stop --all | cut -d' ' -f2
        # The other way round it is said whose it is.
        mkdir ../mine; cd ../mine; "$program" run -- true; chmod 777 . .raddle
        as 4711 "$program" status 2>&1 | grep -c 'belongs to user 0, and you are user 4711'"#;
    let Some(ran) = as_others(&world, script) else {
        return;
    };
    assert_eq!(ran.ok().text(), "100000\ncompleted\n1\n");
}

#[test]
fn a_new_project_directory_is_ignored_by_git() {
    let world = World::new();
    world.submit(&["--", "true"]);
    assert_eq!(world.read(".raddle/.gitignore"), "*\n");
    // A directory that users have made is theirs, and so is a file that they have changed.
    fs::remove_file(world.path().join(".raddle/.gitignore")).unwrap();
    world.submit(&["--", "true"]);
    fs::create_dir(world.path().join("mine")).unwrap();
    for url in ["sqlite:mine/work.db", "sqlite:made/work.db"] {
        world
            .raddle(["--queue-url", url, "submit", "--", "true"])
            .ok();
    }
    for directory in [".raddle", "mine", "made"] {
        assert!(
            !world.path().join(directory).join(".gitignore").exists(),
            "{directory}"
        );
    }
}
