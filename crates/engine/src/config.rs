//! What a pool is made with, and its textual forms (options, environment, settings).
//!
//! A setting belongs to the part that it sets: its type lies there, and [`Config`] only puts them
//! together and hands each part its own. As text a setting is a row of a [table](SETTINGS): name,
//! values, default and meaning, from which the parser, its refusals and the help come. What exists
//! to show a mechanism beside its baseline is in `baselines`, which only benches and tests reach.
//!
//! Locks: none. It is read when a pool is made.
//!
//! Below it: the settings of all parts, and [`Error`].

mod addresses;
#[doc(hidden)]
pub mod baselines;
mod settings;
mod table;

use crate::control::settings::ControlSettings;
#[doc(hidden)]
pub use crate::control::settings::SWAPOFF_DEPTH_MAX;
pub use crate::device::spec::{BadSwap, Discard, Label, SwapList, SwapSpec};
pub use crate::device::{FaultKinds, FaultModel, RamModel};
use crate::error::Error;
pub use crate::fault::folio::FolioMax;
pub use crate::fault::settings::Delivery;
use crate::fault::settings::FaultSettings;
#[doc(hidden)]
pub use crate::fault::settings::WayIn;
use crate::frame::FrameSettings;
pub use crate::frame::{Mark, Watermarks};
use crate::memory::{MEMORY_MAX, MEMORY_MIN, MemorySettings, WINDOW_MAX};
#[doc(hidden)]
pub use crate::reclaim::settings::Recheck;
use crate::reclaim::settings::ReclaimSettings;
pub use crate::reclaim::settings::{OomWait, OutOfRoom, ReclaimMax, WayOut};
pub use crate::swap::settings::Recompress;
use crate::swap::settings::SwapSettings;
#[doc(hidden)]
pub use crate::swap::settings::{CachePartition, TierSlots};
#[doc(hidden)]
pub use crate::swap::zswap::Invalidate;
use crate::units::Bytes;
pub use crate::units::FOLIO_MAX;
#[doc(hidden)]
pub use crate::workingset::settings::Clean;
pub use crate::workingset::settings::{CompressedMax, TierCodec};
pub use addresses::Overhead;
#[doc(hidden)]
pub use baselines::{Baselines, Commit};
pub use overspill_os::codec::{BadCodec, Codec};
pub use settings::SETTINGS;
use std::ops::Range;
use std::path::PathBuf;
pub use table::{BadSetting, Setting};

/// Everything a pool is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The budget: resident managed pages, compressed pages, and pages on their way in or out.
    pub memory: Bytes,
    /// Swap devices; none means the compressed tier only.
    pub swap: Vec<SwapSpec>,
    /// How faults are delivered.
    pub delivery: Delivery,
    /// Setting `out`.
    pub way_out: WayOut,
    /// Setting `workers`: threads that store pages ahead of need; `None` for one for four
    /// processors, up to four.
    pub workers: Option<u8>,
    /// Setting `reclaim.max`: most threads that reclaim for themselves at once; the others wait.
    pub reclaim_max: ReclaimMax,
    /// Setting `watermark`: how much of the budget is kept free.
    pub watermarks: Watermarks,
    /// Setting `oom`: what becomes of an access for which there is no room.
    pub oom: OutOfRoom,
    /// Setting `oom.wait`: how long reclaim may be fruitless before.
    pub oom_wait: OomWait,
    /// Setting `folio`: most pages brought in by one fault; 1 turns folios off.
    pub folio: FolioMax,
    /// Setting `compressed`: share of the budget that compressed pages may take.
    pub compressed_max: CompressedMax,
    /// Setting `zswap.codec`: what compresses pages.
    pub zswap_codec: TierCodec,
    /// Setting `zswap.recompress`: what compresses pages more densely that stay cold, before they
    /// go to devices.
    pub zswap_recompress: Recompress,
    /// Setting `zswap.incompressible`: whether pages that do not compress are kept as they are.
    pub keeps_incompressible: bool,
    /// Setting `readahead`: most pages read around one that is missing, a power of two up to 64; 1
    /// turns it off.
    pub readahead_max: usize,
    /// Setting `window`: address space reserved for managed memory, [`Config::WINDOW_MAX`] at most;
    /// what [`Config::window_bytes`] says if there is nothing here.
    pub window: Option<Bytes>,
    /// How much that is where addresses cost nothing.
    pub auto_window: Bytes,
    /// Where it must begin, and end at the latest; anywhere if there is nothing here.
    pub window_at: Option<Range<usize>>,
    /// Private anonymous memory of the program's, whole pages, that is managed where it lies, with
    /// what it holds. It takes up as much of the window.
    pub annexes: Vec<Range<usize>>,
    /// Whole pages that are reserved for mappings that must lie there ([`crate::MapFlags::low`]).
    /// They take up as much of the window.
    pub low: Option<Range<usize>>,
    /// Which mechanisms run as their baselines do: for benches and tests.
    #[doc(hidden)]
    pub baselines: Baselines,
    /// The directory of a run: the statistics are kept in a file there, for others to read, and the
    /// [`crate::control::job::JobTable`] tells the processes of the job about changes.
    pub run_dir: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            memory: Bytes(0),
            swap: Vec::new(),
            delivery: Delivery::Thread,
            way_out: WayOut::Auto,
            workers: None,
            reclaim_max: ReclaimMax::default(),
            watermarks: Watermarks::default(),
            oom: OutOfRoom::default(),
            oom_wait: OomWait::default(),
            folio: FolioMax::default(),
            compressed_max: CompressedMax::default(),
            zswap_codec: TierCodec::default(),
            zswap_recompress: Recompress::default(),
            keeps_incompressible: false,
            readahead_max: 8,
            window: None,
            auto_window: Bytes(1 << 40),
            window_at: None,
            annexes: Vec::new(),
            low: None,
            baselines: Baselines::default(),
            run_dir: None,
        }
    }
}

impl Config {
    /// Smallest budget a pool runs in: its reserves and one batch of pages out and in.
    pub const MEMORY_MIN: Bytes = MEMORY_MIN;
    /// Largest budget: half of the largest arena.
    pub const MEMORY_MAX: Bytes = MEMORY_MAX;
    /// The largest window: a page of it is told by 32 bits where there is an entry a slot.
    pub const WINDOW_MAX: Bytes = WINDOW_MAX;

    /// What is not said otherwise in a process of a job, which has one pool: runtimes reserve a
    /// little more than 1 TiB at once (Haskell's).
    pub fn of_job() -> Config {
        Config { auto_window: Bytes(2 << 40), ..Config::default() }
    }

    /// Whether a pool can have such a budget.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`], [`Error::BudgetTooLarge`].
    pub fn check_memory(memory: Bytes) -> Result<(), Error> {
        match memory {
            _ if memory < Config::MEMORY_MIN => Err(Error::BudgetTooSmall { memory }),
            _ if memory > Config::MEMORY_MAX => Err(Error::BudgetTooLarge { memory }),
            _ => Ok(()),
        }
    }

    /// Whether a pool can be made with this.
    ///
    /// # Errors
    /// For values that are out of bounds, or do not go together.
    pub fn check(&self) -> Result<(), Error> {
        Config::check_memory(self.memory)?;
        let watermarks = self.watermarks;
        if !watermarks.rise(self.memory.pages()) {
            return Err(Error::Watermarks { watermarks, memory: self.memory });
        }
        match self.window {
            Some(window) if window > Config::WINDOW_MAX => Err(Error::WindowTooLarge { window }),
            _ => Ok(()),
        }
    }

    pub(crate) fn memory(&self) -> MemorySettings {
        let Baselines { frame_percpu: percpu, frame_pick: pick, .. } = self.baselines;
        MemorySettings {
            memory: self.memory,
            memory_max: self.memory_max(),
            window: self.window_bytes(),
            window_at: self.window_at.clone(),
            annexes: self.annexes.clone(),
            low: self.low.clone(),
            frames: FrameSettings { percpu, pick, watermarks: self.watermarks },
            own_faults: self.delivery == Delivery::Signal,
            account: None,
        }
    }

    pub(crate) fn swap(&self) -> SwapSettings {
        SwapSettings {
            compressed_max: self.compressed_max,
            codec: self.zswap_codec,
            recompress: self.zswap_recompress,
            keeps_incompressible: self.keeps_incompressible,
            same_filled: self.baselines.same_filled,
            slots: self.baselines.zswap_slots,
            keeps_compressed: self.baselines.keeps_compressed,
            clean: self.baselines.clean,
            partition: self.baselines.cache_partition,
            batching: self.baselines.slot.batching,
            invalidate: self.baselines.invalidate,
        }
    }

    pub(crate) fn reclaim(&self) -> ReclaimSettings {
        ReclaimSettings {
            way_out: self.way_out,
            max: self.reclaim_max,
            own_faults: self.delivery == Delivery::Signal,
            recheck: self.baselines.reclaim_recheck,
            oom: self.oom,
            oom_wait: self.oom_wait,
        }
    }

    pub(crate) fn fault(&self) -> FaultSettings {
        FaultSettings {
            delivery: self.delivery,
            folio: self.folio,
            readahead_max: self.readahead_max,
            way_in: self.baselines.way_in,
            ahead: self.baselines.ahead,
            polls: self.baselines.polls,
        }
    }

    pub(crate) fn control(&self) -> ControlSettings {
        ControlSettings {
            run_dir: self.run_dir.clone(),
            swapoff_run: self.baselines.swapoff_run,
            swapoff_depth: self.baselines.swapoff_depth,
            oom_wait: self.oom_wait.0,
            token: self.baselines.token,
        }
    }
}

impl From<BadSetting> for Error {
    fn from(bad: BadSetting) -> Error {
        Error::BadSetting(bad.to_string())
    }
}
