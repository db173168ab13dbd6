//! What a pool is made with, and its textual forms (options, environment, settings).
//!
//! A setting is a row of a [table](SETTINGS): its name, values, default and meaning.

#[doc(hidden)]
pub mod baselines;
mod folio;
mod ram;
mod reclaim;
mod settings;
mod swap;
mod table;
mod tier;

use crate::Error;
use crate::frame::FrameSettings;
#[doc(hidden)]
pub use crate::swap::zswap::Invalidate;
use crate::units::Bytes;
#[doc(hidden)]
pub use baselines::{Baselines, CachePartition, Clean, WayIn};
pub use folio::FolioMax;
pub(crate) use folio::Folios;
pub use overspill_os::codec::{BadCodec, Codec};
pub use ram::{FaultKinds, FaultModel, RamModel};
#[doc(hidden)]
pub use reclaim::Recheck;
pub use reclaim::{Mark, OomWait, OutOfRoom, ReclaimMax, Watermarks};
pub use settings::SETTINGS;
use std::ops::Range;
use std::path::PathBuf;
pub use swap::{BadSwap, Discard, Label, SwapList, SwapSpec};
pub use table::{BadSetting, Setting};
pub(crate) use tier::CODECS_MAX;
#[doc(hidden)]
pub use tier::TierSlots;
pub use tier::{CompressedMax, Recompress, TierCodec};

/// How faults reach the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Delivery {
    /// A handler thread reads the userfaultfd: complete semantics, system calls included.
    #[default]
    Thread,
    /// The faulting thread serves itself in a SIGBUS handler: faster, but a system call that is
    /// handed an absent page fails with EFAULT.
    Signal,
}

/// How resident pages go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WayOut {
    /// Dense runs are moved, scattered pages are protected, stored and dropped; the cheaper by
    /// measurement in between.
    #[default]
    Auto,
    /// UFFDIO_MOVE only: the way that refuses pages pinned for DMA. Pages that the kernel will not
    /// move because they are not writable, to a device neither, still go the other way.
    Move,
    /// Write-protect, store, drop; never moved.
    Drop,
}

/// Most pages of a folio, or read at once around a missing page.
pub const FOLIO_MAX: usize = 64;
/// Most operations in flight on a device that is taken out of use: each has a thread and a buffer.
#[doc(hidden)]
pub const SWAPOFF_DEPTH_MAX: usize = 16;

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
    /// Setting `window`: address space reserved for managed memory, [`Config::WINDOW_MAX`] at most.
    pub window: Bytes,
    /// Where it must lie; anywhere if there is nothing here.
    pub window_at: Option<Range<usize>>,
    /// Which mechanisms run as their baselines do: for benches and tests.
    #[doc(hidden)]
    pub baselines: Baselines,
    /// File of [`crate::stats::FILE_BYTES`] bytes that the statistics are kept in, for others to
    /// read.
    pub stats_file: Option<PathBuf>,
    /// File of the [`crate::control::job::JobTable`] that tells the processes of a job about
    /// changes, if there is one.
    pub job_file: Option<PathBuf>,
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
            window: Bytes(1 << 40),
            window_at: None,
            baselines: Baselines::default(),
            stats_file: None,
            job_file: None,
        }
    }
}

impl Config {
    /// Smallest budget a pool runs in: its reserves and one batch of pages out and in.
    pub const MEMORY_MIN: Bytes = Bytes(4 << 20);
    /// Largest budget: half of the largest arena.
    pub const MEMORY_MAX: Bytes = Bytes(Config::ARENA_MAX.0 / 2);
    /// The largest arena: what entries of slots and of the compressed tier tell the frames of
    /// apart.
    pub(crate) const ARENA_MAX: Bytes = Bytes(4 << 40);
    /// The largest window: a page of it is told by 32 bits where there is an entry a slot.
    pub const WINDOW_MAX: Bytes = Bytes(8 << 40);

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
    pub(crate) fn check(&self) -> Result<(), Error> {
        Config::check_memory(self.memory)?;
        let watermarks = self.watermarks;
        if !watermarks.rise(self.memory.pages()) {
            return Err(Error::Watermarks { watermarks, memory: self.memory });
        }
        if self.window > Config::WINDOW_MAX {
            return Err(Error::WindowTooLarge { window: self.window });
        }
        Ok(())
    }

    /// What may have compressed a page.
    pub fn codecs(&self) -> Vec<Codec> {
        self.zswap_codec.codecs().into_iter().chain(self.zswap_recompress.codec()).collect()
    }

    /// How page frames are handed out, and how many are kept free.
    pub(crate) fn frame(&self) -> FrameSettings {
        let Baselines { frame_percpu: percpu, frame_pick: pick, .. } = self.baselines;
        FrameSettings { percpu, pick, watermarks: self.watermarks }
    }

    /// Applies a list of [`SETTINGS`] such as `out=move,folio=1`.
    ///
    /// # Errors
    /// For what is no setting, or not a value of it.
    pub fn apply_settings(&mut self, list: &str) -> Result<(), BadSetting> {
        table::apply(SETTINGS, "setting", self, list)
    }
}

/// A size as it is written in a setting: the largest unit of which it is a whole number.
fn size_text(size: Bytes) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| size.0 > 0 && size.0.is_multiple_of(1 << shift));
    unit.map_or(size.0.to_string(), |(shift, unit)| format!("{}{unit}", size.0 >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_parsed_and_shown_as_itself() {
        table::check(SETTINGS);
    }

    #[test]
    fn settings_apply_or_say_why() {
        let mut config = Config::default();
        config.apply_settings("out=move,folio=1,workers=3,compressed=0,window=3M").unwrap();
        assert_eq!((config.way_out, config.workers), (WayOut::Move, Some(3)));
        assert_eq!((config.folio, config.compressed_max), (FolioMax::Pages(1), CompressedMax::OFF));
        assert_eq!(config.window, Bytes(4 << 20));
        config.apply_settings("zswap.codec=zstd:9,zswap.recompress=zstd").unwrap();
        assert_eq!(config.zswap_codec, TierCodec::Always(Codec::Zstd(9)));
        assert_eq!(config.zswap_recompress, Recompress::Cold(Codec::ZSTD_LEVEL));
        let error = config.apply_settings("zswap.codec=lzo").unwrap_err().to_string();
        let expected = "setting zswap.codec cannot be 'lzo': it takes auto|lz4|zstd[:LEVEL]|none";
        assert_eq!(error, expected);
        for bad in [
            "out",
            "out=x",
            "nope=1",
            "folio=3",
            "folio=128",
            "readahead=0",
            "workers=17",
            "compressed=91",
            "zswap.recompress=lz4",
            "watermark=1%",
            "window=1",
            "window=9T",
        ] {
            assert!(config.apply_settings(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_written_in_their_largest_unit() {
        let texts = [0, 1000, 4096, 3 << 20, 5 << 30, 8 << 40].map(|size| size_text(Bytes(size)));
        assert_eq!(texts, ["0", "1000", "4K", "3M", "5G", "8T"]);
    }
}
