//! Imitates a kernel that refuses parts of a sandbox: installs a seccomp filter for this process
//! and its children.

use std::{io, os::unix::process::CommandExt, process::Command};

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

/// Executes this program with these arguments on a kernel that refuses `what`. Returns only on
/// failure.
pub(crate) fn exec_refusing(what: &str, arguments: impl Iterator<Item = String>) -> io::Error {
    let mut rules = vec![load(0)];
    for word in what.split(',') {
        match word {
            "namespaces" => rules.extend([
                jump(BPF_JEQ, libc::SYS_clone as u32, 0, 4),
                load(16),
                jump(BPF_JSET, libc::CLONE_NEWUSER as u32, 0, 1),
                refuse(libc::EPERM),
                load(0),
            ]),
            "mount" => rules.extend([
                jump(BPF_JEQ, libc::SYS_mount as u32, 0, 1),
                refuse(libc::EPERM),
            ]),
            "landlock" => {
                rules.extend([
                    jump(BPF_JEQ, libc::SYS_landlock_create_ruleset as u32, 0, 1),
                    refuse(libc::ENOSYS),
                ]);
            }
            "filter" => rules.extend([
                jump(BPF_JEQ, libc::SYS_seccomp as u32, 0, 1),
                refuse(libc::ENOSYS),
            ]),
            _ => return io::Error::other("that cannot be refused"),
        }
    }
    rules.push(rule(BPF_RET | BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: rules.len() as u16,
        filter: rules.as_mut_ptr(),
    };
    // SAFETY: plain integers, and a program that outlives the call, which copies it.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    if installed != 0 {
        return io::Error::last_os_error();
    }
    Command::new("/proc/self/exe").args(arguments).exec()
}

fn load(offset: u32) -> sock_filter {
    rule(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset)
}

fn jump(test: u32, with: u32, if_so: u8, if_not: u8) -> sock_filter {
    rule(BPF_JMP | test | BPF_K, if_so, if_not, with)
}

fn refuse(errno: i32) -> sock_filter {
    rule(
        BPF_RET | BPF_K,
        0,
        0,
        libc::SECCOMP_RET_ERRNO | errno as u32,
    )
}

fn rule(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}
