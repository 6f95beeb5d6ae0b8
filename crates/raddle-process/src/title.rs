//! The process title, as `ps` and `pgrep -f` show it.
//!
//! The kernel shows the memory in which `exec` placed the arguments. This module overwrites that
//! memory, after it has moved the environment behind it away to make room. This needs no privileges
//! and no helper process. `raddle_model::title` formats the content of a title.

use std::{
    ffi::{CStr, CString, c_char},
    ops::Range,
    ptr,
    sync::Mutex,
};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The kernel shows at most one page of an overwritten title.
const MAX_TITLE: usize = 4096;

static TITLE: Mutex<Option<Area>> = Mutex::new(None);

/// The memory that the kernel shows.
struct Area {
    /// All bytes that may be overwritten.
    memory: &'static mut [u8],
    /// How many of them were arguments.
    args: usize,
}

/// Locates the memory of the title and moves the environment out of it.
///
/// Must be called before other threads exist, since any of them might be reading the environment.
/// Read the program's arguments before the first [`set`], which overwrites them.
pub fn init() {
    let mut title = TITLE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if title.is_none() {
        *title = locate_area();
    }
}

/// Sets the process title. Does nothing unless [`init`] was called; truncates a title that does not
/// fit.
pub fn set(title: &str) {
    let mut area = TITLE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(area) = area.as_mut() {
        area.write(title.as_bytes());
        // The thread name, which the kernel truncates to 15 bytes. A title with a NUL cannot be a C
        // string and is skipped.
        if let Ok(name) = CString::new(title) {
            let _ = rustix::thread::set_name(&name);
        }
    }
}

impl Area {
    fn write(&mut self, title: &[u8]) {
        // The last byte stays zero, so that readers that treat this memory as a C string stay
        // within it.
        let (room, len) = (self.memory.len(), title.len().min(self.memory.len() - 1));
        self.memory[..len].copy_from_slice(&title[..len]);
        self.memory[len..].fill(0);
        // A zero at the end of the arguments makes the kernel show all of them, zeros included.
        // With any other byte there, the kernel treats the memory as a title and shows it up to the
        // first zero.
        if len < self.args - 1 && room > self.args {
            self.memory[self.args - 1] = b'.';
        }
    }
}

/// Reads the addresses of arguments and environment: fields 48 to 51 of `/proc/self/stat`, see
/// proc_pid_stat(5).
fn locate_area() -> Option<Area> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let [arguments, environment] = argument_ranges(&stat)?;
    let args = arguments.len();
    let mut len = args;
    if environment.start == arguments.end && move_environment(&environment) {
        len = (environment.end - arguments.start).min(MAX_TITLE);
    }
    // SAFETY: the kernel has placed the arguments there, followed by the environment, which was
    // moved away. Nothing else in this process refers to that memory once the arguments have been
    // read, and the title is behind a lock.
    let memory = unsafe {
        std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(arguments.start), len)
    };
    (len > 1).then_some(Area {
        memory,
        args: args.min(len),
    })
}

/// Returns the address ranges of the arguments and of the environment.
fn argument_ranges(stat: &str) -> Option<[Range<usize>; 2]> {
    /// First field after the process name, which may contain spaces and parentheses itself.
    const STATE: usize = 3;
    const ARG_START: usize = 48;
    let (_, fields_text) = stat.rsplit_once(") ")?;
    let mut fields = fields_text
        .split_ascii_whitespace()
        .skip(ARG_START - STATE)
        .map(|field| field.parse::<usize>().ok());
    let mut next = || fields.next().flatten();
    let found = [next()?..next()?, next()?..next()?];
    // All fields are zero if the kernel hides them.
    (!found[0].is_empty()).then_some(found)
}

/// Copies every variable that lies in `memory` to the heap. The copies are leaked: `environ` refers
/// to them forever.
fn move_environment(memory: &Range<usize>) -> bool {
    // SAFETY: no other thread exists (see `init`), so nothing else reads or changes `environ`
    // meanwhile.
    unsafe {
        let mut entry = environ;
        if entry.is_null() {
            return true;
        }
        while !(*entry).is_null() {
            if memory.contains(&(*entry).addr()) {
                *entry = CStr::from_ptr(*entry).to_owned().into_raw();
            }
            entry = entry.add(1);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_arguments_that_the_kernel_shows() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let [arguments, environment] = argument_ranges(&stat).unwrap();
        let shown = std::fs::read("/proc/self/cmdline").unwrap();
        // SAFETY: the arguments live as long as the process, and nothing changes them.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                ptr::with_exposed_provenance::<u8>(arguments.start),
                arguments.len(),
            )
        };
        assert_eq!(bytes, shown);
        assert_eq!(environment.start, arguments.end);
    }

    #[test]
    fn finds_no_range_if_the_kernel_hides_it() {
        assert_eq!(argument_ranges("1 (a) b) R 0 0"), None);
        let hidden = format!("1 (x) R{}", " 0".repeat(60));
        assert_eq!(argument_ranges(&hidden), None, "the kernel shows zeros");
    }

    #[test]
    fn truncates_a_title_to_its_area() {
        let mut area = Area {
            memory: vec![b'x'; 32].leak(),
            args: 10,
        };
        for title in ["", "a", "raddle-1:x", "raddle-12:", &"long".repeat(100)] {
            area.write(title.as_bytes());
            assert_eq!(area.memory[31], 0, "the last byte stays zero");
            let shown = CStr::from_bytes_until_nul(area.memory).unwrap().to_bytes();
            assert_eq!(shown, &title.as_bytes()[..title.len().min(31)]);
        }
    }
}
