//! The proxies of a worker, seen from outside: a proxy watches the directory of the local discovery
//! with inotify.

/// The inotify descriptors of a process.
pub(crate) fn inotify_fds(pid: u32) -> Vec<u32> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is alive");
    let mut inotify_fds: Vec<u32> = descriptors
        .filter_map(|descriptor| {
            let path = descriptor.ok()?.path();
            let is_watch = std::fs::read_link(&path)
                .ok()?
                .to_str()?
                .contains("inotify");
            path.file_name()?
                .to_str()?
                .parse()
                .ok()
                .filter(|_| is_watch)
        })
        .collect();
    inotify_fds.sort_unstable();
    inotify_fds
}
