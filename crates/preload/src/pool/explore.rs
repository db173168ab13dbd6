//! A window of the calling thread's own, without a pool: for tests that make up calls.
//!
//! It is plain memory. What the program may do with each page is told here, as the engine would.

use super::KernelAccess;
use overspill_os::PAGE_SIZE;
use std::cell::RefCell;
use std::ops::Range;

/// What may be done with each page, from the first: nothing, read it, or write it too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    None,
    Read,
    Write,
}

/// The window.
#[derive(Clone, Debug)]
pub struct Window {
    pub start: usize,
    pub pages: Vec<Rights>,
}

thread_local! {
    static WINDOW: RefCell<Option<Window>> = const { RefCell::new(None) };
}

/// The calling thread has this window from now on.
pub fn set(window: Window) {
    WINDOW.set(Some(window));
}

/// The addresses of the thread's window, if it has one.
pub fn window() -> Option<Range<usize>> {
    WINDOW.with_borrow(|window| window.as_ref().map(Window::range))
}

/// As [`super::accessible`], if the thread has a window.
pub fn accessible(range: &Range<usize>, access: KernelAccess) -> Option<usize> {
    WINDOW.with_borrow(|window| window.as_ref().map(|window| window.accessible(range, access)))
}

impl Window {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.pages.len() * PAGE_SIZE
    }

    fn accessible(&self, range: &Range<usize>, access: KernelAccess) -> usize {
        let allows = |at: usize| match self.pages.get((at - self.start) / PAGE_SIZE) {
            Some(Rights::Write) => true,
            Some(Rights::Read) => access == KernelAccess::Read,
            Some(Rights::None) | None => false,
        };
        assert!(self.range().contains(&range.start), "the first address is in the window");
        let mut end = range.start;
        while end < range.end && allows(end) {
            end = (end & !(PAGE_SIZE - 1)) + PAGE_SIZE;
        }
        end.clamp(range.start, range.end.max(range.start)) - range.start
    }
}
