//! The process title, as `ps` and `pgrep -f` show it.
//!
//! The kernel shows what stands where the arguments of `exec` were put. That place is overwritten; the environment behind it is
//! moved away first to make room. No privilege is needed, and no helper process. What a title says is decided elsewhere
//! (`raddle_core::title`).

use std::{
    ffi::{CStr, c_char, c_int},
    ops::Range,
    ptr,
    sync::{
        Mutex,
        atomic::{AtomicPtr, Ordering},
    },
};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The kernel shows no more than a page of an overwritten title.
const LONGEST: usize = 4096;

static TITLE: Mutex<Option<Area>> = Mutex::new(None);

/// The memory that the kernel shows.
struct Area {
    start: *mut u8,
    /// All that may be overwritten.
    len: usize,
    /// How much of it were arguments.
    args: usize,
    comm: [u8; 16],
}

// SAFETY: the area is the process's own and is only touched under the lock around it.
unsafe impl Send for Area {}

/// Finds the place of the title and moves the environment out of it.
///
/// Must be called before other threads exist, since any of them might be reading the environment. Read the program's
/// arguments before the first [`set`], which overwrites them.
pub fn init() {
    let mut title = TITLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if title.is_none() {
        *title = find();
    }
}

/// Shows `title` from now on. Does nothing unless [`init`] was called; cuts what does not fit.
pub fn set(title: &str) {
    let mut area = TITLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(area) = area.as_mut() {
        area.write(title.as_bytes());
        area.name(title.as_bytes());
    }
}

impl Area {
    fn write(&mut self, title: &[u8]) {
        // The last byte stays zero, so that whoever reads this place as a C string stays within it.
        let len = title.len().min(self.len - 1);
        // SAFETY: `len` is less than `self.len`, and the area belongs to us (see `find`).
        unsafe {
            ptr::copy_nonoverlapping(title.as_ptr(), self.start, len);
            ptr::write_bytes(self.start.add(len), 0, self.len - len);
        }
        // A zero at the end of the arguments makes the kernel show all of them, zeros included. Anything else there makes it
        // take the place for a title, and show it up to its first zero.
        if len < self.args - 1 && self.len > self.args {
            // SAFETY: `args` is at most `self.len`.
            unsafe { self.start.add(self.args - 1).write(b'.') };
        }
    }

    fn name(&mut self, title: &[u8]) {
        let mut comm = [0; 16];
        let len = title.len().min(15);
        comm[..len].copy_from_slice(&title[..len]);
        if comm != self.comm {
            self.comm = comm;
            // SAFETY: the name is a C string of at most 16 bytes.
            unsafe { libc::prctl(libc::PR_SET_NAME, comm.as_ptr(), 0, 0, 0) };
        }
    }
}

/// Where the system has put arguments and environment: the C library hands both to whatever stands in this section, before `main`. The system would tell,
/// too, by a file in `/proc` that takes longer to open and read than all else here. Other C libraries than GNU's hand over nothing: there is no title with them.
#[cfg(target_env = "gnu")]
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = note;

static ARGUMENTS: AtomicPtr<*const c_char> = AtomicPtr::new(ptr::null_mut());
static ENVIRONMENT: AtomicPtr<*const c_char> = AtomicPtr::new(ptr::null_mut());

#[cfg(target_env = "gnu")]
extern "C" fn note(_: c_int, arguments: *const *const c_char, environment: *const *const c_char) {
    ARGUMENTS.store(arguments.cast_mut(), Ordering::Relaxed);
    ENVIRONMENT.store(environment.cast_mut(), Ordering::Relaxed);
}

fn find() -> Option<Area> {
    // SAFETY: what the C library has noted are lists that end with a null pointer, of strings that are there as long as the process is.
    let (arguments, environment) = unsafe {
        let arguments = extent(ARGUMENTS.load(Ordering::Relaxed), None)?;
        (arguments.clone(), extent(ENVIRONMENT.load(Ordering::Relaxed), Some(arguments.end)))
    };
    let args = arguments.len();
    let mut len = args;
    if let Some(environment) = environment
        && move_environment(&environment)
    {
        len = (environment.end - arguments.start).min(LONGEST);
    }
    let start: *mut u8 = ptr::with_exposed_provenance_mut(arguments.start);
    (len > 1).then_some(Area { start, len, args: args.min(len), comm: [0; 16] })
}

/// The memory of the strings of a list, as far as each begins where the one before has ended, and the first where it is expected.
///
/// # Safety
///
/// `list` is null, or ends with a null pointer, and its strings with a zero.
unsafe fn extent(list: *const *const c_char, expected: Option<usize>) -> Option<Range<usize>> {
    if list.is_null() {
        return None;
    }
    // SAFETY: as the caller says; nothing behind the end of the list is looked at.
    unsafe {
        let first = (*list).expose_provenance();
        let start = expected.unwrap_or(first);
        let (mut entry, mut end) = (list, start);
        while !(*entry).is_null() && (*entry).addr() == end {
            end += CStr::from_ptr(*entry).count_bytes() + 1;
            entry = entry.add(1);
        }
        (end > start).then_some(start..end)
    }
}

/// Copies every variable that lies in `memory` to the heap. The copies are leaked: `environ` refers to them for ever.
fn move_environment(memory: &Range<usize>) -> bool {
    // SAFETY: no other thread exists (see `init`), so nobody changes or reads `environ` while this does.
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
    fn what_does_not_follow_at_once_is_left_alone() {
        let memory = b"raddle\0run\0x\0PATH=/bin\0HOME=/\0";
        let at = |offset: usize| memory[offset..].as_ptr().cast::<c_char>();
        let start = memory.as_ptr().addr();
        let [all, some, elsewhere] = [[at(0), at(7), at(11)], [at(0), at(7), at(13)], [at(7), at(7), at(7)]]
            .map(|[first, second, third]| [first, second, third, ptr::null()]);
        // SAFETY: the lists end with null pointers, and the strings with zeros.
        unsafe {
            assert_eq!(extent(all.as_ptr(), None), Some(start..start + 13));
            assert_eq!(extent(some.as_ptr(), None), Some(start..start + 11), "it ends where something is left out");
            assert_eq!(extent([at(13), at(23), ptr::null()].as_ptr(), Some(start + 13)), Some(start + 13..start + 30));
            assert_eq!(extent(elsewhere.as_ptr(), Some(start + 13)), None);
            assert_eq!(extent([ptr::null()].as_ptr(), Some(start + 13)), None, "nothing is in it");
            assert_eq!(extent(ptr::null(), None), None);
        }
    }

    #[test]
    fn the_system_shows_what_was_found() {
        // SAFETY: as in `find`, which would move the environment of all tests.
        let found = unsafe { extent(ARGUMENTS.load(Ordering::Relaxed), None) }.unwrap();
        let shown = std::fs::read("/proc/self/cmdline").unwrap();
        assert_eq!(found.len(), shown.len());
        // SAFETY: the arguments are there as long as the process is, and nobody changes them.
        let bytes = unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(found.start), found.len()) };
        assert_eq!(bytes, shown);
    }

    #[test]
    fn a_title_never_leaves_its_area() {
        let mut memory = [b'x'; 40];
        let mut area = Area { start: memory[4..].as_mut_ptr(), len: 32, args: 10, comm: [0; 16] };
        for title in ["", "a", "raddle-1:x", "raddle-12:", &"long".repeat(100)] {
            area.write(title.as_bytes());
            assert_eq!((&memory[..4], &memory[36..]), (&b"xxxx"[..], &b"xxxx"[..]));
            assert_eq!(memory[35], 0, "the last byte stays zero");
            let shown = CStr::from_bytes_until_nul(&memory[4..]).unwrap().to_bytes();
            assert_eq!(shown, &title.as_bytes()[..title.len().min(31)]);
        }
    }
}
