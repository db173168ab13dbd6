//! Codecs of single pages: what packs them, and how they are named.
//!
//! A [`Compressor`] is of one [`Codec`] and has its workspace, one for each thread that compresses;
//! a [`Decompressor`] reads what any codec wrote that it was made for. A packed page carries
//! neither its length, nor a checksum, nor what packed it: whoever stores it keeps these, the last
//! as a [`CodecId`] of two bits.
//!
//! None of them allocates after it was made, by Rust's allocator or by C's: in the preload library,
//! malloc is the program's heap, which the engine serves. There are no locks. Neighbours: `lz4` and
//! `zstd`, the C libraries.

mod corrupt;
mod lz4;
#[cfg(test)]
mod tests;
mod zstd;

use crate::units::{Errno, PAGE_SIZE};
pub use corrupt::CorruptPage;
use std::fmt;
use std::str::FromStr;
use zstd::{ZstdCompressor, ZstdDecompressor};

/// Levels of Zstandard: there is no level 0, and at -7 it is already neither denser nor faster than
/// LZ4 (`overspill-bench codecs`).
const ZSTD_FIRST: i8 = -7;
const ZSTD_LAST: i8 = 19;

/// What packs pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Codec {
    /// LZ4, fastest by far: 4 to 7 us to pack a page of a heap, 2 to unpack it.
    #[default]
    Lz4,
    /// Zstandard, which takes two to three times as long at levels 1 to 3, for a third fewer bytes.
    /// The level is one of [`Codec::zstd_levels`]; those below 0 leave literals as they are: for
    /// pages of a heap level -1 takes 0.7 of the time of level 1, and saves 0.8 of the bytes that
    /// level 1 saves beyond LZ4.
    Zstd(i8),
    /// Pages are kept as they are.
    None,
}

impl Codec {
    /// Levels of [`Codec::Zstd`]. Level 6 takes 4 times as long as level 3, level 12 17 times,
    /// level 19 60 times, for 3, 6 and 9 % fewer bytes: for pages that stay cold, if at all.
    pub fn zstd_levels() -> impl Iterator<Item = i8> {
        (ZSTD_FIRST..=-1).chain(1..=ZSTD_LAST)
    }

    /// The level where none is named, as of the zstd command.
    pub const ZSTD_LEVEL: i8 = 3;

    /// What is to be known to read a page that this codec packed.
    pub fn id(self) -> CodecId {
        match self {
            Codec::None => CodecId::None,
            Codec::Lz4 => CodecId::Lz4,
            Codec::Zstd(_) => CodecId::Zstd,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::Lz4 => f.write_str("lz4"),
            Codec::Zstd(level) => write!(f, "zstd:{level}"),
            Codec::None => f.write_str("none"),
        }
    }
}

impl FromStr for Codec {
    type Err = BadCodec;

    fn from_str(name: &str) -> Result<Codec, BadCodec> {
        match name.split_once(':') {
            None if name == "lz4" => Ok(Codec::Lz4),
            None if name == "none" => Ok(Codec::None),
            None if name == "zstd" => Ok(Codec::Zstd(Codec::ZSTD_LEVEL)),
            Some(("zstd", level)) => {
                let level = level
                    .parse()
                    .ok()
                    .filter(|level| Codec::zstd_levels().any(|known| known == *level));
                level.map(Codec::Zstd).ok_or_else(|| BadCodec(name.to_owned()))
            }
            _ => Err(BadCodec(name.to_owned())),
        }
    }
}

/// A name that is no codec's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadCodec(String);

impl fmt::Display for BadCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels = format_args!("1 to {ZSTD_LAST}, or {ZSTD_FIRST} to -1");
        write!(
            f,
            "'{}' is no codec: write lz4, zstd, zstd:LEVEL with a level of {levels}, or none",
            self.0
        )
    }
}

impl std::error::Error for BadCodec {}

/// Tells how a page was packed, in two bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CodecId {
    /// Not at all.
    None = 0,
    /// By [`Codec::Lz4`].
    Lz4 = 1,
    /// By [`Codec::Zstd`] of any level.
    Zstd = 2,
}

impl CodecId {
    /// Bits of [`CodecId::to_bits`].
    pub const BITS: u32 = 2;

    /// The form to be kept with a page.
    pub fn to_bits(self) -> u64 {
        self as u64
    }

    /// From that form; `None` where it is no codec's.
    pub fn from_bits(bits: u64) -> Option<CodecId> {
        [CodecId::None, CodecId::Lz4, CodecId::Zstd].into_iter().find(|id| id.to_bits() == bits)
    }
}

/// Packs pages.
pub struct Compressor {
    codec: Codec,
    workspace: Workspace,
}

enum Workspace {
    None,
    Lz4(lz4::Lz4),
    Zstd(ZstdCompressor),
}

impl Compressor {
    /// A compressor with its workspace: 16 KiB for LZ4, 72 to 270 KiB for Zstandard by level.
    ///
    /// # Errors
    /// ENOMEM when there is no memory for the workspace.
    pub fn new(codec: Codec) -> Result<Compressor, Errno> {
        let workspace = match codec {
            Codec::None => Workspace::None,
            Codec::Lz4 => Workspace::Lz4(lz4::Lz4::new()?),
            Codec::Zstd(level) => Workspace::Zstd(ZstdCompressor::new(level)?),
        };
        Ok(Compressor { codec, workspace })
    }

    /// What it packs with.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Gives the memory of the workspace back, until a page is to be packed.
    pub fn forget(&mut self) {
        match &mut self.workspace {
            Workspace::None => {}
            Workspace::Lz4(lz4) => lz4.forget(),
            Workspace::Zstd(zstd) => zstd.forget(),
        }
    }

    /// Packs a page to the beginning of `dst` and returns the number of bytes, or `None` when they
    /// are more than `dst` has room for; `dst` then holds nothing of use. The caller refuses a page
    /// that is not worth storing packed by giving a `dst` shorter than a page, which is also faster
    /// than to pack it to the end.
    pub fn compress(&mut self, page: &[u8; PAGE_SIZE], dst: &mut [u8]) -> Option<usize> {
        match &mut self.workspace {
            Workspace::None => {
                dst.get_mut(..PAGE_SIZE)?.copy_from_slice(page);
                Some(PAGE_SIZE)
            }
            Workspace::Lz4(lz4) => lz4.compress(page, dst),
            Workspace::Zstd(zstd) => zstd.compress(page, dst),
        }
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compressor({})", self.codec)
    }
}

/// Unpacks pages.
pub struct Decompressor {
    zstd: Option<ZstdDecompressor>,
}

impl Decompressor {
    /// One for pages that any of `codecs` packed, with its workspace: 94 KiB if Zstandard is among
    /// them, else none.
    ///
    /// # Errors
    /// ENOMEM when there is no memory for the workspace.
    pub fn new(codecs: &[Codec]) -> Result<Decompressor, Errno> {
        let zstd = codecs.iter().any(|codec| codec.id() == CodecId::Zstd);
        Ok(Decompressor { zstd: if zstd { Some(ZstdDecompressor::new()?) } else { None } })
    }

    /// Gives the memory of the workspace back, until a page is to be unpacked.
    pub fn forget(&mut self) {
        if let Some(zstd) = &mut self.zstd {
            zstd.forget();
        }
    }

    /// Unpacks what a [`Compressor`] wrote; `packed` must be exactly those bytes. Any other bytes
    /// give either an error (then `page` may be partly overwritten) or some page, and never touch
    /// other memory.
    ///
    /// # Errors
    /// [`CorruptPage`] when this is no page that the codec has packed, or the codec is none that
    /// this was made for.
    pub fn decompress(
        &mut self,
        id: CodecId,
        packed: &[u8],
        page: &mut [u8; PAGE_SIZE],
    ) -> Result<(), CorruptPage> {
        match id {
            CodecId::None => {
                page.copy_from_slice(<&[u8; PAGE_SIZE]>::try_from(packed).map_err(|_| CorruptPage)?)
            }
            CodecId::Lz4 => lz4::decompress(packed, page)?,
            CodecId::Zstd => self.zstd.as_mut().ok_or(CorruptPage)?.decompress(packed, page)?,
        }
        Ok(())
    }
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Decompressor({})",
            if self.zstd.is_some() { "with zstd" } else { "without zstd" }
        )
    }
}
