//! `swapoff`: memory is written and pushed out by another allocation, that is freed, and the device
//! is emptied, by the [`engine`] or by the [`kernel`].
//!
//! [`load`] is what goes on meanwhile, [`device_rate`] what the disk can do, [`figures`] what is
//! told, [`request`] what is asked for.

pub mod device_rate;
pub mod engine;
pub mod figures;
pub mod kernel;
pub mod load;
pub mod request;

use crate::measure::{Failure, Sample};
use request::{Request, Who};

/// Measures in this process, which does nothing else.
pub fn measure_one(request: Request) -> Result<Sample, Failure> {
    // Written first: what is read later must be no fresher in any cache than what was swapped.
    let rate = device_rate::Sample::write(&request.dir, request.size)?;
    let measured = match &request.who {
        Who::Engine { settings, file, load_device } => {
            engine::measure(&request, settings, file.as_deref(), load_device, &rate)?
        }
        Who::Kernel => kernel::measure(&request, &rate)?,
    };
    Ok(figures::of(measured))
}
