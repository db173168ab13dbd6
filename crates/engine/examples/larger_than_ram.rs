//! A slice of four times the memory that it may have, written and read back.
//!
//! `larger_than_ram [MIB [DIRECTORY]]`: the budget, 256 MiB; where the rest goes, /var/tmp.

use overspill::Pool;
use overspill::stats::Counter;
use std::env;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mib: u64 = env::args().nth(1).map_or(Ok(256), |mib| mib.parse())?;
    let directory = env::args().nth(2).unwrap_or("/var/tmp".into());
    let pool = Pool::builder().memory(mib << 20).swap(&directory).build()?;
    let mut values = pool.map_of::<u64>(((4 * mib) << 20) as usize / size_of::<u64>())?;
    let value = |i: usize| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (i, there) in values.iter_mut().enumerate() {
        *there = value(i);
    }
    let wrong = values.iter().enumerate().filter(|(i, there)| **there != value(*i)).count();
    let faults = pool.stats().get(Counter::PgFault);
    println!("{wrong} wrong of {} MiB in {mib} MiB, after {faults} faults", 4 * mib);
    Ok(())
}
