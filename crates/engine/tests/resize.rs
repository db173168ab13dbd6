//! Budgets that change while a pool is in use.

mod common;

use overspill::config::{Config, Delivery};
use overspill::stats::{Counter, Snapshot};
use overspill::units::Bytes;
use overspill::{Error, Pool};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Longest that a budget may take to be kept: this is about getting there at all, on a machine that
/// has much to do.
const LIMIT: Duration = Duration::from_secs(60);

/// A pool of `mib` MiB; `None`, loudly, where the kernel gives this user no userfaultfd.
fn pool(mib: usize, swap: bool, delivery: Delivery, settings: &str) -> Option<Pool> {
    let mut config = Config { memory: Bytes((mib * MIB) as u64), delivery, ..Config::default() };
    config.swap = swap.then(|| env!("CARGO_TARGET_TMPDIR").parse().unwrap()).into_iter().collect();
    config.window = Some(Bytes(4 << 30));
    common::pool(config, settings)
}

fn mix(seed: u64) -> u64 {
    let x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// Half of the pages compresses well, half not at all.
fn value(i: usize) -> u64 {
    if (i / 512).is_multiple_of(2) { mix(i as u64) } else { i as u64 / 7 }
}

fn check(values: &[u64]) {
    values.iter().enumerate().for_each(|(i, v)| assert_eq!(*v, value(i), "at {i}"));
}

fn wait_for(pool: &Pool, what: &str, holds: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let start = Instant::now();
    loop {
        let stats = pool.stats();
        if holds(&stats) {
            return stats;
        }
        assert!(start.elapsed() < LIMIT, "{what}: {stats:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_reached(stats: &Snapshot) -> bool {
    let limit = stats.get(Counter::LimitBytes);
    limit == stats.target.0 && stats.get(Counter::ChargedBytes) <= limit
}

/// From 32 MiB down to 6, up to eight times the first budget, and down again, with the content
/// checked each time.
fn down_and_up(delivery: Delivery, settings: &str) {
    let Some(pool) = pool(32, true, delivery, settings) else { return };
    let mut region = pool.map(96 * MIB).unwrap();
    let values: &mut [u64] = region.as_mut_slice();
    values.iter_mut().enumerate().for_each(|(i, v)| *v = value(i));
    for mib in [6, 256, 6, 32] {
        pool.set_memory(Bytes((mib * MIB) as u64)).unwrap();
        let stats = wait_for(&pool, "the budget is kept", is_reached);
        assert_eq!(stats.get(Counter::LimitBytes), (mib * MIB) as u64);
        check(values);
        let stats = wait_for(&pool, "the budget is kept while the pages are used", is_reached);
        // Two frames for each page, in whole pageblocks.
        let frames = (mib * 2 * MIB / 4096).next_multiple_of(512) as u64;
        wait_for(&pool, "the arena follows", |stats| stats.get(Counter::ArenaFrames) == frames);
        if mib == 256 {
            assert!(
                stats.get(Counter::ResidentPages) as usize * 4096 > 90 * MIB,
                "there is room for all: {stats:#?}"
            );
        }
    }
    let stats = pool.stats();
    assert_eq!(
        (stats.get(Counter::FaultErrors), stats.get(Counter::BudgetChanges)),
        (0, 4),
        "{stats:#?}"
    );
}

#[test]
fn thread_delivery() {
    down_and_up(Delivery::Thread, "");
}

#[test]
fn signal_delivery() {
    down_and_up(Delivery::Signal, "");
}

#[test]
fn without_reclaim_ahead_of_need() {
    down_and_up(Delivery::Thread, "background=off");
}

#[test]
fn by_moving_only() {
    down_and_up(Delivery::Signal, "out=move");
}

#[test]
fn by_dropping_only() {
    down_and_up(Delivery::Thread, "out=drop");
}

#[test]
fn without_compression() {
    down_and_up(Delivery::Signal, "compressed=0");
}

/// A budget that grows again while the arena still shrinks, at every moment of that: frames that
/// leave the arena are closed before they come back. Several pools at once, so that threads are
/// interrupted there.
#[test]
fn growing_while_the_arena_shrinks() {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || grow_and_shrink(seed));
        }
    });
}

fn grow_and_shrink(seed: u64) {
    let Some(pool) = pool(4, true, Delivery::Signal, "") else { return };
    let mut region = pool.map(14 * MIB).unwrap();
    let values: &mut [u64] = region.as_mut_slice();
    values.iter_mut().enumerate().for_each(|(i, v)| *v = value(i));
    let began = Instant::now();
    for round in seed << 32.. {
        pool.set_memory(Bytes((16 * MIB) as u64)).unwrap();
        check(values);
        pool.set_memory(Bytes((4 * MIB) as u64)).unwrap();
        std::thread::sleep(Duration::from_micros(mix(round) % 80_000));
        if began.elapsed() > Duration::from_secs(2) {
            break;
        }
    }
    assert_eq!(pool.stats().get(Counter::FaultErrors), 0);
}

/// Without swap, pages that do not compress have to stay: the program goes on, and the limit
/// follows what it gives up.
fn out_of_reach(delivery: Delivery) {
    let Some(pool) = pool(32, false, delivery, "") else { return };
    let mut keeps = pool.map(12 * MIB).unwrap();
    let mut gives_up = pool.map(12 * MIB).unwrap();
    for region in [&mut keeps, &mut gives_up] {
        region.as_mut_slice::<u64>().iter_mut().enumerate().for_each(|(i, v)| *v = mix(i as u64));
    }
    pool.set_memory(Bytes(16 << 20)).unwrap();
    let stats = wait_for(&pool, "no more can be had", |stats| stats.stuck);
    assert!(stats.get(Counter::LimitBytes) > 24 << 20, "{stats:#?}");
    for region in [&keeps, &gives_up] {
        region
            .as_slice::<u64>()
            .iter()
            .enumerate()
            .for_each(|(i, v)| assert_eq!(*v, mix(i as u64)));
    }
    drop(gives_up);
    let stats = wait_for(&pool, "the limit follows", is_reached);
    assert_eq!((stats.stuck, stats.get(Counter::FaultErrors)), (false, 0), "{stats:#?}");
    keeps.as_slice::<u64>().iter().enumerate().for_each(|(i, v)| assert_eq!(*v, mix(i as u64)));
}

#[test]
fn what_cannot_be_stored_stays() {
    out_of_reach(Delivery::Thread);
    out_of_reach(Delivery::Signal);
}

#[test]
fn too_small_a_budget_is_refused() {
    let Some(pool) = pool(8, false, Delivery::Signal, "") else { return };
    assert!(matches!(pool.set_memory(Bytes((4 << 20) - 1)), Err(Error::BudgetTooSmall { .. })));
    assert_eq!(pool.stats().get(Counter::BudgetBytes), 8 << 20);
}
