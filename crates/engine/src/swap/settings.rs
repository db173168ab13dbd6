//! How pages are stored that have left memory.

use crate::slot::Batching;
use crate::swap::zswap::Invalidate;
use crate::workingset::settings::{BY_DENSITY, Clean, CompressedMax, TierCodec};
use overspill_os::codec::Codec;
use std::fmt;
use std::str::FromStr;

/// The settings of swap.
#[derive(Clone, Debug)]
pub struct SwapSettings {
    /// Share of the budget that compressed pages may take.
    pub compressed_max: CompressedMax,
    /// What compresses pages, and what does so more densely.
    pub codec: TierCodec,
    pub recompress: Recompress,
    /// Whether pages that do not compress are kept as they are.
    pub keeps_incompressible: bool,
    /// Whether a page of one repeated word is kept as that word.
    pub same_filled: bool,
    /// Which slots compressed pages have.
    pub slots: TierSlots,
    /// Whether pages that come in keep their copies in the compressed tier, and on devices.
    pub keeps_compressed: Clean,
    pub clean: Clean,
    /// What shares a lock of the swap cache, and how much is done in one hold of it.
    pub partition: CachePartition,
    pub batching: Batching,
    /// What is looked at before a lock is taken for a slot that is given back.
    pub invalidate: Invalidate,
}

impl SwapSettings {
    /// What may have compressed a page.
    pub fn codecs(&self) -> Vec<Codec> {
        self.codec.codecs().into_iter().chain(self.recompress.codec()).collect()
    }
}

/// When compressed pages that stay cold are packed more densely.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recompress {
    /// When the compressed tier is full and no device has room: by Zstandard of level 1.
    #[default]
    LastResort,
    /// Never.
    Off,
    /// Whenever the tier is full, before they go to a device: by Zstandard of this level.
    Cold(i8),
}

impl Recompress {
    /// What packs them.
    pub fn codec(self) -> Option<Codec> {
        match self {
            Recompress::LastResort => BY_DENSITY.last().copied(),
            Recompress::Off => None,
            Recompress::Cold(level) => Some(Codec::Zstd(level)),
        }
    }
}

impl FromStr for Recompress {
    type Err = ();

    fn from_str(text: &str) -> Result<Recompress, ()> {
        match text {
            "auto" => Ok(Recompress::LastResort),
            "off" => Ok(Recompress::Off),
            _ => match text.parse() {
                Ok(Codec::Zstd(level)) => Ok(Recompress::Cold(level)),
                _ => Err(()),
            },
        }
    }
}

impl fmt::Display for Recompress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recompress::LastResort => f.write_str("auto"),
            Recompress::Off => f.write_str("off"),
            Recompress::Cold(level) => Codec::Zstd(*level).fmt(f),
        }
    }
}

/// Which slots compressed pages have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TierSlots {
    /// Some on no device; a page gets one of a device when it is written to it.
    #[default]
    Own,
    /// Some of a device from the beginning, while one has any, as with the kernel's zswap.
    Device,
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
