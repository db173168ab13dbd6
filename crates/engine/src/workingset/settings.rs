//! What the compressed tier may take, and how densely it packs.

use overspill_os::codec::{BadCodec, Codec};
use std::fmt;
use std::str::FromStr;

/// Share of the budget that compressed pages may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CompressedMax {
    /// As refaults tell that it pays.
    #[default]
    Auto,
    /// So many percent, up to [`CompressedMax::PERCENT_MAX`].
    Percent(u8),
}

impl CompressedMax {
    /// No tier.
    pub const OFF: CompressedMax = CompressedMax::Percent(0);
    /// Most that can be asked for: pages that are used need frames.
    pub const PERCENT_MAX: u8 = 90;
}

impl FromStr for CompressedMax {
    type Err = ();

    fn from_str(text: &str) -> Result<CompressedMax, ()> {
        match text {
            "auto" => Ok(CompressedMax::Auto),
            _ => match text.parse() {
                Ok(percent @ 0..=CompressedMax::PERCENT_MAX) => Ok(CompressedMax::Percent(percent)),
                _ => Err(()),
            },
        }
    }
}

impl fmt::Display for CompressedMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompressedMax::Auto => f.write_str("auto"),
            CompressedMax::Percent(percent) => percent.fmt(f),
        }
    }
}

/// What the tier may pack pages with where nothing else was asked for, the quickest first. Level -1
/// of Zstandard leaves literals as they are: that saves most for records and pointers, little for
/// text.
pub const BY_DENSITY: [Codec; CODECS_MAX] = [Codec::Lz4, Codec::Zstd(-1), Codec::Zstd(1)];
/// How many codecs the tier chooses from at most.
pub const CODECS_MAX: usize = 3;

/// What packs the pages of the compressed tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TierCodec {
    /// LZ4; or what packs more densely, while that saves reads of devices.
    #[default]
    Auto,
    /// Always the same.
    Always(Codec),
}

impl TierCodec {
    /// What packs them at first, and what else may, the quickest first.
    pub fn codecs(self) -> Vec<Codec> {
        match self {
            TierCodec::Auto => BY_DENSITY.to_vec(),
            TierCodec::Always(codec) => vec![codec],
        }
    }
}

impl FromStr for TierCodec {
    type Err = BadCodec;

    fn from_str(text: &str) -> Result<TierCodec, BadCodec> {
        match text {
            "auto" => Ok(TierCodec::Auto),
            _ => text.parse().map(TierCodec::Always),
        }
    }
}

impl fmt::Display for TierCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TierCodec::Auto => f.write_str("auto"),
            TierCodec::Always(codec) => codec.fmt(f),
        }
    }
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
