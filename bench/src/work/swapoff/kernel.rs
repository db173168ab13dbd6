//! The kernel's side: a memory cgroup as large as the pool, a swap file, and swapoff(8).
//!
//! It needs root. What it changes on the machine is put back by a process of its own
//! ([`crate::machine::put_back`]), also when this one is killed.

use super::device_rate;
use super::figures::Measured;
use super::load::{self, Memory};
use super::request::{self, Request};
use crate::machine::cgroup::{Cgroup, Hierarchy};
use crate::machine::kernel_swap::{self, MOUNTS, PROCESS_BYTES, swap_on};
use crate::machine::put_back::{self, PutBack};
use crate::machine::util_linux::{command, path, swaps};
use crate::measure::usage::{Usage, UsageWho};
use crate::measure::{Failing, Failure};
use overspill::units::{Bytes, PAGE_SIZE};
use overspill_os::Errno;
use overspill_os::io::IoBuffer;
use overspill_os::vm::{self, advice};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Priorities of the swap files: above all that the machine has, the load's above the other's.
const PRIORITY: u32 = 32_766;
const PRIORITY_OF_LOAD: u32 = 32_767;

/// Measures the kernel.
pub fn measure(request: &Request, rate: &device_rate::Sample) -> Result<Measured, Failure> {
    // 1. Whatever this changes is put back.
    let hierarchy = Hierarchy::find(Path::new(MOUNTS)).map_err(Failure::new)?;
    let name = kernel_swap::name();
    let [file, load_file] =
        ["swap", "load.swap"].map(|end| request.dir.join(format!(".{name}.{end}")));
    let cgroup = hierarchy.group(&name);
    let files = vec![file.clone(), load_file.clone()];
    let what = PutBack { file: files, alone: true, ..PutBack::cgroup(Some(&cgroup)) };
    put_back::around(&what, |_| {
        let measured = in_cgroup(request, rate, &cgroup, &file, &load_file);
        let left = cgroup.leave();
        let measured = measured?;
        left?;
        Ok(measured)
    })
}

fn in_cgroup(
    request: &Request,
    rate: &device_rate::Sample,
    cgroup: &Cgroup,
    file: &Path,
    load_file: &Path,
) -> Result<Measured, Failure> {
    // 2. As much memory as the engine had, and a swap file.
    cgroup.enter(request.memory() + PROCESS_BYTES)?;
    swap_on(file, request.device(), PRIORITY)?;
    // 3. Memory is written, and pushed out by another allocation, which is freed.
    let mut data = memory(request.size)?;
    request::fill(data.words_mut());
    request::touch(memory(request.other())?.words_mut());
    let out = data.page_out(0..request.size as usize);
    out.failing("memory cannot be pushed out")?;
    let device_mb_per_s = rate.mb_per_s()?;
    // 4. The swap file is taken out of use, beside a load if there is one.
    let alone = request.load == 0;
    let evacuate = || {
        let children = || Usage::of(UsageWho::RUSAGE_CHILDREN);
        let page_ins = used_pages(file)?;
        let operations = disk_reads(&request.dir).filter(|_| alone);
        let (before, began) = (children()?, Instant::now());
        command("swapoff", &[path(file)?])?;
        let elapsed = began.elapsed();
        let operations =
            operations.zip(disk_reads(&request.dir)).map(|(before, after)| after - before);
        let usage = children()? - before;
        Ok(Measured {
            elapsed,
            usage,
            page_ins,
            operations,
            device_mb_per_s,
            first_access: Duration::ZERO,
            load: None,
        })
    };
    let measured = if alone {
        evacuate()?
    } else {
        swap_on(load_file, request::load_device(request.load), PRIORITY_OF_LOAD)?;
        let (measured, found) = load::beside(memory(request.load)?, evacuate)?;
        Measured { load: Some(found), ..measured }
    };
    // 5. Every page is what it was.
    let first_access = request::access(data.words());
    request::verify(data.words())?;
    Ok(Measured { first_access, ..measured })
}

fn memory(bytes: u64) -> Result<IoBuffer, Failure> {
    let failure = |errno| Failure::new(format!("the kernel maps no {}: {errno}", Bytes(bytes)));
    IoBuffer::new(bytes as usize / PAGE_SIZE).map_err(failure)
}

impl Memory for IoBuffer {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }

    fn page_out(&self, bytes: Range<usize>) -> Result<(), Errno> {
        let start = self[bytes.clone()].as_ptr() as usize;
        vm::advise(start..start + bytes.len(), advice::PAGEOUT)
    }
}

/// Pages of a swap file that are in use.
fn used_pages(file: &Path) -> Result<u64, Failure> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let used = swaps(&table).find(|(path, _)| path == file).map(|(_, used)| used);
    used.ok_or_else(|| Failure::new("the kernel does not list the swap file that it uses"))
}

/// Read operations of the disk that a directory is on, by anybody.
fn disk_reads(dir: &Path) -> Option<u64> {
    let dev = fs::metadata(dir).ok()?.dev();
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    stat.split_whitespace().next()?.parse().ok()
}
