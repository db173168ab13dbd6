//! LZ4 of single pages, in the block format of the C library.
//!
//! The C library and not a Rust port: it decodes faster, and decoding lies on the path of a fault. [`Lz4`] is a
//! compressor with its workspace, one for each thread that compresses; [`decompress`] needs no workspace. Neither
//! allocates after [`Lz4::new`], and there are no locks. A compressed page carries no length and no checksum: whoever
//! stores it keeps both.

use crate::PAGE_SIZE;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;

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

/// 1, the library's default and its best ratio. Larger values trade ratio for speed, the wrong way round here: pages are
/// compressed in the background, and what they do not shrink by is budget.
const ACCELERATION: c_int = 1;

/// Bytes of a page as C takes them.
const PAGE_BYTES: c_int = PAGE_SIZE as c_int;

/// A compressor of pages, with its workspace of 16 KiB.
pub struct Lz4 {
    /// What LZ4 calls its state; words of 8 bytes for its alignment.
    state: Box<[u64]>,
}

impl Lz4 {
    /// A compressor; the only call here that allocates.
    pub fn new() -> Lz4 {
        // SAFETY: a function of no arguments that returns a constant.
        let bytes = unsafe { LZ4_sizeofState() } as usize;
        Lz4 { state: vec![0; bytes.div_ceil(8)].into_boxed_slice() }
    }

    /// Compresses a page to the beginning of `dst` and returns the number of bytes, or `None` when they are more
    /// than `dst` has room for; `dst` then holds nothing of use. The caller refuses a page that is not worth storing
    /// compressed by giving a `dst` shorter than a page, which is also faster than to compress it to the end.
    pub fn compress(&mut self, src: &[u8; PAGE_SIZE], dst: &mut [u8]) -> Option<usize> {
        let room = c_int::try_from(dst.len()).unwrap_or(c_int::MAX);
        // SAFETY: 1. the state has LZ4_sizeofState() bytes, aligned to 8, and is initialised anew by each call; 2. src
        // is PAGE_BYTES long; 3. dst is at least `room` long, which bounds what LZ4 writes; 4. &mut self and &mut dst
        // keep the three apart.
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

impl Default for Lz4 {
    fn default() -> Lz4 {
        Lz4::new()
    }
}

impl fmt::Debug for Lz4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lz4")
    }
}

/// A compressed page that does not decode to exactly one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CorruptPage;

impl fmt::Display for CorruptPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a compressed page does not decode: its stored bytes were changed")
    }
}

impl std::error::Error for CorruptPage {}

/// Decompresses what [`Lz4::compress`] wrote; `src` must be exactly those bytes. Any other `src` gives either
/// [`CorruptPage`] (then `dst` may be partly overwritten) or some page, and never touches other memory.
pub fn decompress(src: &[u8], dst: &mut [u8; PAGE_SIZE]) -> Result<(), CorruptPage> {
    let len = c_int::try_from(src.len()).map_err(|_| CorruptPage)?;
    // SAFETY: src is `len` long and dst PAGE_BYTES; the _safe variant reads and writes within these whatever src holds.
    let written =
        unsafe { lz4_sys::LZ4_decompress_safe(src.as_ptr().cast(), dst.as_mut_ptr().cast(), len, PAGE_BYTES) };
    if written == PAGE_BYTES { Ok(()) } else { Err(CorruptPage) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xorshift64*: the same sequence on every run.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
        }
        fn below(&mut self, n: usize) -> usize {
            (self.next() % n as u64) as usize
        }
    }

    /// A page of runs of random bytes and runs copied from before, so that all of LZ4's paths are taken.
    fn page(random: &mut Random, random_percent: usize) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        let mut at = 0;
        while at < PAGE_SIZE {
            let run = (1 + random.below(200)).min(PAGE_SIZE - at);
            let back = 1 + random.below(at.max(1));
            let fresh = at == 0 || random.below(100) < random_percent;
            for i in at..at + run {
                page[i] = if fresh { random.next() as u8 } else { page[i.saturating_sub(back)] };
            }
            at += run;
        }
        page
    }

    #[test]
    fn pages_come_back_as_they_went() {
        let mut random = Random(1);
        let mut lz4 = Lz4::new();
        let mut stored = [0; 2 * PAGE_SIZE];
        let mut shortest = usize::MAX;
        for round in 0..2000 {
            let page = page(&mut random, round % 101);
            let len = lz4.compress(&page, &mut stored).expect("two pages hold any compressed page");
            let mut back = [0xAA; PAGE_SIZE];
            decompress(&stored[..len], &mut back).unwrap();
            assert!(back == page, "round {round}");
            shortest = shortest.min(len);

            // The same bytes whatever the workspace held, and nothing beyond the room that there is.
            let mut exact = [0x55; 2 * PAGE_SIZE];
            assert_eq!(Lz4::new().compress(&page, &mut exact[..len]), Some(len), "round {round}");
            assert!(exact[..len] == stored[..len] && exact[len..].iter().all(|b| *b == 0x55));
            let less = random.below(len);
            let mut short = [0x55; PAGE_SIZE * 2];
            assert_eq!(lz4.compress(&page, &mut short[..less]), None, "round {round}: {len} bytes in {less}");
            assert!(short[less..].iter().all(|b| *b == 0x55), "round {round}");
        }
        assert!(shortest < 600, "no page was compressible: the test lost its subject");
    }

    #[test]
    fn random_bytes_do_not_fit_a_page() {
        let mut random = Random(2);
        let page = page(&mut random, 100);
        assert_eq!(Lz4::new().compress(&page, &mut [0; PAGE_SIZE]), None);
        assert_eq!(Lz4::new().compress(&[0; PAGE_SIZE], &mut []), None);
    }

    #[test]
    fn damaged_pages_are_refused_or_decode_to_a_page() {
        let mut random = Random(3);
        let mut lz4 = Lz4::new();
        let mut stored = [0; 2 * PAGE_SIZE];
        let mut refused = 0;
        for round in 0..4000 {
            let page = page(&mut random, round % 90);
            let len = lz4.compress(&page, &mut stored).unwrap();
            // Exactly sized, so that a checker of memory errors sees a read past the end.
            let mut damaged = stored[..len].to_vec();
            for _ in 0..1 + random.below(4) {
                let at = random.below(len);
                damaged[at] = random.next() as u8;
            }
            let mut out = [[0x55; PAGE_SIZE]; 3];
            refused += usize::from(decompress(&damaged, &mut out[1]).is_err());
            assert!(out[0] == [0x55; PAGE_SIZE] && out[2] == [0x55; PAGE_SIZE], "round {round}: wrote outside");
            // A page cut short ends within a sequence, or yields fewer bytes than a page.
            let cut = stored[..random.below(len)].to_vec();
            assert_eq!(decompress(&cut, &mut out[1]), Err(CorruptPage), "round {round}");
        }
        assert!(refused > 100, "{refused} of 4000 damaged pages refused");
    }

    #[test]
    fn longer_content_than_a_page_is_refused() {
        // One literal, then a match of 15 + 4 + 17 * 255 bytes at distance 1: more than 4096.
        let mut src = vec![0x1F, 7, 1, 0];
        src.extend([255; 17]);
        src.extend([0, 0x50, 1, 2, 3, 4, 5]);
        assert_eq!(decompress(&src, &mut [0; PAGE_SIZE]), Err(CorruptPage));
        assert_eq!(decompress(&[], &mut [0; PAGE_SIZE]), Err(CorruptPage));
    }
}
