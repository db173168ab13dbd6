//! What a stream is going to ask for, brought in by a thread beside the program.
//!
//! Who goes through pages on a device in sequence waits for one read after the other, and the
//! device waits meanwhile. So a fault of a long stream leaves word of where it goes on, and the
//! thread serves the faults that would come next: folio after folio, while there is room and the
//! program has not come there itself. Who touches a page that is just being read waits for that.
//! The pages come in as with the program's own fault, to be written to if that was a write. Word
//! that is not taken is lost, which costs the program a fault.
//!
//! It wakes nobody. In thread delivery whoever waits for one of the pages has said so by an event,
//! which the handler may have read: woken by another, the program could have the page elsewhere
//! before the handler comes to that event, which would have zeros come in where nothing is.
//!
//! Locks: as a fault's.

use super::context::FaultContext;
use super::streams::{Further, Next};
use super::{Access, Fault, Served};
use crate::memory::word::State;
use crate::stats::{Counter, FaultSource};
use crate::units::{FOLIO_MAX, PageIndex};
use overspill_os::backing::Backing;
use overspill_os::fault_path::FaultPath;
use overspill_os::thread;

/// The folio from which on a stream is long: by then 31 pages were asked for one after the other.
const LONG: usize = 16;
/// How far ahead of the program pages are brought in: four of the longest folios, but not more than
/// this part of the budget.
const PAGES_MAX: u64 = 4 * FOLIO_MAX as u64;
const BUDGET_PART: u64 = 64;

impl<B: Backing> Fault<B> {
    /// Leaves word of a stream that has come to a page, after a fault that brought in `next`.
    pub(super) fn ask_ahead(&self, context: &FaultContext, next: Next, page: usize, write: bool) {
        let is_long = next.pages >= LONG && context.source == FaultSource::Device;
        if !is_long || context.is_ahead || !self.settings.ahead {
            return;
        }
        if self.waiting.put(Further { page: PageIndex(page), down: next.down, write }) {
            self.base.wake.go_ahead();
        }
    }

    /// Whether a stream waits to be brought further.
    pub(crate) fn is_asked_ahead(&self) -> bool {
        self.waiting.any()
    }

    /// Leaves word of a page if there is room, for models.
    #[cfg(test)]
    pub fn ask_ahead_of(&self, page: PageIndex, write: bool) {
        self.waiting.put(Further { page, down: false, write });
    }

    /// Brings a stream further that waits for it; `false` when none does.
    pub(crate) fn go_ahead(&self) -> bool {
        let Some(further) = self.waiting.take() else { return false };
        let most = (self.memory.budget().limit() / BUDGET_PART).min(PAGES_MAX) as usize;
        let (mut page, mut done) = (further.page, 0);
        while done < most {
            let Some(pages) = self.bring_ahead(page, further.write) else { break };
            done += pages;
            let next = match further.down {
                true => page.0.checked_sub(pages),
                false => Some(page.0 + pages),
            };
            let Some(next) = next else { break };
            page = PageIndex(next);
        }
        true
    }

    /// Serves the fault that is to be expected on a page; how many pages that brought in. Nothing
    /// is waited for: not for a fork, nor for room.
    fn bring_ahead(&self, page: PageIndex, write: bool) -> Option<usize> {
        let _inside = self.base.gates.faults.try_enter()?;
        let mut context = self.grown(self.contexts.try_take()?);
        let _mark = FaultPath::enter();
        if page.0 >= self.memory.words.len() {
            return None;
        }
        let state = self.memory.words.load(page).state();
        let budget = self.memory.budget();
        let has_room = budget.free_pages() > budget.min() + FOLIO_MAX as u64;
        if !matches!(state, State::Stored(_)) || !has_room {
            return None;
        }
        context.thread = thread::id();
        context.source = FaultSource::Place;
        context.installed = 0;
        context.is_ahead = true;
        let served = self.load(&mut context, page, state, Access { write, protected: false });
        context.is_ahead = false;
        self.stats.add(Counter::SwapAhead, context.installed as u64);
        (served == Served::Done && context.installed > 0).then_some(context.installed)
    }
}
