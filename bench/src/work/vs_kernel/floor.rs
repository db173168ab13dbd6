//! The floor: what the mechanisms cost with nothing around them. A fault by signal that is served
//! by one call, a page that is packed and unpacked, one that is sealed and opened; beside them a
//! minor fault of a pool.

use crate::measure::*;
use crate::work::codecs;
use overspill::units::PAGE_SIZE;
use overspill_bench::contents::{Contents, WORDS};
use overspill_os::Errno;
use overspill_os::codec::Codec;
use overspill_os::crypt::Key;
use overspill_os::signal::{self, Outcome, SignalFaults};
use overspill_os::uffd::{Features, Uffd};
use overspill_os::vm::{self, Prot, advice};
use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

/// Pages that are touched, or packed.
const PAGES: usize = 8192;

pub fn measure() -> Result<Sample, Failure> {
    const WHAT: &str = "the floor cannot be measured";
    // 1. Memory fresh from the host faults slower: this is measured from the second time on.
    bare(false).failing(WHAT)?;
    let copy = bare(false).failing(WHAT)?;
    let minor = minor_fault()?;
    let mut sample = figures([
        // A fault by signal and a copy of a page, with nothing around it.
        ("bare_copy_fault_ns", copy),
        // The first access to a page of a pool that has room.
        ("minor_fault_ns", minor),
        ("minor_fault_ratio", minor / copy),
    ]);
    // With a page that is moved: Linux 6.8 and later.
    add(&mut sample, bare(true).ok().map(|ns| ("bare_move_fault_ns", ns)));
    // 2. Pages packed and unpacked.
    let lz4 = codecs::measure(Codec::Lz4, Contents::Heap, PAGES as u64 / 8)?;
    for (name, of) in
        [("compress_ns", "compress_ns_per_page"), ("decompress_ns", "decompress_ns_per_page")]
    {
        add(&mut sample, lz4.get(of).map(|ns| (name, *ns)));
    }
    // 3. Pages as they go to a device, and come back.
    let [seal, open] = sealed()?;
    add(&mut sample, [("seal_ns", seal), ("open_ns", open)]);
    Ok(sample)
}

/// Nanoseconds in which a page is sealed, and opened.
fn sealed() -> Result<[f64; 2], Failure> {
    let key = Key::random().failing("there is no key to be had")?;
    let mut pages = vec![[7; PAGE_SIZE]; PAGES / 8];
    let a_page = |began: Instant| began.elapsed().as_nanos() as f64 / (PAGES / 8) as f64;
    let began = Instant::now();
    let seals: Vec<_> =
        pages.iter_mut().zip(0..).map(|(page, at)| key.seal([0, at], page)).collect();
    let seal = a_page(began);
    let began = Instant::now();
    let sealed = pages.iter_mut().zip(0..).zip(seals);
    let opened =
        sealed.filter_map(|((page, at), seal)| key.open([0, at], seal, page).then_some(()));
    pool::right((PAGES / 8 - opened.count()) as u64)?;
    Ok([seal, a_page(began)])
}

/// Serves every fault with one call.
struct Server {
    uffd: Uffd,
    pages: Range<usize>,
    /// Where pages are moved from, if they are.
    from: Option<Range<usize>>,
    page: [u8; PAGE_SIZE],
}

impl SignalFaults for Server {
    fn serve(&self, address: usize, _write: bool) -> Outcome {
        let at = address / PAGE_SIZE * PAGE_SIZE;
        let done = match &self.from {
            Some(from) => {
                let source = from.start + (at - self.pages.start);
                self.uffd.move_pages(at, source..source + PAGE_SIZE, false)
            }
            None => self.uffd.copy(at, &self.page, false, true),
        };
        if done.bytes == PAGE_SIZE { Outcome::Served } else { Outcome::Failed }
    }
}

/// Nanoseconds of a fault that is served by a copy, or by a page that is moved.
fn bare(moved: bool) -> Result<f64, Errno> {
    let (uffd, _) = Uffd::open(Features(Features::SIGBUS.0 | Features::MOVE.0), Features(0), true)?;
    if moved && !uffd.features().has(Features::MOVE) {
        return Err(Errno::NOSYS);
    }
    let map = || -> Result<Range<usize>, Errno> {
        let start = vm::reserve(PAGES * PAGE_SIZE, PAGE_SIZE)?;
        let range = start..start + PAGES * PAGE_SIZE;
        vm::map_fixed(range.clone(), Prot::READ_WRITE)?;
        vm::advise(range.clone(), advice::NOHUGEPAGE)?;
        uffd.register(range.clone())?;
        Ok(range)
    };
    let pages = map()?;
    let from = moved.then(map).transpose()?;
    let page = [7; PAGE_SIZE];
    if let Some(from) = &from {
        from.clone().step_by(PAGE_SIZE).for_each(|at| _ = uffd.copy(at, &page, false, true));
    }
    // Who serves is never given back; each measurement has a process of its own, so that this is a
    // few KiB once.
    let server: &'static Server =
        Box::leak(Box::new(Server { uffd, pages: pages.clone(), from: from.clone(), page }));
    signal::serve_window(pages.clone(), server)?;
    let began = Instant::now();
    pages.clone().step_by(PAGE_SIZE).for_each(vm::touch);
    let elapsed = began.elapsed();
    signal::release_window(pages.clone());
    vm::unmap(pages)?;
    from.map_or(Ok(()), vm::unmap)?;
    Ok(elapsed.as_nanos() as f64 / PAGES as f64)
}

/// Nanoseconds of the first access to a page of a pool with room, a page a fault.
fn minor_fault() -> Result<f64, Failure> {
    let bytes = (PAGES * PAGE_SIZE) as u64;
    let pool = pool::open(4 * bytes, None, "folio=1")?;
    let mut elapsed = 0.0;
    for _ in 0..2 {
        let region = pool::map(&pool, bytes)?;
        let began = Instant::now();
        region.as_slice::<u64>().iter().step_by(WORDS).for_each(|word| _ = black_box(*word));
        elapsed = began.elapsed().as_nanos() as f64;
    }
    Ok(elapsed / PAGES as f64)
}
