//! The fault path leaves the heap alone: in both deliveries, with every tier in use, at eight times
//! the budget.
//!
//! The allocator of this test ends the process at the first use of it by a thread that serves a
//! fault or reclaims.
#![cfg(debug_assertions)]

mod common;

use overspill::Pool;
use overspill::config::{Config, Delivery};
use overspill::units::Bytes;
use overspill_os::fault_path::{CheckedAllocator, FaultPath};
use overspill_os::signal::Blocked;
use std::os::unix::process::ExitStatusExt;

#[global_allocator]
static ALLOCATOR: CheckedAllocator = CheckedAllocator;

const MIB: usize = 1 << 20;
const MEMORY: usize = 8 * MIB;

fn mix(seed: u64) -> u64 {
    let x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// Of eight pages one compresses well, one is one value, and six go to the device.
fn value(i: usize) -> u64 {
    match (i / 512) % 8 {
        0 => i as u64 / 7,
        1 => 0x0101_0101_0101_0101,
        _ => mix(i as u64),
    }
}

/// A pool of [`MEMORY`] bytes; `None`, loudly, where the kernel gives this user no userfaultfd.
fn pool(delivery: Delivery, swap: String, settings: &str) -> Option<Pool> {
    let mut config = Config { memory: Bytes(MEMORY as u64), delivery, ..Config::default() };
    config.swap = vec![swap.parse().unwrap()];
    config.window = Some(Bytes(1 << 30));
    common::pool(config, settings)
}

/// Uses eight times the memory; how many evictions met a write, or `None` where there can be no
/// pool.
fn overcommit(delivery: Delivery, settings: &str) -> Option<u64> {
    let pool = pool(delivery, env!("CARGO_TARGET_TMPDIR").into(), settings)?;
    let mut region = pool.map(8 * MEMORY).unwrap();
    let values: &mut [u64] = region.as_mut_slice();
    let share = values.len() / 4;
    std::thread::scope(|scope| {
        for (t, part) in values.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                let first = t * share;
                part.iter_mut().enumerate().for_each(|(i, v)| *v = value(first + i));
                let mut rng = t as u64 + 1;
                for _ in 0..3_000 {
                    rng = mix(rng);
                    let i = rng as usize % part.len();
                    assert_eq!(part[i], value(first + i), "at {}", first + i);
                    part[i] = value(first + i);
                }
                part.iter()
                    .enumerate()
                    .for_each(|(i, v)| assert_eq!(*v, value(first + i), "at {}", first + i));
            });
        }
    });
    let stats = pool.stats();
    // The whole of the path was taken.
    for counter in ["pswpout", "pswpin", "zswpout", "zswpin", "same_filled_out", "pgsteal_direct"] {
        let unused = match counter {
            "zswpout" | "zswpin" => settings.contains("compressed=0"),
            "pgsteal_direct" => !settings.contains("background=off"),
            _ => false,
        };
        assert!(
            unused || stats.counters[counter] > 0,
            "{delivery:?} {settings}: {counter} is 0: {stats:#?}"
        );
    }
    Some(stats.counters["wp_fault"])
}

#[test]
fn faults_and_reclaim_do_not_allocate() {
    let all = [
        "",
        "background=off",
        "out=move,in=move,zswap.codec=zstd",
        "out=drop,in=copy",
        "compressed=0,folio=1,uring=off",
    ];
    let runs = [Delivery::Signal, Delivery::Thread]
        .into_iter()
        .flat_map(|delivery| all.map(|s| (delivery, s)));
    let met: Vec<u64> =
        runs.filter_map(|(delivery, settings)| overcommit(delivery, settings)).collect();
    // Chance decides in which of them a write meets an eviction.
    assert!(met.is_empty() || met.iter().sum::<u64>() > 0, "no write met an eviction");
}

/// Runs test `name` of this file again as a process of its own, with a [`role`]; the signal that
/// ended it, and its standard error.
fn run_again(name: &str, role: &str) -> (Option<i32>, String) {
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name, "--nocapture"]).env(ROLE, role);
    let output = again.output().unwrap();
    (output.status.signal(), String::from_utf8_lossy(&output.stderr).into_owned())
}

const ROLE: &str = "OVERSPILL_TEST_ROLE";
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;

/// What this process is to do, if it is one that [`run_again`] started.
fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

#[test]
fn an_allocation_on_the_fault_path_ends_the_process() {
    if role().is_some() {
        let _blocked = Blocked::all();
        let _mark = FaultPath::enter();
        std::hint::black_box(Box::new(1u32));
        return;
    }
    let (signal, text) = run_again("an_allocation_on_the_fault_path_ends_the_process", "offender");
    assert_eq!(signal, Some(SIGABRT), "{text}");
    assert!(text.contains("an allocation of 4 bytes on the fault path"), "{text}");
}

/// Trouble is told without the heap too: the device loses its content, and the reader gets SIGBUS.
#[test]
fn a_read_error_is_reported_without_allocating() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("truncated.swap");
    if let Some(role) = role() {
        let delivery = if role == "Thread" { Delivery::Thread } else { Delivery::Signal };
        let Some(pool) = pool(delivery, format!("{}:256M", path.display()), "compressed=0") else {
            return;
        };
        let mut region = pool.map(8 * MEMORY).unwrap();
        let values: &mut [u64] = region.as_mut_slice();
        values.iter_mut().enumerate().for_each(|(i, v)| *v = mix(i as u64));
        // The background thread must not write to the file again before it is read.
        let written = |pool: &Pool| pool.stats().counters["pswpout"];
        let mut before = 0;
        while std::mem::replace(&mut before, written(&pool)) != written(&pool) {
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        values.iter().enumerate().for_each(|(i, v)| assert_eq!(*v, mix(i as u64), "at {i}"));
        return;
    }
    for delivery in [Delivery::Signal, Delivery::Thread] {
        let _ = std::fs::remove_file(&path);
        let (signal, text) =
            run_again("a_read_error_is_reported_without_allocating", &format!("{delivery:?}"));
        if text.contains("SKIPPED") {
            return eprintln!("{text}");
        }
        assert_eq!(signal, Some(SIGBUS), "{delivery:?}: {text}");
        assert!(text.contains("a page cannot be read back"), "{delivery:?}: {text}");
    }
}
