//! What a worker keeps to call others, as it is seen from outside: a proxy watches the directory in which workers are published.

/// The descriptors by which a process watches directories.
pub(crate) fn inotify_fds(pid: u32) -> Vec<u32> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it is alive");
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
