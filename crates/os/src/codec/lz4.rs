//! LZ4 of single pages, in the block format of the C library.
//!
//! The C library and not a Rust port: it decodes faster, and decoding lies on the path of a fault.

use super::corrupt::CorruptPage;
use crate::table::ZeroTable;
use crate::units::{Errno, PAGE_SIZE};
use std::ffi::{c_char, c_int, c_void};

// Part of the library that lz4-sys builds and links, though lz4-sys does not declare them.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_bytes: c_int,
        dst_bytes: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// 1, the library's default and its best ratio. Larger values trade ratio for speed, the wrong way
/// round here: pages are compressed in the background, and what they do not shrink by is budget.
const ACCELERATION: c_int = 1;

/// Bytes of a page as C takes them.
const PAGE_BYTES: c_int = PAGE_SIZE as c_int;

/// A compressor of pages, with its workspace of 16 KiB.
pub(super) struct Lz4 {
    /// What LZ4 calls its state; words of 8 bytes for its alignment.
    state: ZeroTable<u64>,
}

impl Lz4 {
    /// A compressor; the only call here that allocates.
    ///
    /// # Errors
    /// ENOMEM when there is no memory for the workspace.
    pub fn new() -> Result<Lz4, Errno> {
        // SAFETY: a function of no arguments that returns a constant.
        let bytes = unsafe { LZ4_sizeofState() } as usize;
        Ok(Lz4 { state: ZeroTable::new(bytes.div_ceil(8))? })
    }

    /// Gives the memory of the workspace back.
    pub fn forget(&mut self) {
        self.state.forget();
    }

    /// As [`super::Compressor::compress`].
    pub fn compress(&mut self, src: &[u8; PAGE_SIZE], dst: &mut [u8]) -> Option<usize> {
        let room = c_int::try_from(dst.len()).unwrap_or(c_int::MAX);
        // SAFETY: 1. the state has LZ4_sizeofState() bytes, aligned to 8, and is initialised anew
        // by each call; 2. src is PAGE_BYTES long; 3. dst is at least `room` long, which bounds
        // what LZ4 writes; 4. &mut self and &mut dst keep the three apart.
        let written = unsafe {
            LZ4_compress_fast_extState(
                self.state.as_mut_ptr().cast(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                PAGE_BYTES,
                room,
                ACCELERATION,
            )
        };
        // Zero is LZ4's word for "does not fit".
        (written > 0).then_some(written as usize)
    }
}

/// Decompresses what [`Lz4::compress`] wrote; `src` must be exactly those bytes. Any other `src`
/// gives either [`CorruptPage`] (then `dst` may be partly overwritten) or some page, and never
/// touches other memory.
pub(super) fn decompress(src: &[u8], dst: &mut [u8; PAGE_SIZE]) -> Result<(), CorruptPage> {
    let len = c_int::try_from(src.len()).map_err(|_| CorruptPage)?;
    // SAFETY: src is `len` long and dst PAGE_BYTES; the _safe variant reads and writes within these
    // whatever src holds.
    let written = unsafe {
        lz4_sys::LZ4_decompress_safe(src.as_ptr().cast(), dst.as_mut_ptr().cast(), len, PAGE_BYTES)
    };
    if written == PAGE_BYTES { Ok(()) } else { Err(CorruptPage) }
}
