//! What the device can do: a file like the swap file, read in sequence with direct I/O.

use crate::measure::*;
use overspill::units::{Bytes, PAGE_SIZE};
use overspill_bench::contents::Random;
use overspill_os::Errno;
use overspill_os::io::{File, IoBuffer};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of an operation: the largest that evacuation reads.
const OPERATION: u64 = 1 << 20;
/// Numbers of operations in flight that are tried, each twice; the best counts.
const DEPTHS: [usize; 4] = [1, 4, 1, 4];
/// So much is read at most: a fraction of a second on a fast disk.
pub const BYTES_MAX: u64 = 256 << 20;

/// A file without a name, written once.
pub struct SequentialFile {
    file: File,
    bytes: u64,
}

impl SequentialFile {
    /// Writes a file in `dir`, of `size` bytes at most. The same machine may be asked to read it
    /// later than to read a swap file, so that no cache on the way holds more of it.
    pub fn write(dir: &Path, size: u64) -> Result<SequentialFile, Failure> {
        let bytes = (size.min(BYTES_MAX) / OPERATION).max(1) * OPERATION;
        let dir_name = dir.display();
        let what = format!("{} cannot be written in '{dir_name}' to be read", Bytes(bytes));
        let file = File::anonymous_in(dir).failing(&what)?;
        // As a swap file: set aside first, and written then. Where that cannot be, neither can it
        // be for a swap file.
        let _ = file.allocate(0..bytes);
        let mut buffer = IoBuffer::new(OPERATION as usize / PAGE_SIZE).failing(&what)?;
        let mut random = Random::new(bytes);
        for offset in (0..bytes).step_by(OPERATION as usize) {
            buffer.words_mut().fill_with(|| random.next());
            file.write_at(&buffer, offset).failing(&what)?;
        }
        Ok(SequentialFile { file, bytes })
    }

    /// The highest rate at which it is read, in MB/s.
    pub fn mb_per_s(&self) -> Result<f64, Failure> {
        let times = DEPTHS.map(|depth| self.read(depth));
        let times: Vec<Duration> = times
            .into_iter()
            .collect::<Result<_, _>>()
            .failing("a file that was just written cannot be read")?;
        let best = times.into_iter().min().expect("there are depths");
        Ok(self.bytes as f64 / 1e6 / best.as_secs_f64())
    }

    /// Reads all of it with so many operations in flight.
    fn read(&self, depth: usize) -> Result<Duration, Errno> {
        let buffer = |_| IoBuffer::new(OPERATION as usize / PAGE_SIZE);
        let mut buffers = (0..depth).map(buffer).collect::<Result<Vec<_>, _>>()?;
        // Their memory is there before the time counts.
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        let next = AtomicU64::new(0);
        let timed = threads::each(&mut buffers, |buffer| {
            loop {
                let offset = next.fetch_add(OPERATION, Relaxed);
                if offset >= self.bytes {
                    return Ok(());
                }
                self.file.read_at(buffer, offset)?;
            }
        });
        timed.results.into_iter().collect::<Result<(), Errno>>()?;
        Ok(timed.elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_and_read_whole() {
        let dir = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let sample = SequentialFile::write(&dir, (5 << 20) + 17).unwrap();
        let len = sample.file.len_and_allocated_bytes().unwrap().0;
        assert_eq!((sample.bytes, len), (5 << 20, 5 << 20));
        assert!(sample.mb_per_s().unwrap() > 0.0);
        assert!(SequentialFile::write(Path::new("/proc"), 1).is_err());
    }
}
