//! RAM devices: memory that behaves as a disk does, as slow and as unreliable as is asked for.
//!
//! A [`Ram`] keeps its pages in a file in memory, which the kernel counts as any other memory of
//! the process: it is a device and not part of the budget. Each operation takes the latency; those
//! in flight at once wait at once. Beyond that bytes go through one after the other, at the
//! bandwidth.
//!
//! No locks: the time at which the last byte is through is an atomic word. Nothing is allocated
//! after it is made.

use super::block_io::BlockIo;
use super::faults::{Faults, InjectedFault};
use crate::base::sync::{point, sleep};
use crate::device::model::RamModel;
use overspill_os::Errno;
use overspill_os::io::File;
use overspill_os::uring::{Data, Op};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Waits up to this long are spun: the kernel's timers are late by about as much.
const SPIN: Duration = Duration::from_micros(60);
/// How much longer a latency spike is than the latency.
const SPIKE: u32 = 20;
/// Shortest latency spike.
const SPIKE_LEAST: Duration = Duration::from_millis(2);

/// A file in memory with the times and the faults of a device.
#[derive(Debug)]
pub struct Ram {
    file: File,
    model: RamModel,
    faults: Option<Faults>,
    began: Instant,
    /// When what was begun so far is through, in nanoseconds since `began`.
    through_ns: AtomicU64,
}

impl Ram {
    /// A device of `pages` pages in `file`.
    pub fn new(file: File, model: RamModel, pages: u64) -> Ram {
        let faults = model.faults.map(|faults| Faults::new(faults, model.seed, pages));
        Ram { file, model, faults, began: Instant::now(), through_ns: AtomicU64::new(0) }
    }

    /// When `bytes` bytes that begin now are through, in nanoseconds since the device began.
    fn through(&self, bytes: usize) -> u64 {
        let now = self.began.elapsed().as_nanos() as u64;
        let Some(bandwidth) = self.model.bandwidth else { return now };
        let takes = (bytes as u128 * 1_000_000_000 / u128::from(bandwidth.0)) as u64;
        let after = |through: u64| through.max(now) + takes;
        let before = self.through_ns.fetch_update(Relaxed, Relaxed, |through| Some(after(through)));
        after(before.unwrap_or_else(|through| through))
    }

    /// Does one operation; returns how much longer than others it takes.
    fn perform(&self, op: &mut Op<'_>) -> Duration {
        let fault = self.faults.as_ref().and_then(|faults| faults.draw(op));
        let len = match fault {
            Some(InjectedFault::Fails(errno)) => {
                op.result = Err(errno);
                return Duration::ZERO;
            }
            Some(InjectedFault::Short(len)) => len,
            _ => usize::MAX,
        };
        op.result = match &mut op.data {
            Data::Read(buffer) => {
                let len = len.min(buffer.len());
                let done = self.file.read_at(&mut buffer[..len], op.offset);
                if let Some(InjectedFault::Flips { byte, mask }) = fault {
                    buffer[byte] ^= mask;
                }
                done
            }
            Data::Write(buffer) => {
                let len = len.min(buffer.len());
                let done = self.file.write_at(&buffer[..len], op.offset);
                if let Some(InjectedFault::Flips { byte, mask }) = fault {
                    let _ = self.file.write_at(&[buffer[byte] ^ mask], op.offset + byte as u64);
                }
                done
            }
        };
        match fault {
            Some(InjectedFault::Slow) => (self.model.latency * SPIKE).max(SPIKE_LEAST),
            _ => Duration::ZERO,
        }
    }
}

impl BlockIo for Ram {
    fn file(&self) -> &File {
        &self.file
    }

    fn run(&self, ops: &mut [Op<'_>]) {
        let mut done_ns = 0;
        for op in ops {
            let bytes = match &op.data {
                Data::Read(buffer) => buffer.len(),
                Data::Write(buffer) => buffer.len(),
            };
            let through_ns = self.through(bytes);
            // It is under way for a while before the bytes are there, and after.
            point();
            let takes = self.model.latency + self.perform(op);
            point();
            done_ns = done_ns.max(through_ns + takes.as_nanos() as u64);
        }
        wait_until(self.began + Duration::from_nanos(done_ns));
    }

    fn allocate(&self, _: Range<u64>) -> Result<(), Errno> {
        // Nothing is set aside: memory is taken where it is written.
        self.faults.as_ref().map_or(Ok(()), Faults::draw_allocation)
    }

    fn discard(&self, range: Range<u64>) -> Result<(), Errno> {
        self.file.discard(range)
    }
}

fn wait_until(time: Instant) {
    loop {
        match time.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            left if left > SPIN => sleep(left - SPIN),
            _ => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Bytes, PAGE_SIZE};
    use overspill_os::io::IoBuffer;

    const PAGES: usize = 256;

    fn ram(model: RamModel) -> Ram {
        let file = File::in_memory((PAGES * PAGE_SIZE) as u64).unwrap();
        Ram::new(file, model, PAGES as u64)
    }

    /// Reads `count` times `pages` pages, all at once.
    fn time_of_reads(ram: &Ram, count: usize, pages: usize) -> Duration {
        let mut buffer = IoBuffer::new(count * pages).unwrap();
        let mut ops: Vec<Op<'_>> =
            buffer.chunks_mut(pages * PAGE_SIZE).map(|chunk| Op::read(0, chunk)).collect();
        let start = Instant::now();
        ram.run(&mut ops);
        assert!(ops.iter().all(|op| op.result == Ok(pages * PAGE_SIZE)));
        start.elapsed()
    }

    #[test]
    fn operations_in_flight_wait_at_once() {
        let latency = Duration::from_millis(20);
        let ram = ram(RamModel { latency, ..RamModel::default() });
        let (one, many) = (time_of_reads(&ram, 1, 1), time_of_reads(&ram, 16, 1));
        assert!(one >= latency && many >= latency);
        // Far from sixteen times, whatever else the machine does.
        assert!(many < latency * 8, "{many:?}");
    }

    #[test]
    fn bytes_go_through_one_after_the_other() {
        // A page takes 0.4 ms.
        let bandwidth = Some(Bytes(10_240_000));
        let ram = ram(RamModel { bandwidth, ..RamModel::default() });
        assert!(time_of_reads(&ram, 4, 16) >= Duration::from_micros(64 * 400));
        // Also from several threads.
        let start = Instant::now();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| {
                scope.spawn(|| time_of_reads(&ram, 1, 16));
            });
        });
        assert!(start.elapsed() >= Duration::from_micros(64 * 400));
    }
}
