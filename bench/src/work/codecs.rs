//! Pages packed and unpacked with the codecs and workspaces of the engine, but without the engine:
//! no faults, no pool. What came back is compared with what went in, outside the timing.

use crate::measure::*;
use overspill::units::PAGE_SIZE;
use overspill_bench::contents::Contents;
use overspill_os::codec::{Codec, Compressor, Decompressor};
use std::time::{Duration, Instant};

/// Packs and unpacks pages of some contents, and compares them.
pub fn measure(codec: Codec, contents: Contents, pages: u64) -> Result<Sample, Failure> {
    const NO_MEMORY: &str = "there is no workspace to be had";
    let mut compressor = Compressor::new(codec).failing(NO_MEMORY)?;
    let mut decompressor = Decompressor::new(&[codec]).failing(NO_MEMORY)?;
    let originals: Vec<[u8; PAGE_SIZE]> = (0..pages).map(|n| contents.page(n)).collect();
    // 1. Pack. What does not shrink by a byte is refused, but for pages that are not packed at all.
    let room = if codec == Codec::None { PAGE_SIZE } else { PAGE_SIZE - 1 };
    let mut packed = vec![[0; PAGE_SIZE]; pages as usize];
    let mut lengths = vec![None; pages as usize];
    let began = Instant::now();
    for ((page, packed), len) in originals.iter().zip(&mut packed).zip(&mut lengths) {
        *len = compressor.compress(page, &mut packed[..room]);
    }
    let packing = began.elapsed();
    // 2. Unpack.
    let mut back = vec![[0; PAGE_SIZE]; pages as usize];
    let mut wrong = 0;
    let began = Instant::now();
    for ((page, packed), len) in back.iter_mut().zip(&packed).zip(&lengths) {
        if let Some(len) = len {
            wrong += u64::from(decompressor.decompress(codec.id(), &packed[..*len], page).is_err());
        }
    }
    let unpacking = began.elapsed();
    // 3. Compare.
    let came_back =
        originals.iter().zip(&back).zip(&lengths).filter(|((a, b), len)| len.is_none() || a == b);
    if wrong > 0 || came_back.count() != originals.len() {
        fail!("pages came back with other content than they went in with");
    }
    Ok(sample(&lengths, packing, unpacking))
}

/// The figures of pages that were packed to so many bytes each, or refused.
fn sample(lengths: &[Option<usize>], packing: Duration, unpacking: Duration) -> Sample {
    let (pages, fit) = (lengths.len() as f64, lengths.iter().flatten().count() as f64);
    let kept: usize = lengths.iter().map(|len| len.unwrap_or(PAGE_SIZE)).sum();
    let mut sample = figures([
        // Bytes of pages for each byte that they are kept in; a page that does not fit in fewer
        // bytes is kept as it is.
        ("ratio", pages * PAGE_SIZE as f64 / kept as f64),
        // Share of the pages that do not fit in fewer bytes.
        ("refused_ratio", 1.0 - fit / pages),
        ("compress_ns_per_page", packing.as_nanos() as f64 / pages),
    ]);
    if fit > 0.0 {
        add(&mut sample, [("decompress_ns_per_page", unpacking.as_nanos() as f64 / fit)]);
    }
    sample
}
