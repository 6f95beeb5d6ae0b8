//! On which processors a process may run.

use std::mem;

/// A set of processors.
#[derive(Clone, Copy)]
pub(crate) struct Processors(libc::cpu_set_t);

impl Processors {
    /// Those that this process may run on; `None` on a machine with more than the C library can count.
    pub(crate) fn allowed() -> Option<Self> {
        // SAFETY: all zeros are the empty set, which is only written to.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the set is as large as is said.
        let found = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &raw mut set) };
        (found == 0).then_some(Self(set))
    }

    /// All but the one that this is running on now, if there are others.
    pub(crate) fn others(&self) -> Option<Self> {
        let mut set = self.0;
        // SAFETY: it asks for nothing, and a processor that the set has no room for is passed over.
        unsafe {
            let this = libc::sched_getcpu();
            libc::CPU_CLR(usize::try_from(this).ok()?, &mut set);
            (libc::CPU_COUNT(&set) > 0).then_some(Self(set))
        }
    }

    /// Confines a process to them; 0 is this one. One that is not there, or may not be, stays where it is.
    pub(crate) fn confine(&self, pid: u32) {
        // SAFETY: the set is only read, and as large as is said.
        unsafe { libc::sched_setaffinity(pid as libc::pid_t, mem::size_of_val(&self.0), &raw const self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(set: &Processors) -> Vec<usize> {
        // SAFETY: only looks.
        (0..libc::CPU_SETSIZE as usize).filter(|number| unsafe { libc::CPU_ISSET(*number, &set.0) }).collect()
    }

    #[test]
    fn the_others_are_all_but_this() {
        let allowed = Processors::allowed().unwrap();
        let Some(others) = allowed.others() else { return assert_eq!(listed(&allowed).len(), 1) };
        assert_eq!(listed(&others).len() + 1, listed(&allowed).len());
        let confined = std::thread::spawn(move || {
            others.confine(0);
            Processors::allowed().map(|set| listed(&set))
        });
        assert_eq!(confined.join().unwrap(), Some(listed(&others)));
    }
}
