//! Baselines: ways to run a mechanism without what makes it fast, or in one of its ways only.
//!
//! They are for benches, which measure a mechanism beside its baseline, and for tests, which walk
//! paths that are rare otherwise. Nothing else sets them: no option of the command names one. A
//! program that uses the library sets [`super::Config::baselines`], or a list of settings and
//! baselines together ([`super::Config::apply_with_baselines`]); the variable OVERSPILL_BASELINES
//! has a list for what `overspill run` starts.

use super::table::{self, BadSetting, Form, SWITCH, Setting, setting};
use super::{CachePartition, Clean, Invalidate, Recheck, SWAPOFF_DEPTH_MAX, TierSlots, WayIn};
use crate::device::RUN_MAX;
use crate::frame::FramePick;
use crate::slot::{Batching, SlotLock, SlotSettings};

/// Which mechanisms run as their baselines do; by default none. [`BASELINES`] has the meanings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Baselines {
    /// `in`.
    pub way_in: WayIn,
    /// `ahead`.
    pub ahead: bool,
    /// `poll`.
    pub polls: bool,
    /// `background`.
    pub background: bool,
    /// `reclaim.recheck`.
    pub reclaim_recheck: Recheck,
    /// `zswap.slots`.
    pub zswap_slots: TierSlots,
    /// `zswap.invalidate`.
    pub invalidate: Invalidate,
    /// `zswap.keep`.
    pub keeps_compressed: Clean,
    /// `same_filled`.
    pub same_filled: bool,
    /// `clean`.
    pub clean: Clean,
    /// `cache.partition`.
    pub cache_partition: CachePartition,
    /// `token`.
    pub token: bool,
    /// `swapoff.run`.
    pub swapoff_run: usize,
    /// `swapoff.depth`.
    pub swapoff_depth: usize,
    /// `frame.percpu`.
    pub frame_percpu: bool,
    /// `frame.pick`.
    pub frame_pick: FramePick,
    /// `slot.lock`, `slot.cache`, `slot.cpu_cluster` and `swap.batch`.
    pub slot: SlotSettings,
    /// `uring`.
    pub uring: bool,
    /// `vector_drop`.
    pub vector_drop: bool,
    /// `dormant`: of the preload library.
    pub dormant: bool,
    /// `commit`.
    pub commit: Commit,
}

/// How the system is taken to promise memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Commit {
    /// As it says.
    #[default]
    Auto,
    /// What is mapped counts, used or not.
    Strict,
}

impl Default for Baselines {
    fn default() -> Baselines {
        Baselines {
            way_in: WayIn::default(),
            ahead: true,
            polls: true,
            background: true,
            reclaim_recheck: Recheck::default(),
            zswap_slots: TierSlots::default(),
            invalidate: Invalidate::default(),
            keeps_compressed: Clean::default(),
            same_filled: true,
            clean: Clean::default(),
            cache_partition: CachePartition::default(),
            token: true,
            swapoff_run: RUN_MAX,
            swapoff_depth: 2,
            frame_percpu: true,
            frame_pick: FramePick::default(),
            slot: SlotSettings::default(),
            uring: true,
            vector_drop: true,
            dormant: true,
            commit: Commit::default(),
        }
    }
}

const WAY_IN: Form<WayIn> =
    Form::Words(&[("auto", WayIn::Auto), ("copy", WayIn::Copy), ("move", WayIn::Move)]);
const RECHECK: Form<Recheck> = Form::Words(&[("wake", Recheck::Wake), ("timed", Recheck::Timed)]);
const TIER_SLOTS: Form<TierSlots> =
    Form::Words(&[("own", TierSlots::Own), ("device", TierSlots::Device)]);
const INVALIDATE: Form<Invalidate> = Form::Words(&[
    ("empty+lookup", Invalidate::EmptyLookup),
    ("empty", Invalidate::Empty),
    ("always", Invalidate::Always),
]);
const CLEAN: Form<Clean> =
    Form::Words(&[("auto", Clean::Auto), ("on", Clean::On), ("off", Clean::Off)]);
const PARTITION: Form<CachePartition> = Form::Words(&[
    ("2M", CachePartition::Bytes(2 << 20)),
    ("64M", CachePartition::Bytes(64 << 20)),
    ("device", CachePartition::Device),
]);
const SWAPOFF_RUN: Form<usize> = Form::Text {
    values: &["1..256"],
    parse: |text| up_to(RUN_MAX, text),
    show: ToString::to_string,
};
const SWAPOFF_DEPTH: Form<usize> = Form::Text {
    values: &["1..16"],
    parse: |text| up_to(SWAPOFF_DEPTH_MAX, text),
    show: ToString::to_string,
};
const COMMIT: Form<Commit> = Form::Words(&[("auto", Commit::Auto), ("strict", Commit::Strict)]);
const PICK: Form<FramePick> =
    Form::Words(&[("outside", FramePick::Outside), ("inside", FramePick::Inside)]);
const SLOT_LOCK: Form<SlotLock> =
    Form::Words(&[("cluster", SlotLock::Cluster), ("device", SlotLock::Device)]);
const SLOT_CACHE: Form<bool> = Form::Words(&[("64", true), ("off", false)]);
const BATCHING: Form<Batching> = Form::Words(&[("on", Batching::Whole), ("off", Batching::Single)]);

fn up_to(most: usize, text: &str) -> Option<usize> {
    text.parse().ok().filter(|number| (1..=most).contains(number))
}

/// The baselines. The first value, or the largest number, is the mechanism itself.
pub static BASELINES: &[Setting<Baselines>] = &[
    setting!(
        "in",
        way_in,
        WAY_IN,
        "Pages come in from the swap cache by UFFDIO_COPY or UFFDIO_MOVE only, rather than by \
         the way that is cheaper just now."
    ),
    setting!(
        "ahead",
        ahead,
        SWITCH,
        "Without it what comes next in a long sequence of pages on a device is read when the \
         program comes to it, and not before by a thread beside it."
    ),
    setting!(
        "poll",
        polls,
        SWITCH,
        "Without it the thread that serves faults sleeps whenever there is none, also where the \
         next one is to be expected before it could be asleep."
    ),
    setting!(
        "background",
        background,
        SWITCH,
        "Without it no thread reclaims ahead of need: each that needs memory reclaims for itself."
    ),
    setting!(
        "reclaim.recheck",
        reclaim_recheck,
        RECHECK,
        "A thread that waits to reclaim looks for frames whenever it wakes, or only after more \
         than a second, for four times the high watermark."
    ),
    setting!(
        "zswap.slots",
        zswap_slots,
        TIER_SLOTS,
        "Compressed pages have slots on no device, or slots of a device from the beginning, as \
         with the kernel's zswap."
    ),
    setting!(
        "zswap.invalidate",
        invalidate,
        INVALIDATE,
        "What is looked at before the lock of a range is taken for a slot that is given back: \
         whether the range has entries, and the slot's own; the range alone; or nothing."
    ),
    setting!(
        "zswap.keep",
        keeps_compressed,
        CLEAN,
        "Pages that come in from the compressed tier keep their copies always or never, rather \
         than while that pays."
    ),
    setting!(
        "same_filled",
        same_filled,
        SWITCH,
        "Without it a page of one repeated word is stored like any other."
    ),
    setting!(
        "clean",
        clean,
        CLEAN,
        "Pages that are read from a device keep their copies always or never, rather than while \
         that pays."
    ),
    setting!(
        "cache.partition",
        cache_partition,
        PARTITION,
        "How much swap space, and how many frames, share a lock of the swap cache."
    ),
    setting!(
        "token",
        token,
        SWITCH,
        "Without it processes of a job that thrash have equal shares, also where one after the \
         other would soon be done with all its pages in memory."
    ),
    setting!(
        "swapoff.run",
        swapoff_run,
        SWAPOFF_RUN,
        "How many pages at most are read with one operation from a device that is taken out of \
         use."
    ),
    setting!(
        "swapoff.depth",
        swapoff_depth,
        SWAPOFF_DEPTH,
        "How many such operations are in flight."
    ),
    setting!(
        "frame.percpu",
        frame_percpu,
        SWITCH,
        "Without it processors keep no lists of free page frames: each takes the lock of a zone."
    ),
    setting!(
        "frame.pick",
        frame_pick,
        PICK,
        "Frames that go back in bulk are chosen before the lock of the zone is taken, or under it."
    ),
    setting!(
        "slot.lock",
        slot.lock,
        SLOT_LOCK,
        "Swap slots are handed out and taken back under the lock of their cluster, or of the \
         device."
    ),
    setting!(
        "slot.cache",
        slot.cache,
        SLOT_CACHE,
        "How many swap slots each processor keeps to hand out, and how many freed ones it \
         collects."
    ),
    setting!(
        "slot.cpu_cluster",
        slot.cpu_cluster,
        SWITCH,
        "Without it processors take swap slots from one cluster, rather than each from its own."
    ),
    setting!(
        "swap.batch",
        slot.batching,
        BATCHING,
        "Without it one slot, or one page of the swap cache, is handled in each hold of a lock."
    ),
    setting!(
        "uring",
        uring,
        SWITCH,
        "Without it swap I/O uses blocking system calls, as where io_uring is forbidden."
    ),
    setting!(
        "vector_drop",
        vector_drop,
        SWITCH,
        "Without it scattered pages are dropped with a system call a range, rather than with one."
    ),
    setting!(
        "dormant",
        dormant,
        SWITCH,
        "Without it a process of `overspill run` has its engine from the beginning, however little \
         it does."
    ),
    setting!(
        "commit",
        commit,
        COMMIT,
        "With `strict` tables are as small as where the system promises only memory that it has."
    ),
];

impl Baselines {
    /// Applies a list such as `slot.lock=device,clean=off`.
    ///
    /// # Errors
    /// For what is no baseline, or not a value of it.
    pub fn apply(&mut self, list: &str) -> Result<(), BadSetting> {
        table::apply(BASELINES, "baseline", self, list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_parsed_and_shown_as_itself() {
        table::check(BASELINES);
    }
}
