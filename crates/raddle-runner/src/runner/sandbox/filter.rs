//! The seccomp filter. It refuses system calls that few commands need and in which most kernel
//! vulnerabilities were found: mounts, namespaces, modules, tracing, keys, BPF programs.

use std::io;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, c_long, sock_filter,
};

use crate::sys;

/// Refused with `EPERM`, whatever their arguments.
const REFUSED: &[c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // Mounts and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_quotactl_fd,
    // Namespaces.
    libc::SYS_unshare,
    libc::SYS_setns,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_memfd_secret,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Keys are shared with all processes of a user.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The machine's clock and host name.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Flags of clone(2) for new namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;
/// ioctls that inject input into a terminal.
const TERMINAL_INJECTION: [u32; 2] = [libc::TIOCSTI as u32, 0x541c];
/// Socket families that a network namespace confines. Other families bypass it.
const FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
/// The default protocol of a family, ICMP, TCP, UDP, and ICMPv6.
const PROTOCOLS: [u32; 5] = [0, 1, 6, 17, 58];
/// Allowed arguments of personality(2): query, and PER_LINUX. Others disable protections.
const PERSONALITIES: [u32; 2] = [u32::MAX, 0];

/// Maximum size of a System V shared memory segment. Segments stay when no process has them mapped;
/// with this size they add up to at most 256 MiB.
const LARGEST_SEGMENT: u32 = 64 * 1024;

/// Which sockets can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sockets {
    /// Families that a network namespace confines.
    Usual,
    /// Socket pairs only: without a network namespace, any other socket would reach the host.
    None,
}

/// The architecture of allowed calls. Other architectures use other numbers.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// First number of the x32 system calls that some x86-64 kernels have.
const SECOND_SET: u32 = 0x4000_0000;

/// Highest system call number that this filter was written for. Later calls get `ENOSYS`, as from a
/// kernel without them: they may do what is refused above, and programs fall back to older calls.
const HIGHEST: u32 = libc::SYS_mseal as u32;

/// Up to this many calls are compared one after another.
const LINEAR_SEARCH_MAX: usize = 3;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(n: u32) -> u32 {
    // The lower half of 8 bytes, on a little-endian machine.
    16 + 8 * n
}

/// Installs the filter for this process and its children. The process must have dropped its
/// privileges.
pub(super) fn install(sockets: Sockets) -> io::Result<()> {
    let rules = program(sockets);
    let program = libc::sock_fprog {
        len: rules.len() as u16,
        filter: rules.as_ptr().cast_mut(),
    };
    // SAFETY: the program outlives the call, which copies it and changes nothing.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0u32,
            &raw const program,
        )
    };
    sys::check(done as i32).map(drop)
}

/// Builds the filter: a binary search for the call's number, and a rule for each call found.
///
/// On installation the kernel runs the filter for every system call number, to cache those that are
/// always allowed. A linear filter made that slower than starting a process.
fn program(sockets: Sockets) -> Vec<sock_filter> {
    let mut rules = vec![
        load(ARCH),
        jump(BPF_JEQ, ARCHITECTURE, 1, 0),
        ret(SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
    ];
    rules.extend([
        jump(BPF_JGE, SECOND_SET, 0, 1),
        ret(SECCOMP_RET_KILL_PROCESS),
    ]);
    rules.extend([jump(BPF_JGE, HIGHEST + 1, 0, 1), refuse(libc::ENOSYS)]);
    let mut calls: Vec<_> = REFUSED
        .iter()
        .map(|call| (*call as u32, vec![refuse(libc::EPERM)]))
        .collect();
    let families = if sockets == Sockets::Usual {
        FAMILIES.map(|family| family as u32).to_vec()
    } else {
        Vec::new()
    };
    calls.extend([
        // Its flags are in memory, where no filter can read them. Programs fall back to clone(2).
        (libc::SYS_clone3 as u32, vec![refuse(libc::ENOSYS)]),
        // Memory that no process has mapped counts for no process. Programs fall back to a file in
        // /tmp.
        (libc::SYS_memfd_create as u32, vec![refuse(libc::ENOSYS)]),
        (
            libc::SYS_shmget as u32,
            if_no_larger(1, LARGEST_SEGMENT, libc::ENOMEM),
        ),
        // Message queues and semaphores use kernel memory.
        (libc::SYS_msgget as u32, vec![refuse(libc::ENOSYS)]),
        (libc::SYS_semget as u32, vec![refuse(libc::ENOSYS)]),
        (libc::SYS_clone as u32, unless_set(NAMESPACES as u32)),
        (
            libc::SYS_ioctl as u32,
            unless_one_of(1, &TERMINAL_INJECTION),
        ),
        (libc::SYS_socket as u32, sockets_of(&families)),
        (
            libc::SYS_socketpair as u32,
            if_one_of(0, &[libc::AF_UNIX as u32], libc::EAFNOSUPPORT),
        ),
        (
            libc::SYS_personality as u32,
            if_one_of(0, &PERSONALITIES, libc::EPERM),
        ),
    ]);
    calls.sort_unstable_by_key(|(number, _)| *number);
    rules.extend(search(&calls));
    rules
}

/// Builds a search for the call whose number is loaded, among calls sorted by number. Other calls
/// are allowed.
fn search(calls: &[(u32, Vec<sock_filter>)]) -> Vec<sock_filter> {
    if calls.len() <= LINEAR_SEARCH_MAX {
        let tried = calls.iter().flat_map(|(number, then)| {
            [jump(BPF_JEQ, *number, 0, then.len() as u8)]
                .into_iter()
                .chain(then.iter().copied())
        });
        return tried.chain([ret(SECCOMP_RET_ALLOW)]).collect();
    }
    let (lower, upper) = calls.split_at(calls.len() / 2);
    let below = search(lower);
    let beyond = u8::try_from(below.len()).expect("half of the filter is not that long");
    [jump(BPF_JGE, upper[0].0, beyond, 0)]
        .into_iter()
        .chain(below)
        .chain(search(upper))
        .collect()
}

/// Allows a call whose argument is one of these.
fn if_one_of(nth: u32, allowed: &[u32], errno: i32) -> Vec<sock_filter> {
    match_argument(nth, allowed, refuse(errno), ret(SECCOMP_RET_ALLOW))
}

/// Allows sockets of these families with the protocols that every kernel has: for others the kernel
/// would load a module.
fn sockets_of(families: &[u32]) -> Vec<sock_filter> {
    let mut rules = match_argument(
        2,
        &PROTOCOLS,
        refuse(libc::EPROTONOSUPPORT),
        ret(SECCOMP_RET_ALLOW),
    );
    // Where the protocol check would allow the call, check the family.
    rules.pop();
    rules.extend(if_one_of(0, families, libc::EAFNOSUPPORT));
    rules
}

/// Refuses a call whose argument is one of these.
fn unless_one_of(nth: u32, refused: &[u32]) -> Vec<sock_filter> {
    match_argument(nth, refused, ret(SECCOMP_RET_ALLOW), refuse(libc::EPERM))
}

fn match_argument(
    nth: u32,
    values: &[u32],
    otherwise: sock_filter,
    then: sock_filter,
) -> Vec<sock_filter> {
    let tests = values
        .iter()
        .zip((1..=values.len() as u8).rev())
        .map(|(with, beyond)| jump(BPF_JEQ, *with, beyond, 0));
    [load(argument(nth))]
        .into_iter()
        .chain(tests)
        .chain([otherwise, then])
        .collect()
}

/// Allows a call whose argument is at most `largest`.
fn if_no_larger(nth: u32, largest: u32, errno: i32) -> Vec<sock_filter> {
    let (low, high) = (argument(nth), argument(nth) + 4);
    vec![
        load(high),
        jump(BPF_JEQ, 0, 0, 2),
        load(low),
        jump(BPF_JGE, largest + 1, 0, 1),
        refuse(errno),
        ret(SECCOMP_RET_ALLOW),
    ]
}

/// Refuses a call whose first argument has one of these bits.
fn unless_set(bits: u32) -> Vec<sock_filter> {
    vec![
        load(argument(0)),
        jump(BPF_JSET, bits, 0, 1),
        refuse(libc::EPERM),
        ret(SECCOMP_RET_ALLOW),
    ]
}

fn refuse(errno: i32) -> sock_filter {
    ret(SECCOMP_RET_ERRNO | errno as u32)
}

fn load(offset: u32) -> sock_filter {
    sock_filter {
        code: (BPF_LD | BPF_W | BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: offset,
    }
}

fn jump(test: u32, with: u32, if_so: u8, if_not: u8) -> sock_filter {
    sock_filter {
        code: (BPF_JMP | test | BPF_K) as u16,
        jt: if_so,
        jf: if_not,
        k: with,
    }
}

fn ret(answer: u32) -> sock_filter {
    sock_filter {
        code: (BPF_RET | BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPERM: u32 = SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const NO_FAMILY: u32 = SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;

    fn answer(arch: u32, number: u32, arguments: [u32; 2]) -> u32 {
        answer_of(&program(Sockets::Usual), arch, number, arguments)
    }

    /// The kernel's answer.
    fn answer_of(rules: &[sock_filter], arch: u32, number: u32, arguments: [u32; 2]) -> u32 {
        answer_with(rules, arch, number, arguments, 0)
    }

    /// The kernel's answer, with these upper halves of the arguments.
    fn answer_with(
        rules: &[sock_filter],
        arch: u32,
        number: u32,
        arguments: [u32; 2],
        high: u32,
    ) -> u32 {
        run(rules, arch, number, arguments, 0, high)
    }

    fn run(
        rules: &[sock_filter],
        arch: u32,
        number: u32,
        arguments: [u32; 2],
        third: u32,
        high: u32,
    ) -> u32 {
        let (mut at, mut held) = (0, 0);
        loop {
            let rule = rules[at];
            let code = u32::from(rule.code);
            at += 1;
            let holds = if code == BPF_RET | BPF_K {
                return rule.k;
            } else if code == BPF_LD | BPF_W | BPF_ABS {
                held = match rule.k {
                    NUMBER => number,
                    ARCH => arch,
                    offset if offset % 8 == 4 => high,
                    offset => arguments
                        .get(((offset - 16) / 8) as usize)
                        .copied()
                        .unwrap_or(third),
                };
                continue;
            } else if code == BPF_JMP | BPF_JEQ | BPF_K {
                held == rule.k
            } else if code == BPF_JMP | BPF_JGE | BPF_K {
                held >= rule.k
            } else {
                assert_eq!(code, BPF_JMP | BPF_JSET | BPF_K);
                held & rule.k != 0
            };
            at += usize::from(if holds { rule.jt } else { rule.jf });
        }
    }

    fn call(number: c_long, arguments: [u32; 2]) -> u32 {
        answer(ARCHITECTURE, number as u32, arguments)
    }

    #[test]
    fn refuses_protocols_that_need_a_kernel_module() {
        let rules = program(Sockets::Usual);
        let protocol = |third| {
            run(
                &rules,
                ARCHITECTURE,
                libc::SYS_socket as u32,
                [libc::AF_INET as u32, 1],
                third,
                0,
            )
        };
        assert_eq!(PROTOCOLS.map(protocol), [SECCOMP_RET_ALLOW; 5]);
        let refused = SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
        assert_eq!(
            [132, 136, 262, 33].map(protocol),
            [refused; 4],
            "SCTP, UDP-Lite, MPTCP, DCCP"
        );
    }

    #[test]
    fn refuses_memory_that_only_the_kernel_holds() {
        let absent = SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        assert_eq!(
            [libc::SYS_msgget, libc::SYS_semget].map(|number| call(number, [0, 1])),
            [absent; 2]
        );
    }

    #[test]
    fn refuses_calls_that_no_command_needs() {
        for number in REFUSED {
            assert_eq!(call(*number, [0, 0]), EPERM, "{number}");
        }
        assert_eq!(
            call(libc::SYS_clone3, [0, 0]),
            SECCOMP_RET_ERRNO | libc::ENOSYS as u32
        );
    }

    #[test]
    fn allows_calls_that_commands_need() {
        let calls = [
            libc::SYS_read,
            libc::SYS_execve,
            libc::SYS_openat,
            libc::SYS_mmap,
            libc::SYS_exit_group,
        ];
        for number in calls
            .into_iter()
            .chain([libc::SYS_ioctl, libc::SYS_clone, libc::SYS_wait4])
        {
            assert_eq!(
                call(number, [libc::SIGCHLD as u32, libc::TCGETS as u32]),
                SECCOMP_RET_ALLOW,
                "{number}"
            );
        }
        assert_eq!(
            call(libc::SYS_clone, [libc::SYS_socket as u32, 0]),
            SECCOMP_RET_ALLOW
        );
        // A sample of the calls that the filter does not name.
        let named = |number: &c_long| {
            let with_arguments = [
                libc::SYS_clone,
                libc::SYS_clone3,
                libc::SYS_ioctl,
                libc::SYS_socket,
                libc::SYS_memfd_create,
            ];
            REFUSED.contains(number) || with_arguments.contains(number)
        };
        let otherwise = [
            libc::SYS_socketpair,
            libc::SYS_personality,
            libc::SYS_msgget,
            libc::SYS_semget,
        ];
        for number in (0..=c_long::from(HIGHEST))
            .filter(|number| !named(number) && !otherwise.contains(number))
        {
            assert_eq!(call(number, [7, 7]), SECCOMP_RET_ALLOW, "{number}");
        }
    }

    #[test]
    fn answers_newer_calls_with_enosys() {
        for number in [HIGHEST + 1, 467, 600, SECOND_SET - 1] {
            let answer = answer(ARCHITECTURE, number, [0, 0]);
            assert_eq!(answer, SECCOMP_RET_ERRNO | libc::ENOSYS as u32, "{number}");
        }
    }

    #[test]
    fn checks_arguments() {
        assert_eq!(
            call(libc::SYS_clone, [libc::CLONE_NEWUSER as u32 | 17, 0]),
            EPERM
        );
        assert_eq!(call(libc::SYS_clone, [libc::CLONE_NEWNET as u32, 0]), EPERM);
        assert_eq!(call(libc::SYS_ioctl, [0, libc::TIOCSTI as u32]), EPERM);
        let segment = |size: u32, high: u32| {
            let number = libc::SYS_shmget as u32;
            answer_with(
                &program(Sockets::Usual),
                ARCHITECTURE,
                number,
                [0, size],
                high,
            )
        };
        let too_large = SECCOMP_RET_ERRNO | libc::ENOMEM as u32;
        assert_eq!(
            [segment(56, 0), segment(LARGEST_SEGMENT, 0)],
            [SECCOMP_RET_ALLOW; 2]
        );
        assert_eq!(
            [
                segment(LARGEST_SEGMENT + 1, 0),
                segment(u32::MAX, 0),
                segment(56, 1)
            ],
            [too_large; 3]
        );
        let family = |family: i32| call(libc::SYS_socket, [family as u32, 0]);
        assert_eq!(FAMILIES.map(family), [SECCOMP_RET_ALLOW; 3]);
        assert_eq!(
            [libc::AF_VSOCK, libc::AF_PACKET, libc::AF_NETLINK].map(family),
            [NO_FAMILY; 3]
        );
        let pair = |family: i32| call(libc::SYS_socketpair, [family as u32, 0]);
        assert_eq!(
            [libc::AF_UNIX, libc::AF_INET, libc::AF_TIPC].map(pair),
            [SECCOMP_RET_ALLOW, NO_FAMILY, NO_FAMILY]
        );
        let personality = |what: u32| call(libc::SYS_personality, [what, 0]);
        assert_eq!(
            [u32::MAX, 0, 0x0004_0000].map(personality),
            [SECCOMP_RET_ALLOW, SECCOMP_RET_ALLOW, EPERM]
        );
    }

    #[test]
    fn refuses_sockets_without_a_namespace() {
        let rules = program(Sockets::None);
        let made = |number: c_long, family: i32| {
            answer_of(&rules, ARCHITECTURE, number as u32, [family as u32, 0])
        };
        assert_eq!(
            FAMILIES.map(|family| made(libc::SYS_socket, family)),
            [NO_FAMILY; 3]
        );
        assert_eq!(made(libc::SYS_socketpair, libc::AF_UNIX), SECCOMP_RET_ALLOW);
        assert_eq!(made(libc::SYS_read, 0), SECCOMP_RET_ALLOW);
    }

    #[test]
    fn kills_calls_of_another_architecture() {
        assert_eq!(
            answer(0x4000_0003, libc::SYS_read as u32, [0, 0]),
            SECCOMP_RET_KILL_PROCESS
        );
        assert_eq!(
            answer(ARCHITECTURE, SECOND_SET, [0, 0]),
            SECCOMP_RET_KILL_PROCESS
        );
    }
}
