//! The engine's side: a pool with two devices, of which one is taken out of use.

use super::load::Pageable;
use super::{Evacuated, Evacuation, Side, device_rate};
use crate::machine::*;
use crate::measure::*;
use overspill::config::SwapSpec;
use overspill::{Advice, Pool, Region};
use overspill_os::Errno;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

/// What is the same in all steps: every page that leaves goes to a device.
pub const SETTINGS: &str = "compressed=0,zswap.recompress=off";

/// Measures with a pool of `settings`.
pub fn measure(
    request: &Evacuation,
    settings: &str,
    rate: &device_rate::SequentialFile,
) -> Result<Sample, Failure> {
    // One with a name, that is removed afterwards, also when this process is killed: to remove a
    // large file takes hundreds of milliseconds, and of one without a name that is a part of its
    // closing.
    let own = request.dir.join(format!(".overspill-bench-{}.device", std::process::id()));
    let file = request.file.as_ref().unwrap_or(&own);
    let name = file.display().to_string();
    let measure = || {
        let device = format!("{name}:{},prio=1", request.device());
        let settings = format!("{SETTINGS},{settings}");
        let pool = pool::open(request.memory(), Some(&device), &settings)?;
        let load_device = &request.load_device;
        super::measure(&Engine { pool: &pool, name: &name, load_device }, request, rate)
    };
    if file.exists() {
        return measure();
    }
    let what = PutBack::files([file.clone()]);
    put_back::around(&what, |_| make(file).and_then(|_| measure()))
}

struct Engine<'a> {
    pool: &'a Pool,
    /// The device that is emptied.
    name: &'a str,
    load_device: &'a str,
}

impl<'a> Side for Engine<'a> {
    type Memory = Region<'a>;
    const COUNTS_LOAD: bool = true;

    fn map(&self, bytes: u64) -> Result<Region<'a>, Failure> {
        pool::map(self.pool, bytes)
    }

    fn add_load_device(&self) -> Result<(), Failure> {
        let device: SwapSpec = self.load_device.parse().map_err(Failure::of)?;
        self.pool.swapon(&SwapSpec { prio: Some(2), ..device }).map_err(Failure::of)
    }

    fn evacuate(&self) -> Result<Evacuated, Failure> {
        let used = || Usage::of(UsageWho::RUSAGE_SELF);
        let (before, began) = (used(), Instant::now());
        let evacuated = self.pool.swapoff(self.name, |_| ControlFlow::Continue(()));
        let elapsed = began.elapsed();
        let usage = used() - before;
        let evacuated = evacuated.map_err(Failure::of)?;
        if evacuated.lost_pages > 0 {
            fail!("{} pages could not be read", evacuated.lost_pages);
        }
        let (page_ins, operations) = (evacuated.read_pages, Some(evacuated.read_ops));
        Ok(Evacuated { elapsed, usage, page_ins, operations })
    }
}

impl Pageable for Region<'_> {
    fn words(&mut self) -> &mut [u64] {
        self.as_mut_slice()
    }

    fn page_out(&self, bytes: Range<usize>) -> Result<(), Errno> {
        self.advise(bytes, Advice::PageOut).map_err(|error| error.errno())
    }
}
