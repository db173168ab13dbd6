//! Pages that leave memory because somebody asks for it.

mod common;

use overspill::Pool;
use overspill::config::{Config, Delivery};
use overspill::stats::Counter;
use overspill::units::{Bytes, PAGE_SIZE};

const MIB: u64 = 1 << 20;

/// A pool of 32 MiB; `None`, loudly, where the kernel gives this user no userfaultfd.
fn pool(delivery: Delivery, swap: bool, settings: &str) -> Option<Pool> {
    let mut config = Config {
        memory: Bytes(32 * MIB),
        delivery,
        window: Some(Bytes(4 << 30)),
        ..Config::default()
    };
    config.swap = swap.then(|| env!("CARGO_TARGET_TMPDIR").parse().unwrap()).into_iter().collect();
    common::pool(config, settings)
}

/// Does not compress.
fn mix(seed: usize) -> u64 {
    let x = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

#[test]
fn what_is_asked_for_leaves_and_comes_back() {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        for settings in ["", "background=off", "out=drop"] {
            let Some(pool) = pool(delivery, true, settings) else { return };
            let mut region = pool.map(20 << 20).unwrap();
            let values: &mut [u64] = region.as_mut_slice();
            values.iter_mut().enumerate().for_each(|(i, v)| *v = mix(i));
            let in_use = |pool: &Pool| pool.stats().get(Counter::ChargedBytes);
            let before = in_use(&pool);
            assert_eq!(pool.reclaim(Bytes(0)), Bytes(0));
            let reclaimed = pool.reclaim(Bytes(8 * MIB));
            let stats = pool.stats();
            assert!(
                reclaimed >= Bytes(8 * MIB) && reclaimed < Bytes(12 * MIB),
                "{delivery:?} {settings}: {reclaimed}"
            );
            assert_eq!(stats.get(Counter::PgStealProactive), reclaimed.0 / PAGE_SIZE as u64);
            assert!(stats.get(Counter::PgScanProactive) >= stats.get(Counter::PgStealProactive));
            assert!(
                before - in_use(&pool) > 7 * MIB,
                "{delivery:?} {settings}: {before} to {}",
                in_use(&pool)
            );
            values.iter().enumerate().for_each(|(i, v)| assert_eq!(*v, mix(i), "at {i}"));
        }
    }
}

#[test]
fn less_than_was_asked_for_where_nothing_takes_it() {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        let Some(pool) = pool(delivery, false, "") else { return };
        let mut region = pool.map(16 << 20).unwrap();
        let values: &mut [u64] = region.as_mut_slice();
        // Half of it compresses well, half not at all; there is no device.
        let half = values.len() / 2;
        let value = |i: usize| if i < half { i as u64 / 100 } else { mix(i) };
        values.iter_mut().enumerate().for_each(|(i, v)| *v = value(i));
        let reclaimed = pool.reclaim(Bytes(1 << 50));
        assert!(
            reclaimed >= Bytes(7 * MIB) && reclaimed <= Bytes(9 * MIB),
            "{delivery:?}: {reclaimed}"
        );
        values.iter().enumerate().for_each(|(i, v)| assert_eq!(*v, value(i), "at {i}"));
    }
}

#[test]
fn several_ask_while_others_work() {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        let Some(pool) = pool(delivery, true, "") else { return };
        let mut region = pool.map(64 << 20).unwrap();
        let values: &mut [u64] = region.as_mut_slice();
        // So that there is something to reclaim from the beginning.
        values.fill(1);
        let share = values.len() / 2;
        let pool = &pool;
        std::thread::scope(|scope| {
            for part in values.chunks_mut(share) {
                scope.spawn(move || {
                    for round in 0..3 {
                        part.iter_mut().enumerate().for_each(|(i, v)| *v = mix(i + round));
                        part.iter()
                            .enumerate()
                            .for_each(|(i, v)| assert_eq!(*v, mix(i + round), "at {i}"));
                    }
                });
            }
            for _ in 0..3 {
                scope.spawn(move || {
                    (0..5).for_each(|_| assert!(pool.reclaim(Bytes(MIB)) > Bytes(0)))
                });
            }
        });
        assert!(pool.stats().get(Counter::PgStealProactive) >= 5 * 256);
    }
}
