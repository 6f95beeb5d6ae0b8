//! Escapes by names, files and sockets.

use std::{
    io::Read,
    os::unix::net::{SocketAddr, UnixListener},
    os::{
        linux::net::SocketAddrExt,
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::PathBuf,
};

use super::{CALL, boxed, rigs, sh, stdout};

/// A broker listens on a socket with a path or an abstract name.
#[tokio::test]
async fn cannot_reach_sockets_of_the_worker() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = directory.path().join("broker.sock");
    let by_path = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    let name = format!("raddle-test-{}", std::process::id());
    let by_name = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    for listener in [&by_path, &by_name] {
        listener.set_nonblocking(true).unwrap();
    }
    let script = format!(
        "import socket\nfor at in ['{}', '\\0{name}']:\n  \
           s = socket.socket(socket.AF_UNIX)\n  \
           try: s.connect(at); print('reached', at)\n  \
           except OSError: pass\nprint('end')",
        path.display()
    );
    for mut rig in rigs().await {
        let request = boxed(rig.command(&["python3", "-c", &script]));
        assert_eq!(stdout(&rig.run(&request).await), "end\n");
        rig.finish().await;
    }
    assert!(by_path.accept().is_err() && by_name.accept().is_err());
}

/// The loader prints debug output on request, except for a program that runs with another user's
/// rights.
#[tokio::test]
async fn setuid_programs_grant_nothing() {
    let is_setuid = |path: &PathBuf| {
        let dynamic = || {
            let mut head = [0; 4096];
            let mut file = std::fs::File::open(path).ok()?;
            let n = file.read(&mut head).ok()?;
            head[..n]
                .windows(3)
                .any(|part| part == b"ld-")
                .then_some(())
        };
        std::fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o4000 != 0)
            && dynamic().is_some()
    };
    let programs: Vec<_> = std::fs::read_dir("/usr/bin")
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(is_setuid)
        .collect();
    assert!(!programs.is_empty(), "every system has one");
    for mut rig in rigs().await {
        for program in &programs {
            let tries = format!(
                "LD_SHOW_AUXV=1 {} --version < /dev/null 2>&1 | grep -E '^AT_(SECURE|EUID):'",
                program.display()
            );
            let said = stdout(&sh(&mut rig, &tries).await);
            let said: Vec<&str> = said.split_whitespace().collect();
            assert_eq!(
                said,
                ["AT_EUID:", "1000", "AT_SECURE:", "0"],
                "{}",
                program.display()
            );
        }
        // It can neither create one nor change its user.
        let own = "cp /usr/bin/id .; chmod 4755 id; ./id -u; chown 0 id 2>/dev/null && echo given; ls -n id | cut -d' ' -f3";
        assert_eq!(stdout(&sh(&mut rig, own).await), "1000\n1000\n");
        let others = "import os\nfor to in (0, 65534):\n  try: os.setuid(to); print('is', to)\n  except OSError: pass\nprint('end')";
        let request = boxed(rig.command(&["python3", "-c", others]));
        assert_eq!(stdout(&rig.run(&request).await), "end\n");
        rig.finish().await;
    }
}

#[tokio::test]
async fn no_descriptor_or_link_leads_out() {
    for mut rig in rigs().await {
        // The standard three, and the one that lists them.
        assert_eq!(
            stdout(&sh(&mut rig, "ls /proc/self/fd | wc -l").await),
            "4\n"
        );
        let links = "for at in /proc/self/root /proc/self/cwd/.. /proc/1/root /proc/1/cwd /proc/thread-self/root /proc/self/task/*/root; do \
                     ls -d $at/root $at/home $at/var 2>/dev/null; done; true";
        assert_eq!(stdout(&sh(&mut rig, links).await), "");
        let up = "cd /scratch; ln -s ../../../../../.. up; ls -d up/root up/home 2>/dev/null; \
                  ln -s /proc/1/root/etc/shadow shadow; cat shadow 2>/dev/null; mkdir -p a/b; cd a/b; ls -d ../../../../root 2>/dev/null; true";
        assert_eq!(stdout(&sh(&mut rig, up).await), "");
        let kernel = "for at in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/self/mem /proc/1/mem /proc/kmsg /sys/kernel; do \
                      [ $at = /proc/self/mem ] || { [ -e $at ] && (: > $at) 2>/dev/null && echo $at; }; done; true";
        assert_eq!(stdout(&sh(&mut rig, kernel).await), "");
        // File handles need no names.
        let by_handle = format!(
            "{CALL}print(call({}, -100, 0, 0))",
            libc::SYS_open_by_handle_at
        );
        let request = boxed(rig.command(&["python3", "-c", &by_handle]));
        assert_eq!(
            stdout(&rig.run(&request).await),
            "Operation not permitted\n"
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn allows_to_query_but_not_to_change_the_personality() {
    for mut rig in rigs().await {
        let tries = format!(
            "{CALL}print([call({0}, what) for what in (0xffffffff, 0, 0x40000)], [call({1}, family, 1, 0, 0) for family in (2, 30)])",
            libc::SYS_personality,
            libc::SYS_socketpair
        );
        let request = boxed(rig.command(&["python3", "-c", &tries]));
        let no_family = "Address family not supported by protocol";
        let said =
            format!("['done', 'done', 'Operation not permitted'] ['{no_family}', '{no_family}']\n");
        assert_eq!(stdout(&rig.run(&request).await), said);
        rig.finish().await;
    }
}

/// `open_tree_attr` (Linux 6.15) mounts. The filter refuses it as it does all calls newer than
/// itself.
#[tokio::test]
async fn answers_newer_system_calls_with_enosys() {
    for mut rig in rigs().await {
        let tries = format!(
            "{CALL}print([call(number, -100, 0, 0, 0, 0) for number in (467, 600, 0x3fffffff)])"
        );
        let request = boxed(rig.command(&["python3", "-c", &tries]));
        let absent = "'Function not implemented'";
        assert_eq!(
            stdout(&rig.run(&request).await),
            format!("[{absent}, {absent}, {absent}]\n")
        );
        rig.finish().await;
    }
}

/// Devices belong to the host and all its users, although a command without input reads from one.
#[tokio::test]
async fn cannot_change_devices_of_the_host() {
    let owners = || {
        ["/dev/null", "/dev/zero", "/dev/urandom"].map(|path| {
            let found = std::fs::metadata(path).unwrap();
            (found.uid(), found.gid(), found.mode())
        })
    };
    let before = owners();
    for mut rig in rigs().await {
        let request =
            boxed(rig.command(&["sh", "-c", "touch -c -d @1 /dev/null /dev/stdin; true"]));
        rig.run(&request).await;
        rig.finish().await;
        assert_eq!(owners(), before);
    }
}

/// A search for a program must not reveal which files the host has.
#[tokio::test]
async fn program_search_reveals_no_files_of_the_host() {
    for mut rig in rigs().await {
        let mut said = Vec::new();
        for name in ["shadow", "no-such-file"] {
            let mut request = boxed(rig.command(&[name]));
            request.env.push((
                "PATH".into(),
                "/usr/../etc:/usr/./../etc:/usr//../etc".into(),
            ));
            said.push(format!("{:?}", rig.run(&request).await.done.exit).replace(name, ""));
        }
        rig.finish().await;
        assert_eq!(said[0], said[1]);
    }
}
