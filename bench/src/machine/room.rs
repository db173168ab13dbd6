//! Whether what is to be measured fits into the machine.

use super::place::Place;
use crate::measure::{Failure, fail, host};
use overspill::units::Bytes;

/// Whether there is so much memory for a `--size`.
pub fn memory(size: Bytes, needed: u64) -> Result<(), Failure> {
    let available = host::available_bytes();
    if needed > available {
        let (needed, available) = (Bytes(needed), Bytes(available));
        fail!(
            "a --size of {size} needs {needed} of memory and {available} is available: give a \
             smaller --size"
        );
    }
    Ok(())
}

/// Whether there is so much room on a disk, which `option` names.
pub fn disk(size: Bytes, needed: u64, place: &Place, option: &str) -> Result<(), Failure> {
    let free = place.free_bytes()?;
    if needed > free {
        let (needed, free, dir) = (Bytes(needed), Bytes(free), place.dir.display());
        fail!(
            "a --size of {size} needs {needed} on the disk of '{dir}', and it has {free}: give a \
             smaller --size, or another {option}"
        );
    }
    Ok(())
}
