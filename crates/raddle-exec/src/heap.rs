//! A heap for processes that are forked.
//!
//! A page that a fork writes to is copied first. What a program has freed by the time it forks are holes all over its heap, and an
//! allocator fills those before anything else: so a fork that asks for a few bytes here and there has copied thirty pages. Without holes
//! it finds the same at the end of the heap, in two or three.

/// Smaller than what the allocator asks the system for separately.
const LARGE: usize = 64 * 1024;
/// More than the allocator keeps in hand at the end of the heap.
const END: usize = 4 * LARGE;
/// Below this there is a list of holes for each size.
const SMALL: usize = 1024;
/// What sizes are rounded to.
const STEP: usize = 16;
/// Not more than this is taken: an allocator of another kind may have no end to come to.
const MOST: usize = 4 << 20;

/// Takes the holes of the heap, for good: what is asked for next lies behind them. For a process of one thread.
pub(crate) fn fill_holes() {
    let large = std::iter::successors(Some(LARGE / 2), |size| Some(size / 2)).take_while(|size| *size > SMALL);
    let sizes = large.chain((STEP..=SMALL).rev().step_by(STEP));
    let mut left = MOST;
    // SAFETY: blocks that are asked for and never touched; the few that are given back are ours. Addresses are only compared.
    unsafe {
        let mut end = libc::malloc(LARGE);
        while (end as usize) + END < libc::sbrk(0) as usize && left > LARGE {
            left -= LARGE;
            end = libc::malloc(LARGE);
        }
        for size in sizes {
            while left > size {
                left -= size;
                let hole = libc::malloc(size);
                if hole.is_null() || hole > end {
                    libc::free(hole);
                    break;
                }
            }
        }
        libc::free(end);
    }
}
