//! A slice of 4 GiB over a pool of 256 MiB.

use overspill::Pool;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::builder().memory(256 << 20).swap("/var/tmp").build()?;
    let mut values = pool.map_of::<u64>(512 << 20)?;
    for (i, value) in values.iter_mut().enumerate() {
        *value = i as u64 / 3;
    }
    let sum: u64 = values.iter().sum();
    println!("sum {sum} of {} values\n{:#?}", values.len(), pool.stats().counters);
    Ok(())
}
