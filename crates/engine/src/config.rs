//! What a pool is made with, and its textual forms (options, environment, settings).

mod folio;
mod ram;
mod reclaim;
mod swap;
mod tier;

use crate::Error;
use crate::device::RUN_MAX;
use crate::frame::{FrameSettings, Pick};
use crate::slot::{Batching, SlotLock, SlotSettings};
pub use crate::swap::zswap::Invalidate;
use crate::units::Bytes;
pub use folio::FolioMax;
pub(crate) use folio::Folios;
pub use overspill_os::codec::{BadCodec, Codec};
pub use ram::{FaultKinds, FaultModel, RamModel};
pub use reclaim::{Mark, OomWait, OutOfRoom, Recheck, ReclaimMax, Watermarks};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
pub use swap::{BadSwap, Discard, Label, SwapList, SwapSpec};
pub(crate) use tier::CODECS_MAX;
pub use tier::{CompressedMax, Recompress, TierCodec, TierSlots};

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

/// How a stored page comes back in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WayIn {
    /// The cheaper by what was measured while running.
    #[default]
    Auto,
    /// UFFDIO_COPY always.
    Copy,
    /// UFFDIO_MOVE where the content lies in a frame of its own (Linux 6.8 and later).
    Move,
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

/// Whether pages that are read from a device, or from the compressed tier, keep their copies there
/// while they are not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Clean {
    /// While that pays by what was measured while running.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl Clean {
    /// As it is set.
    fn of(value: &str) -> Option<Clean> {
        match value {
            "auto" => Some(Clean::Auto),
            "on" => Some(Clean::On),
            "off" => Some(Clean::Off),
            _ => None,
        }
    }
}

/// How much swap space, or how many frames, share a lock of the swap cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CachePartition {
    /// A whole device, and all frames.
    Device,
    /// So many bytes, a power of two.
    Bytes(u64),
}

impl Default for CachePartition {
    fn default() -> CachePartition {
        CachePartition::Bytes(2 << 20)
    }
}

/// Most pages of a folio, or read at once around a missing page.
pub const FOLIO_MAX: usize = 64;
/// Most operations in flight on a device that is taken out of use: each has a thread and a buffer.
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
    /// Setting `in`.
    pub way_in: WayIn,
    /// Setting `out`.
    pub way_out: WayOut,
    /// Setting `background`: whether a thread reclaims ahead of need.
    pub background: bool,
    /// Setting `workers`: threads that store pages ahead of need, the one of `background` included;
    /// `None` for one for four processors, up to four.
    pub workers: Option<u8>,
    /// Setting `reclaim.max`: most threads that reclaim for themselves at once; the others wait.
    pub reclaim_max: ReclaimMax,
    /// Setting `reclaim.recheck`: when those who wait look for frames.
    pub reclaim_recheck: Recheck,
    /// Setting `oom`: what becomes of an access for which there is no room.
    pub oom: OutOfRoom,
    /// Setting `oom.wait`: how long reclaim may be fruitless before.
    pub oom_wait: OomWait,
    /// Setting `folio`: most pages brought in by one fault; 1 turns folios off.
    pub folio: FolioMax,
    /// Setting `compressed`: share of the budget that compressed pages may take.
    pub compressed_max: CompressedMax,
    /// Setting `zswap.codec`: what packs the pages of the compressed tier.
    pub zswap_codec: TierCodec,
    /// Setting `zswap.recompress`: what packs compressed pages more densely that stay cold, before
    /// they go to devices.
    pub zswap_recompress: Recompress,
    /// Setting `zswap.slots`: which slots compressed pages have.
    pub zswap_slots: TierSlots,
    /// Setting `zswap.invalidate`: what is looked at before the lock of the compressed tier is
    /// taken for a slot given back.
    pub invalidate: Invalidate,
    /// Setting `zswap.incompressible`: whether pages that do not compress are kept as they are.
    pub keeps_incompressible: bool,
    /// Setting `zswap.keep`: whether pages that are read from the compressed tier keep their copies
    /// there while they are not written and it has room.
    pub keeps_compressed: Clean,
    /// Setting `same_filled`: whether pages whose words are all the same are kept as that word.
    pub same_filled: bool,
    /// Setting `clean`: whether pages read from a device keep their slots while they are not
    /// written.
    pub clean: Clean,
    /// Setting `cache.partition`: how much of the swap cache a lock guards.
    pub cache_partition: CachePartition,
    /// Setting `readahead`: most pages read around one that is missing, a power of two up to 64; 1
    /// turns it off.
    pub readahead_max: usize,
    /// Setting `swapoff.run`: most slots that are read with one operation from a device that is
    /// taken out of use.
    pub swapoff_run: usize,
    /// Setting `swapoff.depth`: how many such operations are in flight.
    pub swapoff_depth: usize,
    /// Settings `frame.percpu` and `frame.pick`: how page frames are handed out. Settings
    /// `watermark.*`: how many are kept free.
    pub frame: FrameSettings,
    /// Settings `slot.lock`, `slot.cache` and `slot.cpu_cluster`: how swap slots are handed out.
    /// Setting `swap.batch`: how much is done in one hold of a lock of slots or of the swap cache.
    pub slot: SlotSettings,
    /// Setting `uring`: whether swap I/O may use io_uring.
    pub uring: bool,
    /// Setting `vector_drop`: whether scattered pages are dropped with one process_madvise.
    pub vector_drop: bool,
    /// Setting `window`: address space reserved for managed memory, [`Config::WINDOW_MAX`] at most.
    pub window: Bytes,
    /// Where it must lie; anywhere if there is nothing here.
    pub window_at: Option<Range<usize>>,
    /// File of [`crate::stats::FILE_BYTES`] bytes that the statistics are kept in, for others to
    /// read.
    pub stats_file: Option<PathBuf>,
    /// File of the [`crate::control::job::JobTable`] that tells the processes of a job about changes, if
    /// there is one.
    pub job_file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            memory: Bytes(0),
            swap: Vec::new(),
            delivery: Delivery::Thread,
            way_in: WayIn::Auto,
            way_out: WayOut::Auto,
            background: true,
            workers: None,
            reclaim_max: ReclaimMax::default(),
            reclaim_recheck: Recheck::default(),
            oom: OutOfRoom::default(),
            oom_wait: OomWait::default(),
            folio: FolioMax::default(),
            compressed_max: CompressedMax::default(),
            zswap_codec: TierCodec::default(),
            zswap_recompress: Recompress::default(),
            zswap_slots: TierSlots::default(),
            invalidate: Invalidate::default(),
            keeps_incompressible: false,
            keeps_compressed: Clean::Auto,
            same_filled: true,
            clean: Clean::Auto,
            cache_partition: CachePartition::default(),
            readahead_max: 8,
            swapoff_run: RUN_MAX,
            swapoff_depth: 2,
            frame: FrameSettings::default(),
            slot: SlotSettings::default(),
            uring: true,
            vector_drop: true,
            window: Bytes(1 << 40),
            window_at: None,
            stats_file: None,
            job_file: None,
        }
    }
}

/// Why a setting was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSetting(String);

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSetting {}

/// The settings, each with its values, for messages and help.
pub const SETTINGS: &[(&str, &str)] = &[
    ("in", "auto|copy|move"),
    ("out", "auto|move|drop"),
    ("background", "on|off"),
    ("workers", "auto|1..16"),
    ("reclaim.max", "auto|1..1024|off"),
    ("reclaim.recheck", "wake|timed"),
    ("watermark.min", "auto|PERCENT%|SIZE"),
    ("watermark.low", "auto|PERCENT%|SIZE"),
    ("watermark.high", "auto|PERCENT%|SIZE"),
    ("oom", "sigbus|kill"),
    ("oom.wait", "TIME"),
    ("folio", "auto|1|2|4|8|16|32|64"),
    ("compressed", "auto|0..90"),
    ("zswap.codec", "auto|lz4|zstd[:LEVEL]|none"),
    ("zswap.recompress", "auto|off|zstd[:LEVEL]"),
    ("zswap.slots", "own|device"),
    ("zswap.invalidate", "empty+lookup|empty|always"),
    ("zswap.incompressible", "device|keep"),
    ("zswap.keep", "auto|on|off"),
    ("same_filled", "on|off"),
    ("clean", "auto|on|off"),
    ("cache.partition", "device|64M|2M"),
    ("readahead", "1|2|4|8|16|32|64"),
    ("swapoff.run", "1..256"),
    ("swapoff.depth", "1..16"),
    ("frame.percpu", "on|off"),
    ("frame.pick", "outside|inside"),
    ("slot.lock", "cluster|device"),
    ("slot.cache", "64|off"),
    ("slot.cpu_cluster", "on|off"),
    ("swap.batch", "on|off"),
    ("uring", "on|off"),
    ("vector_drop", "on|off"),
    ("window", "2M..8T"),
];

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
        let watermarks = self.frame.watermarks;
        if !watermarks.rise(self.memory.pages()) {
            return Err(Error::Watermarks { watermarks, memory: self.memory });
        }
        if self.window > Config::WINDOW_MAX {
            return Err(Error::WindowTooLarge { window: self.window });
        }
        Ok(())
    }

    /// What may have packed a page.
    pub fn codecs(&self) -> Vec<Codec> {
        self.zswap_codec.codecs().into_iter().chain(self.zswap_recompress.codec()).collect()
    }

    /// Applies a list such as `out=move,folio=1`.
    pub fn apply_settings(&mut self, list: &str) -> Result<(), BadSetting> {
        list.split(',')
            .filter(|s| !s.is_empty())
            .try_for_each(|setting| self.apply_setting(setting))
    }

    fn apply_setting(&mut self, setting: &str) -> Result<(), BadSetting> {
        let (key, value) = setting.split_once('=').ok_or_else(|| {
            BadSetting(format!("setting '{setting}' has no value: write KEY=VALUE"))
        })?;
        let Some((_, values)) = SETTINGS.iter().find(|(name, _)| *name == key) else {
            let known: Vec<_> = SETTINGS.iter().map(|(name, _)| *name).collect();
            return Err(BadSetting(format!(
                "there is no setting '{key}': choose one of {}",
                known.join(", ")
            )));
        };
        let bad = || BadSetting(format!("setting {key} cannot be '{value}': it takes {values}"));
        let switch = |on: &mut bool| {
            *on = match value {
                "on" => true,
                "off" => false,
                _ => return Err(bad()),
            };
            Ok(())
        };
        let up_to =
            |most: usize| value.parse().ok().filter(|n| (1..=most).contains(n)).ok_or_else(bad);
        let pages =
            || value.parse().ok().filter(|n: &usize| n.is_power_of_two() && *n <= FOLIO_MAX);
        match key {
            "in" => {
                self.way_in = match value {
                    "auto" => WayIn::Auto,
                    "copy" => WayIn::Copy,
                    "move" => WayIn::Move,
                    _ => return Err(bad()),
                }
            }
            "out" => {
                self.way_out = match value {
                    "auto" => WayOut::Auto,
                    "move" => WayOut::Move,
                    "drop" => WayOut::Drop,
                    _ => return Err(bad()),
                }
            }
            "background" => switch(&mut self.background)?,
            "workers" => {
                self.workers = match value {
                    "auto" => None,
                    _ => Some(value.parse().ok().filter(|n| (1..=16).contains(n)).ok_or_else(bad)?),
                }
            }
            "reclaim.max" => self.reclaim_max = value.parse().map_err(|()| bad())?,
            "watermark.min" => self.frame.watermarks.min = value.parse().map_err(|()| bad())?,
            "watermark.low" => self.frame.watermarks.low = value.parse().map_err(|()| bad())?,
            "watermark.high" => self.frame.watermarks.high = value.parse().map_err(|()| bad())?,
            "oom" => {
                self.oom = match value {
                    "sigbus" => OutOfRoom::Sigbus,
                    "kill" => OutOfRoom::Kill,
                    _ => return Err(bad()),
                }
            }
            "oom.wait" => self.oom_wait = value.parse().map_err(|()| bad())?,
            "reclaim.recheck" => {
                self.reclaim_recheck = match value {
                    "wake" => Recheck::Wake,
                    "timed" => Recheck::Timed,
                    _ => return Err(bad()),
                }
            }
            "swapoff.run" => self.swapoff_run = up_to(RUN_MAX)?,
            "swapoff.depth" => self.swapoff_depth = up_to(SWAPOFF_DEPTH_MAX)?,
            "frame.percpu" => switch(&mut self.frame.percpu)?,
            "frame.pick" => {
                self.frame.pick = match value {
                    "outside" => Pick::Outside,
                    "inside" => Pick::Inside,
                    _ => return Err(bad()),
                }
            }
            "slot.lock" => {
                self.slot.lock = match value {
                    "cluster" => SlotLock::Cluster,
                    "device" => SlotLock::Device,
                    _ => return Err(bad()),
                }
            }
            "slot.cache" => {
                self.slot.cache = match value {
                    "64" => true,
                    "off" => false,
                    _ => return Err(bad()),
                }
            }
            "zswap.invalidate" => {
                self.invalidate = match value {
                    "always" => Invalidate::Always,
                    "empty" => Invalidate::Empty,
                    "empty+lookup" => Invalidate::EmptyLookup,
                    _ => return Err(bad()),
                }
            }
            "zswap.incompressible" => {
                self.keeps_incompressible = match value {
                    "device" => false,
                    "keep" => true,
                    _ => return Err(bad()),
                }
            }
            "zswap.recompress" => {
                self.zswap_recompress = match value {
                    "auto" => Recompress::LastResort,
                    "off" => Recompress::Off,
                    _ => {
                        let level = value.parse().ok().and_then(|codec| match codec {
                            Codec::Zstd(level) => Some(level),
                            _ => None,
                        });
                        Recompress::Cold(level.ok_or_else(bad)?)
                    }
                }
            }
            "zswap.slots" => {
                self.zswap_slots = match value {
                    "own" => TierSlots::Own,
                    "device" => TierSlots::Device,
                    _ => return Err(bad()),
                }
            }
            "zswap.keep" => self.keeps_compressed = Clean::of(value).ok_or_else(bad)?,
            "same_filled" => switch(&mut self.same_filled)?,
            "slot.cpu_cluster" => switch(&mut self.slot.cpu_cluster)?,
            "swap.batch" => {
                let mut on = false;
                switch(&mut on)?;
                self.slot.batching = if on { Batching::Whole } else { Batching::Single };
            }
            "uring" => switch(&mut self.uring)?,
            "vector_drop" => switch(&mut self.vector_drop)?,
            "zswap.codec" => {
                self.zswap_codec = value.parse().map_err(|bad: BadCodec| {
                    BadSetting(format!("setting {key}: {bad}; or auto"))
                })?;
            }
            "clean" => self.clean = Clean::of(value).ok_or_else(bad)?,
            "cache.partition" => {
                self.cache_partition = match value {
                    "device" => CachePartition::Device,
                    "64M" => CachePartition::Bytes(64 << 20),
                    "2M" => CachePartition::Bytes(2 << 20),
                    _ => return Err(bad()),
                }
            }
            "folio" if value == "auto" => self.folio = FolioMax::Auto,
            "folio" => self.folio = FolioMax::Pages(pages().ok_or_else(bad)?),
            "readahead" => self.readahead_max = pages().ok_or_else(bad)?,
            "compressed" => self.compressed_max = value.parse().map_err(|()| bad())?,
            "window" => {
                let size: Bytes = value.parse().map_err(|_| bad())?;
                if size.0 < 1 << 21 || size > Config::WINDOW_MAX {
                    return Err(bad());
                }
                self.window = Bytes(size.0.next_multiple_of(1 << 21));
            }
            _ => unreachable!("every key of SETTINGS is matched"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_apply_or_say_why() {
        let mut config = Config::default();
        config
            .apply_settings("out=move,in=copy,folio=1,background=off,compressed=0,window=3M")
            .unwrap();
        assert_eq!((config.way_out, config.way_in), (WayOut::Move, WayIn::Copy));
        assert_eq!(
            (config.folio, config.background, config.compressed_max),
            (FolioMax::Pages(1), false, CompressedMax::OFF)
        );
        assert_eq!(config.window, Bytes(4 << 20));
        config.apply_settings("zswap.codec=zstd:9").unwrap();
        assert_eq!(config.zswap_codec, TierCodec::Always(Codec::Zstd(9)));
        let error = config.apply_settings("zswap.codec=lzo").unwrap_err().to_string();
        assert!(
            error.starts_with("setting zswap.codec: 'lzo' is no codec: write lz4, "),
            "{error}"
        );
        for bad in [
            "out",
            "out=x",
            "nope=1",
            "folio=3",
            "folio=128",
            "compressed=91",
            "background=1",
            "window=1",
            "window=9T",
        ] {
            assert!(config.apply_settings(bad).is_err(), "{bad}");
        }
    }
}
