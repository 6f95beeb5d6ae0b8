//! The functions that the tests' runner can call.

use std::{fs::File, io::Write, time::Duration};

pub(crate) fn call(name: &str, input: Vec<u8>, mut reply: File) -> i32 {
    let text = String::from_utf8(input).expect("the tests send text");
    let mut answer = |text: &str| {
        reply
            .write_all(text.as_bytes())
            .expect("the runner reads the reply")
    };
    match name {
        "echo" => {
            // Without a line end: buffered output must arrive all the same.
            print!("printed {text}");
            eprintln!("complained");
            answer(&format!("answered {text}"));
            0
        }
        "look" => {
            let open: Vec<_> = std::fs::read_dir("/proc/self/fd")
                .into_iter()
                .flatten()
                .flatten()
                .collect();
            let here = std::env::current_dir().expect("there is a directory");
            let tid = std::env::var("TASK").unwrap_or_default();
            answer(&format!("{} {tid} {}", here.display(), open.len()));
            0
        }
        "count" => {
            // In a process that was not new, the second call would see the variable of the first.
            static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
            answer(
                &CALLS
                    .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
                    .to_string(),
            );
            0
        }
        "threads" => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .expect("a thread can be started");
            let sum = runtime.block_on(async {
                tokio::spawn(async { 40 + 2 })
                    .await
                    .expect("the thread does not panic")
            });
            answer(&sum.to_string());
            0
        }
        "flood" => {
            answer(&text.repeat(1 << 20));
            0
        }
        "sleep" => {
            answer("asleep\n");
            std::thread::sleep(Duration::from_secs(600));
            0
        }
        "pry" => {
            // Tries what a sandbox prevents: a host file by name, the worker's variables, and the
            // worker's user.
            let file = std::fs::read(text).map_or("no file", |_| "a file");
            let user = rustix::process::getuid().as_raw();
            let here = std::env::current_dir()
                .map(|here| here.display().to_string())
                .unwrap_or_default();
            let maps = std::fs::read("/proc/self/environ").unwrap_or_default();
            let told = String::from_utf8_lossy(&maps).contains("CARGO")
                || std::env::var_os("CARGO").is_some();
            answer(&format!("{file} {user} {here} {told}"));
            0
        }
        "search" => {
            // The needle arrives reversed, so that its plain form is nowhere in this process.
            let is_found = |memory: &[u8]| {
                memory
                    .windows(text.len())
                    .any(|found| found.iter().rev().eq(text.as_bytes()))
            };
            let maps = std::fs::read_to_string("/proc/self/maps").expect("there is a map");
            let memory = File::open("/proc/self/mem").expect("it is our own");
            let writable = maps.lines().filter(|line| line.contains(" rw"));
            let found = writable.filter(|line| {
                let range = line
                    .split_once(' ')
                    .and_then(|(range, _)| range.split_once('-'))
                    .expect("a range");
                let number = |hex| u64::from_str_radix(hex, 16).expect("an address");
                let (from, to) = (number(range.0), number(range.1));
                let mut bytes = vec![0; (to - from) as usize];
                std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, from).is_ok()
                    && is_found(&bytes)
            });
            answer(&found.count().to_string());
            0
        }
        "abort" => std::process::abort(),
        _ => 3,
    }
}
