//! What users put into a pool: typed regions, vectors, collections with its allocator. Each is
//! larger than the budget, and compared with one of the standard library.

mod common;

use allocator_api2::vec::Vec as VecIn;
use overspill::config::{Config, Delivery};
use overspill::units::Bytes;
use overspill::{Error, Pool, PoolVec, RegionError};

const MIB: usize = 1 << 20;

fn pool() -> Option<Pool> {
    common::pool(
        Config {
            memory: Bytes(8 << 20),
            swap: vec![env!("CARGO_TARGET_TMPDIR").parse().unwrap()],
            delivery: Delivery::Signal,
            window: Some(Bytes(1 << 30)),
            ..Config::default()
        },
        "",
    )
}

fn mix(seed: u64) -> u64 {
    let x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

#[test]
fn a_builder_says_what_is_wrong_when_it_builds() {
    let build = |memory: u64, swap: &str, setting: &str| {
        let built = Pool::builder().memory(memory).swap(swap).setting("folio", setting);
        built.setting("oom", "sigbus").build().map(drop).map_err(|error| error.to_string())
    };
    let size = 8 << 20;
    assert!(build(1, "", "auto").unwrap_err().contains("too small"));
    assert!(build(size, "prio=1", "3").unwrap_err().contains("no device is named"), "the first");
    assert!(build(size, "", "3").unwrap_err().contains("folio cannot be '3'"));
    assert!(build(size, "/none/such", "1").unwrap_err().contains("does not exist"));
    match Pool::builder().memory("8M".parse::<Bytes>().unwrap()).build() {
        Ok(pool) => drop(pool.map(1).unwrap()),
        Err(Error::NoUserfaultfd { .. }) => eprintln!("SKIPPED: there is no userfaultfd"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_region_is_a_slice_of_its_values() {
    let Some(pool) = pool() else { return };
    let count = 3 * MIB;
    let mut region = pool.map_of::<u64>(count).unwrap();
    assert_eq!((region.len(), region.iter().max()), (count, Some(&0)));
    region.iter_mut().enumerate().for_each(|(i, value)| *value = mix(i as u64));
    let start = region.as_ptr();
    region.resize(2 * count).unwrap();
    assert_eq!(region.len(), 2 * count);
    assert!(region[..count].iter().enumerate().all(|(i, value)| *value == mix(i as u64)));
    assert!(region[count..].iter().all(|value| *value == 0));
    region.resize(1000).unwrap();
    region.resize(2000).unwrap();
    assert!(region[..1000].iter().enumerate().all(|(i, value)| *value == mix(i as u64)));
    assert!(region[1024..].iter().all(|value| *value == 0), "{start:?}");
    let no_addresses = |error| matches!(error, RegionError::NoAddresses { .. });
    assert!(no_addresses(region.resize(usize::MAX).unwrap_err()));
    let error = region.resize(MIB << 10).unwrap_err();
    let says = "has no room for a region of 8 GiB: drop regions";
    assert!(error.to_string().contains(says), "more than the window: {error}");
    assert_eq!(region.len(), 2000);
    assert_eq!(region.resize(0).unwrap_err(), RegionError::Empty);
    assert_eq!(pool.map_of::<u64>(0).unwrap_err(), RegionError::Empty);
    assert!(no_addresses(pool.map_of::<u128>(usize::MAX / 8).unwrap_err()));
    let mut bytes = pool.map(10).unwrap();
    bytes.copy_from_slice(b"ten bytes.");
    assert_eq!(&bytes[..3], b"ten");
}

#[test]
fn a_vector_does_what_that_of_the_standard_library_does() {
    let Some(pool) = pool() else { return };
    let (mut values, mut known): (PoolVec<'_, u64>, Vec<u64>) = (pool.vec(), Vec::new());
    assert_eq!((values.pop(), values.capacity(), values.len()), (None, 0, 0));
    for round in 0..400 {
        let number = mix(round);
        let count = number as usize >> 8 & 0xffff;
        match number % 8 {
            0 => (0..count).for_each(|_| assert_eq!(values.pop(), known.pop())),
            1 => {
                values.truncate(count * 8);
                known.truncate(count * 8);
            }
            2 => {
                values.resize(count * 4, number);
                known.resize(count * 4, number);
            }
            3 => values.shrink_to_fit(),
            4 => {
                let more = values[..count.min(values.len())].to_vec();
                values.extend_from_slice(&more);
                known.extend_from_slice(&more);
            }
            _ => {
                values.extend((0..count as u64).map(mix));
                known.extend((0..count as u64).map(mix));
            }
        }
        assert!(values.capacity() >= values.len());
        assert!(*values == *known, "round {round}");
    }
    values.sort_unstable();
    known.sort_unstable();
    assert!(*values == *known);
    values.clear();
    values.shrink_to_fit();
    assert_eq!((values.len(), values.capacity()), (0, 0));
    for more in [usize::MAX, MIB << 10] {
        let error = values.try_reserve(more).unwrap_err();
        assert!(matches!(error, RegionError::NoAddresses { .. }), "{error}");
    }
}

#[test]
fn collections_take_the_allocator() {
    let Some(pool) = pool() else { return };
    let allocator = pool.allocator();
    let mut rows: VecIn<VecIn<u64, _>, _> = VecIn::new_in(allocator.clone());
    let mut known: Vec<Vec<u64>> = Vec::new();
    for round in 0..4000 {
        let number = mix(round);
        let at = number as usize >> 32;
        match number % 4 {
            0 if !rows.is_empty() => {
                let at = at % rows.len();
                rows.swap_remove(at);
                known.swap_remove(at);
            }
            1 if !rows.is_empty() => {
                let at = at % rows.len();
                rows[at].extend((0..number % 5000).map(mix));
                known[at].extend((0..number % 5000).map(mix));
            }
            2 if !rows.is_empty() => {
                let at = at % rows.len();
                rows[at].truncate(number as usize >> 16 & 0xff);
                known[at].truncate(number as usize >> 16 & 0xff);
                rows[at].shrink_to_fit();
            }
            _ => {
                let capacity = number as usize >> 20 & 0x3ff;
                let mut row = VecIn::with_capacity_in(capacity, allocator.clone());
                row.push(number);
                rows.push(row);
                known.push(vec![number]);
            }
        }
    }
    let same = |(row, known): (&VecIn<u64, _>, &Vec<u64>)| row[..] == known[..];
    assert!(rows.len() == known.len() && rows.iter().zip(&known).all(same));
    // Threads share it.
    std::thread::scope(|threads| {
        for seed in 0..4 {
            let allocator = allocator.clone();
            threads.spawn(move || {
                let mut values = VecIn::new_in(allocator);
                values.extend((0..200_000).map(|i| mix(seed << 32 | i)));
                assert!((0..200_000).all(|i| values[i as usize] == mix(seed << 32 | i)));
            });
        }
    });
    drop(rows);
    assert!(pool.stats().counters["charged_peak_bytes"] <= 8 << 20);
}
