//! Reading and writing the pages of a device, and knowing them again.
//!
//! What a page is known by ([`super::marks`]) is kept in memory when it is written, and looked at
//! whenever it is read. What cannot be read, or is not what was written, is read once more by
//! itself, so that trouble on the line is no error; what stays wrong is an error of the page that
//! is wrong, and of no other.

use super::area::Area;
use super::error::{ReadError, ReadFailure};
use super::{QUEUE_DEPTH, RUN_MAX, RunWrite};
use crate::stats::{Counter, DeviceFigure, Stats};
use crate::units::PAGE_SIZE;
use overspill_os::Errno;
use overspill_os::io::IoBuffer;
use overspill_os::uring::{Data, Op};

impl Area {
    /// Writes up to [`QUEUE_DEPTH`] runs of this device, all in flight at once. What the device is
    /// to have takes the place of the pages in the buffer.
    pub fn write(&self, buffer: &mut IoBuffer, batch: &mut [RunWrite], stats: &Stats) {
        let bytes = |write: &RunWrite| {
            write.buffer_page * PAGE_SIZE..(write.buffer_page + write.run.len) * PAGE_SIZE
        };
        // 1. By what they are known again.
        for write in &*batch {
            self.marks.mark(write.run.first.offset(), &mut buffer[bytes(write)]);
        }
        let data = |write: &RunWrite| &buffer[bytes(write)];
        // 2. The pages.
        let mut ops: [Op<'_>; QUEUE_DEPTH] = std::array::from_fn(|i| match batch.get(i) {
            Some(write) => Op::write(write.run.first.offset() * PAGE_SIZE as u64, data(write)),
            None => Op::write(0, &[]),
        });
        self.io.run(&mut ops[..batch.len()]);
        let mut results = [Ok(()); QUEUE_DEPTH];
        for (result, op) in results.iter_mut().zip(&ops[..batch.len()]) {
            *result = self.finish_write(op);
        }
        // 3. What became of them. Of a run that failed, each page by itself.
        for (write, result) in batch.iter_mut().zip(results) {
            write.result =
                result.or_else(|errno| self.write_singly(write, data(write), errno, stats));
            stats.add(Counter::PswpOutOps, 1);
            self.figures.add(DeviceFigure::Writes, 1);
            if write.result.is_ok() {
                stats.add(Counter::PswpOut, write.run.len as u64);
                self.figures.add(DeviceFigure::PagesWritten, write.run.len as u64);
            }
        }
        self.publish();
    }

    /// Writes the pages of a run that could not be written as a whole one by one. The slots of
    /// those that fail again are withdrawn, and then the others, which were good, are given back:
    /// the pages stay where they are.
    fn write_singly(
        &self,
        write: &RunWrite,
        data: &[u8],
        errno: Errno,
        stats: &Stats,
    ) -> Result<(), Errno> {
        stats.add(Counter::WriteErrors, 1);
        self.figures.add(DeviceFigure::WriteErrors, 1);
        let (first, len) = (write.run.first.offset(), write.run.len);
        if write.keeps_slots {
            return Err(errno);
        }
        if matches!(errno, Errno::NOSPC | Errno::DQUOT) {
            // The disk is full, not broken: the slots are good again when it has room.
            self.slots().pause_writes(first, len, self);
            return Err(errno);
        }
        let mut bad = [false; RUN_MAX];
        for (i, page) in data.chunks_exact(PAGE_SIZE).enumerate() {
            let mut op = [Op::write((first + i as u64) * PAGE_SIZE as u64, page)];
            self.io.run(&mut op);
            bad[i] = self.finish_write(&op[0]).is_err();
        }
        if !bad[..len].contains(&true) {
            return Ok(());
        }
        for (slot, bad) in (first..).zip(&bad[..len]) {
            if *bad {
                self.slots().mark_bad(slot, 1);
            } else {
                self.slots().free(slot, 1, self);
            }
        }
        Err(errno)
    }

    /// The outcome of a write; what it left out without saying why is written once more.
    fn finish_write(&self, op: &Op<'_>) -> Result<(), Errno> {
        let Data::Write(data) = op.data else {
            unreachable!("the operations of a batch are writes")
        };
        let done = op.result? / PAGE_SIZE * PAGE_SIZE;
        if op.result == Ok(data.len()) {
            return Ok(());
        }
        let mut rest = [Op::write(op.offset + done as u64, &data[done..])];
        self.io.run(&mut rest);
        if rest[0].result? == data.len() - done { Ok(()) } else { Err(Errno::IO) }
    }

    /// Reads a run into the first pages of `buffer`. An error is that of the first page that cannot
    /// be had; the pages before it are good.
    pub fn read(
        &self,
        offset: u64,
        len: usize,
        buffer: &mut [u8],
        stats: &Stats,
    ) -> Result<(), ReadError> {
        let whole = self.read_op(offset, &mut buffer[..len * PAGE_SIZE], stats);
        for (offset, page) in (offset..).zip(buffer[..len * PAGE_SIZE].chunks_exact_mut(PAGE_SIZE))
        {
            if whole == Ok(true) && self.restore(offset, page, stats) {
                continue;
            }
            stats.add(Counter::ReadRetries, 1);
            let failure = match self.read_op(offset, page, stats) {
                Ok(true) if self.restore(offset, page, stats) => continue,
                Ok(all) => self.marks.failure(all),
                Err(errno) => ReadFailure::Io(errno),
            };
            // Nobody is to go on with what is not the page.
            page.fill(0);
            stats.add(Counter::ReadErrors, 1);
            self.figures.add(DeviceFigure::ReadErrors, 1);
            let offset_bytes = offset * PAGE_SIZE as u64;
            return Err(ReadError { path: self.path().clone(), offset_bytes, failure });
        }
        stats.add(Counter::PswpIn, len as u64);
        self.figures.add(DeviceFigure::PagesRead, len as u64);
        Ok(())
    }

    /// One operation; whether it read all bytes.
    fn read_op(&self, offset: u64, data: &mut [u8], stats: &Stats) -> Result<bool, Errno> {
        let len = data.len();
        let mut ops = [Op::read(offset * PAGE_SIZE as u64, data)];
        self.io.run(&mut ops);
        stats.add(Counter::PswpInOps, 1);
        self.figures.add(DeviceFigure::Reads, 1);
        ops[0].result.map(|read| read == len)
    }

    fn restore(&self, offset: u64, page: &mut [u8], stats: &Stats) -> bool {
        let same = self.marks.restore(offset, page);
        if !same {
            stats.add(Counter::ChecksumErrors, 1);
            self.figures.add(DeviceFigure::ChecksumErrors, 1);
        }
        same
    }
}
