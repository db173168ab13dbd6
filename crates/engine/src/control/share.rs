//! Which process of a job gives pages to others.
//!
//! Ten times a second each process tells the others how it is doing, looks at what they told, and
//! decides by itself what it gives: all decide by the same rule, [`gives`], over the same figures.
//!
//! 1. What is above the budget goes at once: processes at rest give first, then the others by what
//!    they have above their floor.
//! 2. What somebody wants and the account has not: again those at rest first, half at a time. Then
//!    those that need their pages less, in small steps. How much a process needs its pages is how
//!    much of the time it waits for pages to come in, for each page that it has. It is not how many
//!    come in: who has few waits longer for each. So an equal load ends with equal shares, whatever
//!    it began with, and who has what it works with loses pages only until that costs it as much as
//!    others. Who is better off by that than somebody who is short does not take what is left.
//!    Where several thrash, one has the swap token ([`super::token`]): the others give it what it
//!    wants, in larger steps, and leave it what is left.
//!
//! A process is at rest when it has hardly had a processor for a second, or for a tenth where few
//! pages are left. It keeps 128 KiB, and one that still wakes up now and then as many pages as it
//! had to bring in again lately. It gives the half of the rest at a time, so that who wanted them
//! has what it needs before all are on devices.
//!
//! What a process does not use it gives in any case: who begins finds it in the account, and waits
//! for nobody.
//!
//! Lock: one over what this process did up to the last look ([`Rank::Sharing`]), only tried by the
//! background thread.

use super::token::{Sight, THRASHES, Turns};
use super::unmanaged::Unmanaged;
use crate::account::{Member, Mood, Told};
use crate::base::lockdep::Rank;
use crate::base::psi::{Pressures, clock_us};
use crate::base::sync::{RankedGuard, RankedMutex, lock};
use crate::control::Control;
use crate::memory::lease::FLOOR;
use crate::stats::{Counter, Stats};
use overspill_os::backing::Backing;
use overspill_os::rest;
use overspill_os::rss::oom_score_adj;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time between two looks, at least.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Looks between two for processes that are gone.
const REAP_EVERY: u32 = 4;
/// Over what time the part of it that is spent in faults is averaged, and the parts.
const RATE_OVER: Duration = Duration::from_secs(1);
const PARTS: f64 = 10_000.0;
/// Likewise, of the part of what it does that is faults: until that has gone by, those that thrash
/// have no turns. With 300 ms phases of compilers that are soon over count as well, and turns help
/// none of them.
const STRAIN_OVER: Duration = Duration::from_millis(400);
/// The rate of a process that hardly waits for pages, and so is under no strain.
const STRAIN_LEAST: f64 = 100.0;
/// How long a process has had no processor that is at rest, where few pages are left or many; and
/// what is no more than looking up.
const REST_AFTER_SCARCE: Duration = Duration::from_millis(100);
const REST_AFTER: Duration = Duration::from_secs(1);
const REST_SHARE: u32 = 200;
/// Pages that a process at rest keeps: 128 KiB.
const REST_PAGES: u64 = 32;
/// Over what time the pages are counted that came back, and how long a process has done nothing at
/// all that needs none of them.
const BACK_OVER: Duration = Duration::from_secs(10);
const STILL_AFTER: Duration = Duration::from_millis(1500);
/// Pages beyond what a process uses that it keeps, and what part of that besides: the second where
/// few are left for others.
const SLACK: u64 = 128;
const SPARE: u64 = 8;
const SPARE_SCARCE: u64 = 32;
/// Likewise, of one that does nothing, or cannot give what it has.
const REST_SLACK: u64 = 16;
/// How long after it was short a process is known to need more, though it has just got some.
const SHORT_FOR: Duration = Duration::from_millis(500);
/// For how long there may be too much before what is shared leaves too.
const OVER_MOST: Duration = Duration::from_secs(1);
/// Part of what it has above its floor that a process gives at a time: one that works, and one at
/// rest.
const STEP: u64 = 16;
const REST_STEP: u64 = 2;
/// Likewise, to who has the swap token.
const TOKEN_STEP: u64 = 4;
/// How much less a process must need its pages than the one that gets them, in percent.
const ADVANTAGE: u64 = 5;

/// What a process has done since it began.
#[derive(Clone, Copy, Default, Debug)]
struct Done {
    /// Pages that have come back, and those that were of zeros.
    back: u64,
    zeros: u64,
    /// How long faults took that more memory would spare, what they cost without waiting for
    /// processors, and what of that was the program's own time of these.
    short_ns: u64,
    cost: Duration,
    own_cost: Duration,
    /// Time of processors that the program has used, and that in which it waited for memory.
    worked: Duration,
    stalled_us: u64,
}

impl Done {
    fn of(stats: &Stats, psi: &Pressures) -> Done {
        Done {
            back: stats.get(Counter::ZswpIn) + stats.get(Counter::PswpIn),
            zeros: stats.get(Counter::ZeroFill),
            short_ns: stats.get(Counter::ShortNs),
            cost: Duration::from_nanos(stats.get(Counter::ShortCostNs)),
            own_cost: Duration::from_nanos(stats.get(Counter::ShortCpuNs)),
            worked: psi.worked(),
            stalled_us: psi.stalled_us(),
        }
    }
}

/// What this process did up to the last look.
#[derive(Debug)]
struct Doing {
    looked: Instant,
    looks: u32,
    done: Done,
    /// How much of the time faults took that more memory would spare.
    rate: f64,
    /// Which part of what it does that is, beside what it gets done with processors, and since the
    /// look before.
    strain: f64,
    strain_now: f64,
    /// Its turns to have the swap token.
    turns: Turns,
    /// Pages that have come in, of any kind, since the look before.
    brought: u64,
    /// When there was last nothing to take.
    short: Option<Instant>,
    /// When the program last used some of a processor, and how long after that it is at rest.
    busy: Instant,
    rest_after: Duration,
    /// How many pages came back lately, and when the program last did anything.
    lately_back: f64,
    moved: Instant,
    unmanaged: Unmanaged,
    /// Processes of the job, at the last look.
    members: usize,
    /// How readily the process is to be ended.
    adjusted: i64,
    /// Since when more is leased than there is.
    over: Option<Instant>,
}

/// How a process is doing beside others.
#[derive(Debug)]
pub(crate) struct Sharing {
    doing: RankedMutex<Doing>,
    at_rest: AtomicBool,
}

impl Sharing {
    /// Of a process that begins.
    pub fn new() -> Sharing {
        let now = Instant::now();
        let doing = Doing {
            looked: now,
            looks: 0,
            done: Done::default(),
            rate: 0.0,
            strain: 0.0,
            strain_now: 0.0,
            turns: Turns::new(now),
            brought: 0,
            short: None,
            busy: now,
            rest_after: REST_AFTER,
            lately_back: 0.0,
            moved: now,
            unmanaged: Unmanaged::default(),
            members: 0,
            adjusted: 0,
            over: None,
        };
        Sharing { doing: RankedMutex::new(Rank::Sharing, doing), at_rest: AtomicBool::new(false) }
    }

    /// Whether the process is at rest: then no page of it is reclaimed ahead of need.
    pub fn is_at_rest(&self) -> bool {
        self.at_rest.load(Relaxed)
    }

    /// Waits for who is looking just now.
    pub fn settle(&self) {
        drop(lock(&self.doing));
    }

    /// In the child of a fork, which is at work.
    pub fn reset_in_child(&self) {
        let mut doing = lock(&self.doing);
        (doing.done, doing.busy, doing.lately_back) = (Done::default(), Instant::now(), 0.0);
        doing.unmanaged = Unmanaged::default();
        doing.turns = Turns::new(Instant::now());
        self.at_rest.store(false, Relaxed);
    }
}

impl Doing {
    /// Takes note of what was done since the last look. Who is stalled would work.
    fn look(&mut self, done: Done) {
        let (now, before) = (Instant::now(), self.done);
        let elapsed = now.duration_since(self.looked);
        let back = done.back.saturating_sub(before.back);
        let short = Duration::from_nanos(done.short_ns.saturating_sub(before.short_ns));
        let worked = done.worked.saturating_sub(before.worked);
        let of = |time: Duration| (elapsed.as_secs_f64() / time.as_secs_f64()).min(1.0);
        let rate = short.as_secs_f64() / elapsed.as_secs_f64().max(1e-3) * PARTS;
        self.rate += (rate - self.rate) * of(RATE_OVER);
        let cost = done.cost.saturating_sub(before.cost);
        let useful = worked.saturating_sub(done.own_cost.saturating_sub(before.own_cost));
        self.strain_now = match rate >= STRAIN_LEAST {
            true => cost.as_secs_f64() / (cost + useful).as_secs_f64().max(1e-9) * PARTS,
            false => 0.0,
        };
        self.strain += (self.strain_now - self.strain) * of(STRAIN_OVER);
        self.lately_back = self.lately_back * (1.0 - of(BACK_OVER)) + back as f64;
        self.brought = back + done.zeros.saturating_sub(before.zeros);
        let is_stalled = done.stalled_us > before.stalled_us;
        if is_stalled || done.worked != before.worked {
            self.moved = now;
        }
        if is_stalled || worked > elapsed / REST_SHARE {
            self.busy = now;
        }
        (self.looked, self.done) = (now, done);
        self.looks = self.looks.wrapping_add(1);
    }

    /// Pages that the process keeps.
    fn keeps(&self, mood: Mood) -> u64 {
        match mood {
            Mood::AtRest if self.moved.elapsed() >= STILL_AFTER => REST_PAGES,
            Mood::AtRest => (self.lately_back as u64).clamp(REST_PAGES, FLOOR),
            Mood::Busy | Mood::Stuck | Mood::Dormant => FLOOR,
        }
    }

    fn is_at_rest(&self) -> bool {
        self.busy.elapsed() >= self.rest_after
    }

    fn mood(&self, is_stuck: bool) -> Mood {
        match self.is_at_rest() {
            _ if is_stuck => Mood::Stuck,
            true => Mood::AtRest,
            false => Mood::Busy,
        }
    }
}

/// A process, as all decide by it.
#[derive(Clone, Copy, Debug)]
struct Side {
    lease: u64,
    told: Told,
    /// Whether it has the swap token.
    has_token: bool,
}

impl Side {
    /// What it has above what it keeps in any case.
    fn spare(&self) -> u64 {
        match self.told.mood {
            Mood::Stuck | Mood::Dormant => 0,
            Mood::Busy | Mood::AtRest => self.lease.saturating_sub(self.told.keeps),
        }
    }

    fn is_at_rest(&self) -> bool {
        self.told.mood == Mood::AtRest
    }

    fn wants(&self) -> bool {
        self.told.want > 0 && !self.is_at_rest()
    }

    /// Whether it works, and hardly gets anything done but faults.
    fn thrashes(&self) -> bool {
        self.told.mood == Mood::Busy && self.told.strain >= THRASHES
    }

    /// Pages that it has for the time that it waits for others: the fewer, the more it needs them.
    fn ease(&self) -> u64 {
        self.lease.saturating_sub(self.told.unmanaged) * 16 / (self.told.rate + 1)
    }

    /// Whether it needs its pages clearly less than one with this ease.
    fn is_better_off_than(&self, ease: u64) -> bool {
        self.ease() > ease + ease * ADVANTAGE / 100
    }
}

/// Who has the swap token, if it wants pages.
fn of_token(sides: &[Side]) -> Option<&Side> {
    sides.iter().find(|side| side.has_token && side.wants())
}

/// What the process `own` is to give, of all `sides` of a budget of which `reserve` pages are left
/// to nobody.
fn gives(own: Side, sides: &[Side], budget: u64, reserve: u64) -> u64 {
    let leased: u64 = sides.iter().map(|side| side.lease).sum();
    let part = |of: u64, mine: u64, all: u64| match all {
        0 => 0,
        all => (u128::from(of.min(all)) * u128::from(mine)).div_ceil(u128::from(all)) as u64,
    };
    let rest = || sides.iter().filter(|side| side.is_at_rest());
    let at_rest: u64 = rest().map(Side::spare).sum();
    // By halves: with a half the most of them only pack what they have.
    let half = |side: &Side| side.spare().div_ceil(REST_STEP);
    let halves: u64 = rest().map(half).sum();
    // 1. Above the budget.
    let over = (leased + reserve).saturating_sub(budget);
    // 2. Wanted, by whom it is most, or by who has the token.
    let of_token = of_token(sides).map(|side| side.told.want);
    let of_all = || sides.iter().filter(|side| side.wants()).map(|side| side.told.want).sum();
    let wanted = of_token.unwrap_or_else(of_all);
    let free = budget.saturating_sub(leased + reserve);
    let wanted = wanted.saturating_sub(free);
    if own.is_at_rest() {
        return part(over, own.spare(), at_rest).max(part(over + wanted, half(&own), halves));
    }
    let busy: u64 = sides.iter().filter(|side| !side.is_at_rest()).map(Side::spare).sum();
    let must = part(over.saturating_sub(at_rest), own.spare(), busy);
    let Some(least) = sides.iter().filter(|side| side.wants()).map(Side::ease).min() else {
        return must;
    };
    let offers = |side: &Side| match () {
        _ if side.is_at_rest() || side.has_token => 0,
        _ if of_token.is_some() => side.spare() / TOKEN_STEP,
        _ if side.is_better_off_than(least) => side.spare() / STEP,
        _ => 0,
    };
    let wanted = wanted.saturating_sub(halves.saturating_sub(over));
    must + part(wanted, offers(&own), sides.iter().map(offers).sum())
}

/// What the process `own` sees of the others, by which the swap token goes round.
fn sight(own: Side, strain_now: f64, sides: &[Side], budget: u64) -> Sight {
    let kept: u64 = sides.iter().map(|side| side.told.keeps).sum();
    Sight {
        strain: own.told.strain,
        strain_now: strain_now as u64,
        is_short: own.told.want > 0,
        fits: own.told.size + kept <= budget,
        thrashing: sides.iter().filter(|side| side.thrashes()).count(),
        is_taken: !own.has_token && sides.iter().any(|side| side.has_token),
    }
}

/// Whether the process `own` works and needs its pages less than one that is short of them, or has
/// no turn to have its pages where another has.
fn is_better_off(own: Side, sides: &[Side]) -> bool {
    let needs_more = |side: &Side| side.wants() && own.is_better_off_than(side.ease());
    own.told.mood == Mood::Busy
        && match of_token(sides) {
            Some(_) => !own.has_token,
            None => sides.iter().any(needs_more),
        }
}

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
        if self.limits.is_stuck() && self.is_over(lease.reserve()) {
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

    /// Whether more is leased than there is, or than leaves so many pages.
    fn is_over(&self, reserve: u64) -> bool {
        let account = self.memory.lease.account;
        account.leased() + reserve > account.budget()
    }

    /// Pages that are shared since a fork, and stay: no page is free before all who have it have it
    /// leave. Not where there is too much, and nothing else has helped.
    fn keeps_shared(&self, doing: &mut Doing) -> u64 {
        let over = self.is_over(0).then(|| doing.over.unwrap_or_else(Instant::now));
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

#[cfg(test)]
mod tests;
