//! What the engine does ahead of need, and the threads that do it.

use crate::base::psi::PUBLISH_EVERY;
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::spawn;
use crate::base::wake::NAP;
use crate::config::Delivery;
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::growth::Growth;
use crate::reclaim::Reclaimer;
use overspill_os::backing::Backing;
use overspill_os::beside::{self, EngineThread, Nap};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Pages freed by one round of background reclaim, between two looks at the gate and the
/// watermarks.
const ROUND_PAGES: usize = 256;
/// So many naps after the last stream the thread that goes ahead of them ends: five seconds.
const NAPS_AFTER_STREAMS: u32 = 50;
/// Sleep of the background thread while there is something to do that it could not do just now.
const SHORT_NAP: Duration = Duration::from_millis(5);

impl Engine {
    /// Whether there is more to reclaim than ahead of need.
    fn has_to_reclaim(&self) -> bool {
        let forks = self.control.children.room_wanted.load(Relaxed)
            && self.memory.budget().free_pages() < self.memory.budget().min();
        forks || self.memory.lease.is_pressed()
    }

    /// The body of the background thread: keeps the free pages between low and high, brings the
    /// process down to a lower limit, and looks after what changes. All of it inside the gate of
    /// reclaim: a fork finds no lock of it taken.
    fn reclaim_in_background(&'static self) {
        self.base.psi.note_engine_thread();
        self.control.hold_places();
        let budget = self.memory.budget();
        let mut is_below = false;
        while !self.base.wake.has_stopped() {
            beside::come_by();
            self.reclaim.end_if_chosen();
            self.workingset.sample();
            // From the low watermark on, up to the high one.
            let mark = if is_below { budget.high() } else { budget.low() };
            is_below = self.config.baselines.background
                && budget.free_pages() < mark
                && !self.control.sharing.is_at_rest();
            self.start_ahead();
            let reclaims = is_below || self.has_to_reclaim();
            let freed =
                if reclaims { self.reclaim_a_round(is_below) } else { self.look_after_all() };
            let done = freed
                + self.write_back_in_background()
                + self.control.reclaim_on_request()
                + self.control.follow_advice();
            if done == 0 && (reclaims || !self.has_to_reclaim()) {
                if self.control.sharing.is_at_rest() {
                    self.forget_slots();
                }
                self.nap();
            }
        }
    }

    /// Reclaims some pages; returns how many were freed. Where that is ahead of need, the job may
    /// have more pages instead.
    fn reclaim_a_round(&self, is_below: bool) -> usize {
        let _inside = self.base.gates.reclaim.enter();
        if is_below && self.memory.grow_in_turn() == Growth::Grown {
            return 1;
        }
        self.control.follow_job();
        self.control.look_after_swaps();
        self.base.psi.publish(PUBLISH_EVERY);
        self.swap.follow_refaults();
        self.control.share();
        self.control.press_limit();
        let Some(mut batch) = self.reclaim.take_batch() else { return 0 };
        let freed = self.reclaim.reclaim(&mut batch, ROUND_PAGES, Reclaimer::Background);
        self.control.children.fruitless.fetch_add((freed == 0).into(), Relaxed);
        self.reclaim.oom_progress.freed(freed);
        drop(batch);
        if freed == 0 {
            self.trim_at_rest();
        }
        freed
    }

    /// What there is to be done while there are enough free pages. It frees none.
    fn look_after_all(&self) -> usize {
        self.fault.free_idle_spent();
        // While a fork has the gate closed there is nothing to look after.
        if let Some(_inside) = self.base.gates.reclaim.try_enter() {
            self.swap.publish_metadata();
            self.base.psi.publish(PUBLISH_EVERY);
            self.swap.follow_refaults();
            self.control.reap_children();
            self.control.follow_job();
            self.control.look_after_swaps();
            self.control.share();
            self.control.press_limit();
            self.control.fit_arena();
            self.memory.budget().decay();
            self.swap.devices.trim_caches();
            self.swap.devices.discard_idle();
            self.swap.devices.publish();
            self.control.close_devices();
            self.reclaim.compact();
            self.trim_at_rest();
        }
        0
    }

    /// A process at rest needs no buffers, and no tables of what it does not have.
    fn trim_at_rest(&self) {
        if self.control.sharing.is_at_rest() {
            self.reclaim.trim();
            self.fault.trim();
            self.memory.budget().trim();
        }
    }

    fn nap(&self) {
        let control = &self.control;
        self.base.wake.background.sleep(|| {
            let is_due = self.memory.lease.is_pressed()
                || control.proactive.is_due()
                || control.advice.is_due()
                || control.swaps.is_due()
                || self.fault.is_asked_ahead() && !self.base.wake.goes_ahead()
                || self.reclaim.has_to_write_back()
                || self.config.baselines.background
                    && self.memory.is_low()
                    && !self.control.sharing.is_at_rest()
                || self.base.wake.has_stopped();
            if is_due { SHORT_NAP } else { NAP }
        });
    }

    /// Writes a batch of the compressed tier's pages to devices if that is due; returns how many.
    fn write_back_in_background(&self) -> usize {
        if !self.config.baselines.background || !self.reclaim.has_to_write_back() {
            return 0;
        }
        let _inside = self.base.gates.reclaim.enter();
        let written = self
            .reclaim
            .batches
            .try_take()
            .map_or(0, |mut batch| self.reclaim.write_back_coldest(&mut batch));
        self.reclaim.compact();
        written
    }

    /// The body of a worker: stores the oldest pages of the swap cache while much waits there, so
    /// that neither the background thread nor a fault has to.
    fn store_in_background(&self) {
        self.base.psi.note_engine_thread();
        while !self.base.wake.has_stopped() {
            beside::come_by();
            let stored = match self.base.gates.reclaim.try_enter() {
                Some(_inside) if self.reclaim.has_to_store() => {
                    self.reclaim.take_batch().map_or(0, |mut batch| {
                        self.reclaim.store_oldest(&mut batch, Reclaimer::Background)
                    })
                }
                _ => 0,
            };
            self.reclaim.oom_progress.freed(stored);
            if stored == 0 {
                let has_stopped = || self.base.wake.has_stopped();
                self.base.wake.workers.sleep(|| if has_stopped() { SHORT_NAP } else { NAP });
            }
        }
    }

    /// Starts the thread that goes ahead of streams, if one waits for it: few processes have any.
    fn start_ahead(&'static self) {
        if !self.fault.is_asked_ahead() {
            return;
        }
        // While a fork has the gate closed the stream waits.
        let Some(_inside) = self.base.gates.reclaim.try_enter() else { return };
        let wake = &self.base.wake;
        if wake.begin_ahead() && spawn(c"overspill-ra", || self.go_ahead_of_streams()).is_err() {
            // The faults of the stream bring its pages in.
            wake.end_ahead();
        }
    }

    /// The body of the thread that goes ahead of streams: beside the program as long as there are
    /// any.
    fn go_ahead_of_streams(&self) {
        self.base.psi.note_engine_thread();
        let (wake, mut naps) = (&self.base.wake, 0);
        while (naps < NAPS_AFTER_STREAMS || !beside::is_used()) && !wake.has_stopped() {
            beside::come_by();
            if self.fault.go_ahead() {
                naps = 0;
            } else {
                naps += 1;
                wake.ahead.sleep(|| if wake.has_stopped() { SHORT_NAP } else { NAP });
            }
        }
        wake.end_ahead();
    }

    /// Starts the engine's threads: that which serves faults in thread delivery, that of the
    /// background, and the workers. Those of the child of a fork wait until they are needed, where
    /// none serves faults: most children execute a program, or end, before that. The one that goes
    /// ahead of streams is there from the beginning where they are threads of the program: who
    /// forks while it begins may hold a lock that it needs.
    pub(crate) fn start_threads(&'static self, is_child: bool) -> Result<(), Error> {
        let handler = (self.config.delivery == Delivery::Thread)
            .then(|| EngineThread::new(c"overspill", || self.fault.handle_faults()));
        let hold = || self.control.hold_places();
        let nap = (is_child && handler.is_none())
            .then(|| Nap { cell: self.base.wake.background.word(), first: Box::new(hold) });
        let background = EngineThread::new(c"overspill-bg", || self.reclaim_in_background());
        let worker = |_| EngineThread::new(c"overspill-wk", || self.store_in_background());
        let workers = (0..self.base.wake.worker_count()).map(worker);
        let goes_ahead = !beside::is_used() && self.config.baselines.ahead;
        let ahead = (goes_ahead && self.base.wake.begin_ahead())
            .then(|| EngineThread::new(c"overspill-ra", || self.go_ahead_of_streams()));
        let threads = handler.into_iter().chain([background]).chain(ahead).chain(workers);
        beside::start(threads.collect(), nap).map_err(|_| Error::Thread)?;
        let sibling = beside::sibling().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
        self.stats.set_engine(sibling);
        Ok(())
    }
}

impl<B: Backing> Engine<B> {
    /// Gives back the tables of slots in memory once none is in use. They come into use inside of
    /// the gate only.
    pub(super) fn forget_slots(&self) {
        let (devices, gate) = (&self.swap.devices, &self.base.gates.reclaim);
        if devices.keeps_unused() {
            let still = (!is_seeded(Bug::ForgottenInUse)).then(|| gate.close());
            devices.forget_unused();
            still.into_iter().for_each(|()| gate.open());
        }
    }
}
