//! A slice of 4 GiB over a pool of 256 MiB.

use overspill::Pool;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::with_memory(256 << 20, Some("/var/tmp".as_ref()))?;
    let mut region = pool.map(4 << 30)?;
    let values: &mut [u64] = region.as_mut_slice();
    for (i, value) in values.iter_mut().enumerate() {
        *value = i as u64 / 3;
    }
    let sum: u64 = values.iter().sum();
    println!("sum {sum} of {} values\n{:#?}", values.len(), pool.stats().counters);
    Ok(())
}
