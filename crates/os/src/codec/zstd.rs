//! Zstandard of single pages, with contexts in workspaces of fixed size.
//!
//! Contexts are *static*, as the library calls it: it never calls malloc for them, and fails where
//! the workspace is too small. They take less than 2 KiB of stack. Frames have no magic number and
//! no checksum: three bytes beside the data.

use super::corrupt::CorruptPage;
use crate::table::ZeroTable;
use crate::units::{Errno, PAGE_SIZE};
use std::ffi::c_int;
use std::ptr::NonNull;
use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_setParameter, ZSTD_DCtx, ZSTD_DCtx_setParameter, ZSTD_cParameter,
    ZSTD_compress2, ZSTD_dParameter, ZSTD_decompressDCtx, ZSTD_estimateCCtxSize_usingCParams,
    ZSTD_estimateDCtxSize, ZSTD_format_e, ZSTD_getCParams, ZSTD_initStaticCCtx,
    ZSTD_initStaticDCtx, ZSTD_isError,
};

/// A workspace: memory of its own, which costs nothing where the library does not touch it: the
/// context in it is made when it is first used. Words of 8 bytes for the alignment that the library
/// asks for.
type ContextMemory = ZeroTable<u64>;
/// Why there is a context.
const LARGE_ENOUGH: &str = "the workspace is as large as the library says";

/// ZSTD_c_format and ZSTD_d_format, by the names that the library keeps for what is experimental.
const C_FORMAT: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam2;
const D_FORMAT: ZSTD_dParameter = ZSTD_dParameter::ZSTD_d_experimentalParam1;
const MAGICLESS: c_int = ZSTD_format_e::ZSTD_f_zstd1_magicless as c_int;

/// A compressor of pages, and its workspace.
pub(super) struct ZstdCompressor {
    level: c_int,
    context: Option<NonNull<ZSTD_CCtx>>,
    /// What `context` lies in.
    memory: ContextMemory,
}

// SAFETY: 1. the context lies in memory that is this value's own, and refers to no thread; 2. it is
// used through &mut only.
unsafe impl Send for ZstdCompressor {}

impl ZstdCompressor {
    /// A compressor of a level; the only call here that allocates.
    ///
    /// # Errors
    /// ENOMEM when there is no memory for the workspace.
    pub fn new(level: i8) -> Result<ZstdCompressor, Errno> {
        let level = c_int::from(level);
        // SAFETY: functions of numbers, which return numbers.
        let bytes = unsafe {
            ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level, PAGE_SIZE as u64, 0))
        };
        Ok(ZstdCompressor { level, context: None, memory: ContextMemory::new(bytes.div_ceil(8))? })
    }

    /// Gives the memory of the workspace back.
    pub fn forget(&mut self) {
        self.context = None;
        self.memory.forget();
    }

    fn make_context(&mut self) -> NonNull<ZSTD_CCtx> {
        let (memory, bytes) = (self.memory.as_mut_ptr().cast(), self.memory.len() * 8);
        // SAFETY: the memory is so long, aligned to 8, and lives as long as the context: both are
        // fields of one value.
        let context = NonNull::new(unsafe { ZSTD_initStaticCCtx(memory, bytes) });
        let context = context.expect(LARGE_ENOUGH);
        for (parameter, value) in
            [(ZSTD_cParameter::ZSTD_c_compressionLevel, self.level), (C_FORMAT, MAGICLESS)]
        {
            // SAFETY: the context was made just now.
            check(unsafe { ZSTD_CCtx_setParameter(context.as_ptr(), parameter, value) })
                .expect("a valid parameter");
        }
        *self.context.insert(context)
    }

    /// As [`super::Compressor::compress`].
    pub fn compress(&mut self, page: &[u8; PAGE_SIZE], dst: &mut [u8]) -> Option<usize> {
        let context = self.context.unwrap_or_else(|| self.make_context());
        // SAFETY: 1. the context is ours; 2. page and dst are as long as is said; 3. &mut keeps the
        // three apart.
        check(unsafe {
            ZSTD_compress2(
                context.as_ptr(),
                dst.as_mut_ptr().cast(),
                dst.len(),
                page.as_ptr().cast(),
                PAGE_SIZE,
            )
        })
    }
}

/// A decompressor of pages, and its workspace.
pub(super) struct ZstdDecompressor {
    context: Option<NonNull<ZSTD_DCtx>>,
    /// What `context` lies in.
    memory: ContextMemory,
}

// SAFETY: as for ZstdCompressor.
unsafe impl Send for ZstdDecompressor {}

impl ZstdDecompressor {
    /// A decompressor; the only call here that allocates.
    ///
    /// # Errors
    /// ENOMEM when there is no memory for the workspace.
    pub fn new() -> Result<ZstdDecompressor, Errno> {
        // SAFETY: a function of no arguments that returns a constant.
        let bytes = unsafe { ZSTD_estimateDCtxSize() };
        Ok(ZstdDecompressor { context: None, memory: ContextMemory::new(bytes.div_ceil(8))? })
    }

    /// Gives the memory of the workspace back.
    pub fn forget(&mut self) {
        self.context = None;
        self.memory.forget();
    }

    fn make_context(&mut self) -> NonNull<ZSTD_DCtx> {
        let (memory, bytes) = (self.memory.as_mut_ptr().cast(), self.memory.len() * 8);
        // SAFETY: as in ZstdCompressor::make_context.
        let context = NonNull::new(unsafe { ZSTD_initStaticDCtx(memory, bytes) });
        let context = context.expect(LARGE_ENOUGH);
        // SAFETY: the context was made just now.
        let done = check(unsafe { ZSTD_DCtx_setParameter(context.as_ptr(), D_FORMAT, MAGICLESS) });
        done.expect("a valid parameter");
        *self.context.insert(context)
    }

    /// As [`super::Decompressor::decompress`].
    pub fn decompress(
        &mut self,
        packed: &[u8],
        page: &mut [u8; PAGE_SIZE],
    ) -> Result<(), CorruptPage> {
        let context = self.context.unwrap_or_else(|| self.make_context());
        // SAFETY: 1. the context is ours; 2. packed and page are as long as is said, and the
        // library reads and writes within that whatever packed holds; 3. &mut keeps the three
        // apart.
        let written = check(unsafe {
            ZSTD_decompressDCtx(
                context.as_ptr(),
                page.as_mut_ptr().cast(),
                PAGE_SIZE,
                packed.as_ptr().cast(),
                packed.len(),
            )
        });
        if written == Some(PAGE_SIZE) { Ok(()) } else { Err(CorruptPage) }
    }
}

/// What a function of the library returned, unless that is an error.
fn check(code: usize) -> Option<usize> {
    // SAFETY: a function of a number.
    (unsafe { ZSTD_isError(code) } == 0).then_some(code)
}
