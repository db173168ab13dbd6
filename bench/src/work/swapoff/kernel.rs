//! The kernel's side: a memory cgroup as large as the pool, a swap file, and swapoff(8).
//!
//! It needs root. What it changes on the machine is put back by a process of its own
//! ([`crate::machine::put_back`]), also when this one is killed.

use super::load::Pageable;
use super::{Evacuated, Evacuation, Side, device_rate, load_device_bytes};
use crate::machine::*;
use crate::measure::*;
use overspill::units::{Bytes, PAGE_SIZE};
use overspill_os::Errno;
use overspill_os::io::IoBuffer;
use overspill_os::vm::{self, advice};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Priorities of the swap files: above all that the machine has, the load's above the other's.
const PRIORITY: u32 = 32_766;
const PRIORITY_OF_LOAD: u32 = 32_767;

pub fn measure(
    request: &Evacuation,
    rate: &device_rate::SequentialFile,
) -> Result<Sample, Failure> {
    let name = kernel_swap::name();
    let cgroup = kernel_swap::cgroup()?;
    let [file, load_file] =
        ["swap", "load.swap"].map(|end| request.dir.join(format!(".{name}.{end}")));
    // Whatever this changes is put back.
    let files = vec![file.clone(), load_file.clone()];
    let what = PutBack { files, alone: true, ..PutBack::cgroup(Some(&cgroup)) };
    put_back::around(&what, |_| {
        // As much memory as the engine had, and a swap file.
        cgroup.inside(request.memory() + PROCESS_BYTES, || {
            swap_on(&file, request.device(), PRIORITY)?;
            super::measure(&Kernel { request, file, load_file }, request, rate)
        })
    })
}

struct Kernel<'a> {
    request: &'a Evacuation,
    file: PathBuf,
    load_file: PathBuf,
}

impl Side for Kernel<'_> {
    type Memory = IoBuffer;
    const COUNTS_LOAD: bool = false;

    fn map(&self, bytes: u64) -> Result<IoBuffer, Failure> {
        IoBuffer::new(bytes as usize / PAGE_SIZE)
            .failing(format_args!("the kernel maps no {}", Bytes(bytes)))
    }

    fn add_load_device(&self) -> Result<(), Failure> {
        swap_on(&self.load_file, load_device_bytes(self.request.load), PRIORITY_OF_LOAD)
    }

    fn evacuate(&self) -> Result<Evacuated, Failure> {
        let children = || Usage::of(UsageWho::RUSAGE_CHILDREN);
        // A load reads from the same disk.
        let reads = || disk_reads(&self.request.dir).filter(|_| self.request.load == 0);
        let page_ins = used_pages(&self.file)?;
        let reads_before = reads();
        let (before, began) = (children(), Instant::now());
        command("swapoff", &[path(&self.file)?])?;
        let elapsed = began.elapsed();
        let operations = reads_before.zip(reads()).map(|(before, after)| after - before);
        Ok(Evacuated { elapsed, usage: children() - before, page_ins, operations })
    }
}

impl Pageable for IoBuffer {
    fn words(&mut self) -> &mut [u64] {
        self.words_mut()
    }

    fn page_out(&self, bytes: Range<usize>) -> Result<(), Errno> {
        let start = self[bytes.clone()].as_ptr() as usize;
        vm::advise(start..start + bytes.len(), advice::PAGEOUT)
    }
}

/// Pages of a swap file that are in use.
fn used_pages(file: &Path) -> Result<u64, Failure> {
    let used = swaps().into_iter().find(|(path, ..)| path == file).map(|(_, used, _)| used);
    used.ok_or_else(|| Failure::new("the kernel does not list the swap file that it uses"))
}

/// Read operations of the disk that a directory is on, by anybody.
fn disk_reads(dir: &Path) -> Option<u64> {
    let dev = fs::metadata(dir).ok()?.dev();
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    stat.split_whitespace().next()?.parse().ok()
}
