//! How advice is taken, and followed by the background thread.

use super::AdviceRequest;
use crate::control::Control;
use crate::memory::extent::EXTENT_PAGES;
use crate::reclaim::EvictTo;
use crate::stats::Counter;
use overspill_os::backing::Backing;
use std::ops::Range;

impl<B: Backing> Control<B> {
    /// MADV_COLD and MADV_PAGEOUT; inside the gate of mapping calls, with no lock held.
    pub(crate) fn take_advice(&self, request: AdviceRequest, pages: Range<usize>) {
        let Some(number) = self.advice.push(request, pages) else { return };
        self.base.wake.background.wake();
        if request == AdviceRequest::PageOut {
            self.advice.wait_for(number);
        }
    }

    /// Follows a request, if there is one; returns how many pages have left. For the background
    /// thread.
    pub(crate) fn follow_advice(&self) -> usize {
        if !self.advice.is_due() {
            return 0;
        }
        let next = {
            let _inside = self.base.gates.reclaim.enter();
            self.advice.pop()
        };
        let Some((number, request, pages)) = next else { return 0 };
        let mut gone = 0;
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min((at / EXTENT_PAGES + 1) * EXTENT_PAGES);
            let _inside = self.base.gates.reclaim.enter();
            if let Some(mut batch) = self.reclaim.take_batch() {
                gone += match request {
                    AdviceRequest::Cold => {
                        self.reclaim.evict_pages(&mut batch, at..end, EvictTo::SwapCache)
                    }
                    AdviceRequest::PageOut => {
                        self.reclaim.evict_pages(&mut batch, at..end, EvictTo::SwapOut)
                            + self.reclaim.store_cached_of(&mut batch, at..end)
                    }
                };
            }
            at = end;
        }
        self.stats.add(Counter::PgAdvisedOut, gone as u64);
        self.advice.note_followed(number);
        // One more look around, also if none of them was in memory.
        gone.max(1)
    }
}
