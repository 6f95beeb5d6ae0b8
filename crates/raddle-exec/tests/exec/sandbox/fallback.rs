//! Systems that refuse a layer: without a word of the task it is refused too, and with one it runs with the rest.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt};

use raddle_core::Exit;
use raddle_exec::{Request, Sandbox};

use super::{boxed, rigs_under, stdout};
use crate::support::code;

fn lenient(request: Request) -> Request {
    Request { sandbox: Some(Sandbox { fallback: true, ..Sandbox::default() }), ..request }
}

/// Folders of sandboxes without a root, as they are found among temporary files.
fn scratches() -> Vec<String> {
    let names = fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("raddle-scratch-")).collect()
}

#[tokio::test]
async fn what_the_system_refuses_is_named_and_done_without_if_the_task_says_so() {
    for (refused, layer) in [
        ("namespaces", "namespaces of its own"),
        ("mount", "a root of its own"),
        ("landlock", "landlock"),
        ("filter", "a filter of system calls"),
    ] {
        for mut rig in rigs_under(&format!("refusing {refused}")).await {
            let request = boxed(rig.sh("echo ran"));
            let ran = rig.run(&request).await;
            let Exit::SpawnFailed { message } = ran.done.exit else { panic!("{refused}: {:?}", ran.done.exit) };
            assert!(message.starts_with(&format!("this system refuses the sandbox {layer} (")), "{message}");
            assert_eq!(ran.stdout, b"");
            let ran = rig.run(&lenient(request)).await;
            let said = String::from_utf8(ran.stderr.clone()).unwrap();
            assert!(said.contains(layer) && said.contains("isolation_fallback"), "{refused}: {said}");
            assert_eq!(stdout(&ran), "ran\n");
            rig.finish().await;
        }
    }
}

#[tokio::test]
async fn several_layers_can_be_lacking() {
    for mut rig in rigs_under("refusing namespaces,landlock,filter").await {
        let ran = rig.run(&lenient(rig.sh("grep NoNewPrivs /proc/self/status; env | grep -c CARGO"))).await;
        assert_eq!(String::from_utf8_lossy(&ran.stderr).matches("isolation_fallback").count(), 3);
        assert_eq!((ran.stdout, ran.done.exit), (b"NoNewPrivs:\t1\n0\n".to_vec(), code(1)));
        rig.finish().await;
    }
}

#[tokio::test]
async fn nothing_is_said_where_nothing_is_lacking() {
    for mut rig in rigs_under("").await {
        let ran = rig.run(&lenient(rig.sh("pwd"))).await;
        assert_eq!((stdout(&ran).as_str(), ran.stderr), ("/scratch\n", Vec::new()));
        rig.finish().await;
    }
}

/// What is left of a sandbox without namespaces still keeps most things apart.
#[tokio::test]
async fn without_namespaces_files_and_network_are_kept_from_it_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "the secret").unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    let script = format!(
        "import os, socket\n\
         for at in ['{secret}', '/proc/%d/environ' % os.getppid(), '/etc/shadow']:\n  \
           try: open(at).read(); print('read', at)\n  \
           except OSError: pass\n\
         for at in ['{folder}/new', '/tmp/raddle-new', '/usr/new']:\n  \
           try: open(at, 'w'); print('wrote', at)\n  \
           except OSError: pass\n\
         try: socket.create_connection(('{host}', {port})); print('connected')\n\
         except OSError: pass\n\
         open('own', 'w').write('x'); open(os.environ['TMPDIR'] + '/more', 'w').write('x')\n\
         print(os.getuid() != 0, os.getcwd() == os.environ['HOME'], sorted(os.listdir('.')))",
        secret = secret.display(),
        folder = folder.path().display(),
        host = address.ip(),
        port = address.port(),
    );
    for mut rig in rigs_under("refusing namespaces").await {
        let ran = rig.run(&lenient(rig.command(&["python3", "-c", &script]))).await;
        assert_eq!(stdout(&ran), "True True ['more', 'own']\n");
        // What it starts ends with it, and what it wrote is gone.
        let ran = rig.run(&lenient(rig.sh("setsid sleep 300 & pwd; mkdir -p a/b; chmod 0 a"))).await;
        let scratch = stdout(&ran).trim().to_owned();
        assert!(scratch.contains("raddle-scratch-") && !fs::exists(&scratch).unwrap(), "{scratch}");
        rig.finish().await;
    }
    let own = std::process::id().to_string();
    assert!(!scratches().iter().any(|name| name.contains(&own)), "{:?}", scratches());
}
