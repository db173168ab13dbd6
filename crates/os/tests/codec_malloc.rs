//! Codecs never call malloc once they are made: under the preload library, that is the program's
//! heap.
//!
//! Counted are the calls of the thread that asks: the harness calls malloc whenever it likes.

use overspill_os::PAGE_SIZE;
use overspill_os::codec::{Codec, Compressor, Decompressor};
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// Calls of malloc and its kind. It needs neither memory nor a destructor, so malloc may use
    /// it.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, bytes: usize) -> *mut c_void;
}

// SAFETY: the symbols of the C library, with its own functions behind them.
#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    CALLS.set(CALLS.get() + 1);
    // SAFETY: what malloc asks for.
    unsafe { __libc_malloc(bytes) }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    CALLS.set(CALLS.get() + 1);
    // SAFETY: as above.
    unsafe { __libc_calloc(count, bytes) }
}

/// # Safety
/// As the function of the C library.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    CALLS.set(CALLS.get() + 1);
    // SAFETY: as the caller promises.
    unsafe { __libc_realloc(old, bytes) }
}

#[test]
fn no_codec_allocates_after_it_was_made() {
    let before = CALLS.get();
    drop(std::hint::black_box(Box::new(7)));
    assert!(CALLS.get() > before, "calls are not counted");
    let levels = Codec::zstd_levels().map(Codec::Zstd);
    let mut compressors: Vec<_> = [Codec::None, Codec::Lz4]
        .into_iter()
        .chain(levels)
        .map(|codec| Compressor::new(codec).unwrap())
        .collect();
    let mut decompressor = Decompressor::new(&[Codec::Zstd(1)]).unwrap();
    let mut random = 1u64;
    let (mut page, mut packed, mut back) = ([0; PAGE_SIZE], [0; 2 * PAGE_SIZE], [0; PAGE_SIZE]);
    let before = CALLS.get();
    for round in 0..64 {
        for (at, byte) in page.iter_mut().enumerate() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = if at % 64 < round { (random >> 56) as u8 } else { at as u8 / 4 };
        }
        for compressor in &mut compressors {
            let len = compressor.compress(&page, &mut packed).unwrap();
            let id = compressor.codec().id();
            let done = decompressor.decompress(id, &packed[..len], &mut back);
            let short = compressor.compress(&page, &mut packed[..len / 2]);
            let damaged = decompressor.decompress(id, &packed[..len / 3], &mut [0; PAGE_SIZE]);
            if (done, back == page, short, damaged.is_err()) != (Ok(()), true, None, true) {
                panic!("{}, round {round}", compressor.codec());
            }
        }
    }
    assert_eq!(CALLS.get() - before, 0, "calls of malloc while pages were packed and unpacked");
}
