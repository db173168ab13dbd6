//! How a process looks around: what it tells the others, and what it does by what they tell.

use super::{Doing, Done, REST_AFTER, REST_AFTER_SCARCE, Side, gives, is_better_off, sight};
use crate::account::{Member, Mood, Told};
use crate::base::psi::clock_us;
use crate::base::sync::{RankedGuard, lock};
use crate::control::Control;
use crate::stats::Counter;
use overspill_os::backing::Backing;
use overspill_os::rest;
use overspill_os::rss::oom_score_adj;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Time between two looks, at least.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Looks between two for processes that are gone.
const REAP_EVERY: u32 = 4;
/// Pages beyond what a process uses that it keeps, and what part of that besides: the second where
/// few are left for others.
const SLACK: u64 = 128;
const SPARE: u64 = 8;
const SPARE_SCARCE: u64 = 32;
/// Likewise, of one that does nothing, or cannot give what it has.
const REST_SLACK: u64 = 4;
/// How long after it was short a process is known to need more, though it has just got some.
const SHORT_FOR: Duration = Duration::from_millis(500);
/// For how long there may be too much before what is shared leaves too.
const OVER_MOST: Duration = Duration::from_secs(1);

impl<B: Backing> Control<B> {
    /// Tells the others, and gives what this process is to give, if it is time to look at that.
    pub(crate) fn share(&self) {
        if let Some(doing) = self.sharing.doing.try_lock()
            && doing.looked.elapsed() >= LOOK_EVERY
        {
            self.look_around(doing);
        }
    }

    /// The same at once.
    pub(crate) fn share_anew(&self) {
        self.look_around(lock(&self.sharing.doing));
    }

    fn look_around(&self, mut doing: RankedGuard<'_, Doing>) {
        // A fork decides what there is for it and its child.
        if self.children.room_wanted.load(Relaxed) {
            return;
        }
        let lease = &self.memory.lease;
        let Some(member) = lease.member() else { return };
        self.press_now_and_then();
        // 1. What this process does, and has.
        let told = self.note_own(&mut doing);
        member.tell(told);
        if doing.is_at_rest() && !lease.is_alone() {
            self.rest(told.used);
        }
        let budget = self.memory.budget();
        // 2. What the others do.
        if doing.looks.is_multiple_of(REAP_EVERY) {
            self.reclaim.reap();
        }
        let members = lease.account.members();
        let now_ms = clock_us() / 1000;
        let holder = lease.account.token(now_ms).map(|member| member.entry());
        let side = |member: Member| {
            let has_token = Some(member.entry()) == holder;
            Side { lease: member.lease(), told: member.told(), has_token }
        };
        let sides: Vec<Side> = members.map(side).collect();
        doing.members = sides.len();
        let saved = lease.account.saved();
        let used: u64 = sides.iter().map(|side| side.told.used).sum();
        lease.account.note_used(used.saturating_sub(saved));
        lease.account.note_unmanaged(sides.iter().map(|side| side.told.unmanaged).sum());
        if sides.len() > 1 {
            self.give_unused(told.used);
        }
        let own = side(member);
        // The leases of all sides hold what is shared more than once.
        let of_job = lease.account.budget() + saved;
        let sight = sight(own, doing.strain_now, &sides, of_job);
        if self.settings.token {
            doing.turns.look(lease.account, member, now_ms, sight);
        }
        lease.set_gives_way(sight.is_taken);
        lease.set_at_work(sides.iter().filter(|side| side.told.mood == Mood::Busy).count());
        // 3. What it gives.
        let gives = gives(own, &sides, of_job, lease.reserve());
        if gives > 0 {
            self.aim(budget.limit().saturating_sub(gives).max(1));
            return;
        }
        // 4. Or what it may have: who is stuck nothing more than that, as long as it is too much.
        if self.limits.is_stuck() && lease.is_over(lease.reserve()) {
            return;
        }
        // What little is left is for those that need it more.
        let waits = lease.is_scarce() && is_better_off(own, &sides);
        self.aim(if waits { budget.limit() } else { u64::MAX });
        if sides.len() == 1 && lease.has_whole {
            self.memory.take_all();
        }
        self.swap.follow_limit();
    }

    /// Pages that are shared since a fork, and stay: no page is free before all who have it have it
    /// leave. Not where there is too much, and nothing else has helped.
    fn keeps_shared(&self, doing: &mut Doing) -> u64 {
        let over = self.memory.lease.is_over(0).then(|| doing.over.unwrap_or_else(Instant::now));
        doing.over = over;
        if over.is_some_and(|over| over.elapsed() > OVER_MOST) { 0 } else { self.memory.shared() }
    }

    /// What this process does, and has.
    fn note_own(&self, doing: &mut Doing) -> Told {
        doing.look(Done::of(&self.stats, &self.base.psi));
        let is_scarce = self.memory.lease.is_scarce();
        doing.rest_after = if is_scarce { REST_AFTER_SCARCE } else { REST_AFTER };
        let mood = doing.mood(self.limits.is_stuck());
        self.sharing.at_rest.store(doing.is_at_rest(), Relaxed);
        if self.job.is_some() {
            let is_at_rest = doing.is_at_rest();
            if doing.unmanaged.has_settled(is_at_rest) {
                rest::come_to_rest();
                self.measure_at_rest(&mut doing.unmanaged);
                // What measuring has used.
                rest::come_to_rest();
            } else if doing.unmanaged.is_due(doing.done.worked) {
                self.measure_unmanaged(&mut doing.unmanaged);
            } else if doing.unmanaged.is_due_again(doing.members) {
                self.measure_again(&mut doing.unmanaged);
            }
            if mood != Mood::AtRest {
                doing.adjusted = oom_score_adj().unwrap_or(doing.adjusted);
            }
        }
        let budget = self.memory.budget();
        self.memory.settle_shares();
        self.memory.note_shared();
        budget.publish_used();
        let has_enough = budget.free_pages() >= budget.high();
        let is_short = self.memory.lease.was_short() && !has_enough;
        doing.short = if is_short { Some(Instant::now()) } else { doing.short };
        let want = match doing.short {
            // All that it has is to come in.
            Some(_) if doing.turns.has_token() && doing.brought > 0 => self.out().max(1),
            // What came in meanwhile could all have had a page of its own.
            Some(_) if is_short => self.memory.step(true).max(doing.brought),
            Some(short) if short.elapsed() < SHORT_FOR => 1,
            _ => 0,
        };
        let unmanaged = self.memory.lease.unmanaged();
        let stays = budget.charged() + unmanaged + self.compressed(mood);
        Told {
            used: budget.used(),
            unmanaged,
            // Its buffers cannot leave either, nor what is compressed if there is nowhere to go.
            keeps: doing.keeps(mood) + stays + self.keeps_shared(doing),
            rate: doing.rate as u64,
            strain: doing.strain as u64,
            want,
            mood,
            size: self.size() + unmanaged,
            adjusted: doing.adjusted,
        }
    }

    /// Pages of the compressed tier of a process at rest that can only stay there.
    fn compressed(&self, mood: Mood) -> u64 {
        match mood {
            Mood::AtRest if !self.swap.devices_have_room() => self.swap.zpool.frames() as u64,
            _ => 0,
        }
    }

    /// Pages of the program that are managed, in memory or not.
    fn size(&self) -> u64 {
        let get = |counter| self.stats.get(counter);
        self.out() + get(Counter::ResidentPages) + get(Counter::SwapCachePages)
    }

    /// Those that are not in memory as they are.
    fn out(&self) -> u64 {
        self.swap.publish_tiers();
        let get = |counter| self.stats.get(counter);
        get(Counter::CompressedPages).max(get(Counter::DevicePages))
    }

    /// Gives back what this process does not use, as it takes it again when it works.
    fn rest(&self, used: u64) {
        if self.memory.budget().limit() > used + 2 * REST_SLACK {
            self.swap.set_limit(used + REST_SLACK);
        }
    }

    /// Gives back what is far above what this process uses: others take it without asking.
    fn give_unused(&self, used: u64) {
        let lease = &self.memory.lease;
        let part = if lease.is_scarce() { SPARE_SCARCE } else { SPARE };
        let keeps = used + self.memory.budget().promised() + used / part + SLACK;
        if self.memory.budget().limit() > keeps + keeps / part + SLACK {
            self.swap.set_limit(keeps);
        }
    }
}
