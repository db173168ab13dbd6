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

mod look;

use super::token::{Sight, THRASHES, Turns};
use super::unmanaged::Unmanaged;
use crate::account::{Mood, Told};
use crate::base::lockdep::Rank;
use crate::base::psi::Pressures;
use crate::base::sync::{RankedMutex, lock};
use crate::memory::lease::FLOOR;
use crate::stats::{Counter, Stats};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

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

    /// In the child of a fork, which is at work. It has not yet done anything to look at, and most
    /// are gone before there is.
    pub fn reset_in_child(&self) {
        let (mut doing, now) = (lock(&self.doing), Instant::now());
        (doing.done, doing.busy, doing.lately_back) = (Done::default(), now, 0.0);
        (doing.looked, doing.unmanaged) = (now, Unmanaged::of_child(now));
        doing.turns = Turns::new(now);
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

#[cfg(test)]
mod tests;
