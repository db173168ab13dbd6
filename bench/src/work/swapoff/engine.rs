//! The engine's side: a pool with two devices, of which one is taken out of use.

use super::device_rate;
use super::figures::Measured;
use super::load::{self, Memory};
use super::request::{self, Request};
use crate::machine::put_back::{self, PutBack};
use crate::measure::usage::{Usage, UsageWho};
use crate::measure::{Failing, Failure, fail, pool};
use overspill::config::SwapSpec;
use overspill::{Advice, Region};
use overspill_os::Errno;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::{Duration, Instant};

/// What is the same in all steps: every page that leaves goes to a device.
pub const SETTINGS: &str = "compressed=0,zswap.recompress=off";

/// Measures with a pool of `settings`; its device is `file`, or one that is made for this.
pub fn measure(
    request: &Request,
    settings: &str,
    file: Option<&Path>,
    load_device: &str,
    rate: &device_rate::Sample,
) -> Result<Measured, Failure> {
    // One with a name, that is removed afterwards, also when this process is killed: to remove a
    // large file takes hundreds of milliseconds, and of one without a name that is a part of its
    // closing.
    let own = request.dir.join(format!(".overspill-bench-{}.device", std::process::id()));
    let file = file.unwrap_or(&own);
    let measure = || in_pool(request, settings, file, load_device, rate);
    if file.exists() {
        return measure();
    }
    let what = PutBack { file: vec![file.to_owned()], ..PutBack::default() };
    put_back::around(&what, |_| put_back::make(file).and_then(|_| measure()))
}

fn in_pool(
    request: &Request,
    settings: &str,
    file: &Path,
    load_device: &str,
    rate: &device_rate::Sample,
) -> Result<Measured, Failure> {
    // 1. Memory is written, and pushed out by another allocation, which is freed.
    let name = file.display().to_string();
    let device = format!("{name}:{},prio=1", request.device());
    let pool = pool::open(request.memory(), Some(&device), &[SETTINGS, settings].join(","))?;
    let mut data = pool::map(&pool, request.size)?;
    request::fill(data.as_mut_slice());
    request::touch(pool::map(&pool, request.other())?.as_mut_slice());
    // What the other allocation left in memory goes too, so that both sides have as much to bring
    // back.
    let out = data.advise(0..request.size as usize, Advice::PageOut);
    out.failing("memory cannot be pushed out")?;
    let device_mb_per_s = rate.mb_per_s()?;
    // 2. The device is emptied, beside a load if there is one.
    let evacuate = || {
        let used = || Usage::of(UsageWho::RUSAGE_SELF);
        let (before, began) = (used()?, Instant::now());
        let evacuated = pool.swapoff(&name, |_| ControlFlow::Continue(()));
        let elapsed = began.elapsed();
        let usage = used()? - before;
        let evacuated = evacuated.map_err(Failure::of)?;
        if evacuated.lost_pages > 0 {
            fail!("{} pages could not be read", evacuated.lost_pages);
        }
        let (page_ins, operations) = (evacuated.read_pages, Some(evacuated.read_ops));
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
    let measured = if request.load == 0 {
        evacuate()?
    } else {
        // Its pages go to a device of higher priority, which is there only now: what was pushed out
        // lies on the other.
        let failure = |error: &dyn fmt::Display| Failure::new(error.to_string());
        let device: SwapSpec = load_device.parse().map_err(|error| failure(&error))?;
        let device = SwapSpec { prio: Some(2), ..device };
        pool.swapon(&device).map_err(|error| failure(&error))?;
        let (measured, found) = load::beside(pool::map(&pool, request.load)?, evacuate)?;
        Measured { usage: measured.usage - found.during.usage, load: Some(found), ..measured }
    };
    // 3. Every page is what it was.
    let first_access = request::access(data.as_slice());
    request::verify(data.as_slice())?;
    Ok(Measured { first_access, ..measured })
}

impl Memory for Region<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }

    fn page_out(&self, bytes: Range<usize>) -> Result<(), Errno> {
        self.advise(bytes, Advice::PageOut)
    }
}
