//! Compressed pages that broken memory has changed: each is lost to whoever reads it, never wrong
//! data, and nothing else is.
//!
//! What is said of it, and how the program ends, is seen from outside: each test runs itself once
//! more as a child.

#![cfg(debug_assertions)]

mod common;

use overspill::Pool;
use overspill::config::{Config, Delivery, SwapList};
use overspill::units::Bytes;
use overspill_os::Errno;
use overspill_os::vm::MADV_DONTNEED;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::pwrite;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: usize = 8 << 10;
/// One page in so many is damaged: each is alone in its folio.
const EVERY: usize = 64;
/// Says to a test that it is the child.
const CHILD: &str = "OVERSPILL_TEST_CHILD";
/// Longest time of a child.
const LIMIT: Duration = Duration::from_secs(120);
/// Ends a child that found nothing to test.
const SKIPPED: i32 = 77;

fn pool(delivery: Delivery, swap: &str, settings: &str) -> Pool {
    let SwapList(swap) = swap.parse().unwrap();
    let config = Config {
        memory: Bytes(8 << 20),
        swap,
        delivery,
        window: Some(Bytes(64 << 20)),
        ..Config::default()
    };
    common::pool(config, settings).unwrap_or_else(|| std::process::exit(SKIPPED))
}

/// What a page holds: it compresses to some 600 bytes.
fn content(page: usize) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    for (i, place) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *place =
            ((page as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (i / 16) as u64).to_le_bytes();
    }
    bytes
}

fn fill(bytes: &mut [u8], pages: std::ops::Range<usize>) {
    pages.for_each(|page| bytes[page * PAGE..][..PAGE].copy_from_slice(&content(page)));
}

/// Damages one in [`EVERY`] pages, in another place each, as far as they are compressed at the
/// moment; which.
fn damage(pool: &Pool, bytes: &[u8], pages: std::ops::Range<usize>) -> Vec<usize> {
    let at = |page: usize| bytes.as_ptr() as usize + page * PAGE;
    pages
        .step_by(EVERY)
        .map(|page| page + EVERY / 2)
        .filter(|page| pool.damage_compressed(at(*page), page * 7))
        .collect()
}

/// Runs the test `name` as a child; `None` if it had nothing to test here.
fn child(name: &str) -> Option<Output> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{name} hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(SKIPPED) {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(output)
}

/// Checks that the reason was said, once.
fn said(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("overspill: ")).collect();
    let [line] = lines[..] else { panic!("{output:?}") };
    let reason = "a compressed page is damaged, the program gets SIGBUS for it";
    assert!(line.contains(reason), "{output:?}");
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Reads all pages in sequence by system calls, which say EFAULT of a page that is gone; those are
/// the ones that were damaged.
fn read_by_calls(settings: &str, swap: &str, use_others: bool) {
    let pool = pool(Delivery::Thread, swap, settings);
    let file = memfd_create(c"page", MemfdFlags::CLOEXEC).unwrap();
    let mut region = pool.map(PAGES * PAGE).unwrap();
    let bytes: &mut [u8] = region.as_mut_slice();
    let half = if use_others { PAGES / 2 } else { PAGES };
    fill(bytes, 0..half);
    let damaged = damage(&pool, bytes, 0..half);
    assert!(damaged.len() >= 5, "too few pages were compressed: {damaged:?}");
    // The others drive the damaged ones towards the device, if there is one.
    fill(bytes, half..PAGES);
    let mut gone = Vec::new();
    for page in 0..PAGES {
        match pwrite(&file, &bytes[page * PAGE..][..PAGE], 0) {
            Ok(PAGE) => {
                assert!(bytes[page * PAGE..][..PAGE] == content(page), "page {page} is wrong")
            }
            Err(Errno::FAULT) => gone.push(page),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(gone, damaged);
    assert_eq!(pool.stats().counters["fault_errors"], damaged.len() as u64);
    if use_others {
        assert!(pool.stats().counters["zswpwb"] > 0, "nothing was written to the device");
    }
    // A page whose content is gone can be used again.
    for page in gone {
        let at = bytes[page * PAGE..].as_ptr() as usize;
        pool.madvise(at..at + PAGE, MADV_DONTNEED).unwrap();
        assert!(bytes[page * PAGE..][..PAGE].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn system_calls_fail() {
    if is_child() {
        return read_by_calls("", "", false);
    }
    let Some(output) = child("system_calls_fail") else { return };
    assert!(output.status.success(), "{output:?}");
    said(&output);
}

#[test]
fn other_codecs_find_it_too() {
    if is_child() {
        read_by_calls("zswap.codec=zstd", "", false);
        return read_by_calls(
            "zswap.codec=none,zswap.keep=on,folio=64,compressed=70",
            "ram:64M",
            true,
        );
    }
    let Some(output) = child("other_codecs_find_it_too") else { return };
    assert!(output.status.success(), "{output:?}");
}

/// What is damaged is not written to a device as if it were whole.
#[test]
fn no_damage_is_written_back() {
    if is_child() {
        return read_by_calls("compressed=12", "ram:64M", true);
    }
    let Some(output) = child("no_damage_is_written_back") else { return };
    assert!(output.status.success(), "{output:?}");
    said(&output);
}

#[test]
fn an_access_ends_the_program() {
    if is_child() {
        let pool = pool(Delivery::Signal, "", "");
        let mut region = pool.map(PAGES * PAGE).unwrap();
        let bytes: &mut [u8] = region.as_mut_slice();
        fill(bytes, 0..PAGES);
        let damaged = damage(&pool, bytes, 0..PAGES)[0];
        // Its neighbours, of its own folio, are fine.
        for page in (0..damaged).chain(damaged + 1..damaged + EVERY / 2) {
            assert!(bytes[page * PAGE..][..PAGE] == content(page), "page {page} is wrong");
        }
        assert_eq!(pool.stats().counters["fault_errors"], 0);
        println!("all others read");
        println!("page {damaged} has {}", bytes[damaged * PAGE]);
        return;
    }
    let Some(output) = child("an_access_ends_the_program") else { return };
    assert_eq!(output.status.signal(), Some(7), "SIGBUS is how it ends: {output:?}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("all others read") && !stdout.contains(" has "), "{output:?}");
    said(&output);
}
