//! Runs a target without a fuzzer: over its seeds, and over changes to them that are the same each
//! time.

use crate::NAMES;
use std::fs;
use std::path::{Path, PathBuf};

/// Changed inputs a target: two seconds for the slowest one in a debug build.
const CHANGED: usize = 3000;
/// Inputs to begin with, of a target that has no seeds: each twice as long as the one before.
const MADE_UP: u32 = 10;
/// What length, position or count is often wrong with.
const NUMBERS: [u64; 6] = [0, 1, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];
const TEXTS: [&[u8]; 8] =
    [b"0", b"-1", b"18446744073709551615", b"1e309", b"\0", b"\n", b"\xff", "\u{e9}".as_bytes()];

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Numbers that are the same in each run: splitmix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One of that many.
    fn below(&mut self, many: usize) -> usize {
        (self.next() % many.max(1) as u64) as usize
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// Changes one thing.
    fn change(&mut self, input: &mut Vec<u8>, others: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(16)).min(input.len());
        match self.below(8) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => input.extend_from_within(at..),
            3 => drop(input.splice(at..end, self.of(&TEXTS).iter().copied())),
            4 => drop(input.splice(at..at, self.of(others).iter().skip(at).copied())),
            5 => {
                let number = self.of(&NUMBERS).to_le_bytes();
                input[at..].iter_mut().zip(number).for_each(|(to, from)| *to = from);
            }
            6 => input[at..end].iter_mut().for_each(|byte| *byte ^= 1 << self.below(8)),
            _ => input[at..end].iter_mut().for_each(|byte| *byte = self.next() as u8),
        }
        input.truncate(1 << 14);
    }
}

/// Says what a target panicked with.
struct Running<'a>(&'a str, &'a [u8]);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} with \"{}\"", self.0, self.1.escape_ascii());
        }
    }
}

/// Has a target look at its seeds, and at changes to them.
pub fn play(name: &str, target: fn(&[u8])) {
    let mut numbers = Numbers(0);
    let mut seeds = seeds_of(name);
    if seeds.is_empty() {
        let made_up = |n| (0..1 << n).map(|_| numbers.next() as u8).collect();
        seeds = (0..MADE_UP).map(made_up).collect();
    }
    let run = |input: &[u8]| {
        let running = Running(name, input);
        target(input);
        drop(running);
    };
    seeds.iter().for_each(|seed| run(seed));
    run(&[]);
    for _ in 0..CHANGED {
        let mut input = numbers.of(&seeds).clone();
        for _ in 0..=numbers.below(4) {
            numbers.change(&mut input, &seeds);
        }
        run(&input);
    }
}

/// In an order that is the same on each machine.
fn seeds_of(name: &str) -> Vec<Vec<u8>> {
    let Ok(folder) = fs::read_dir(folder("seeds").join(name)) else { return Vec::new() };
    let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn names_in(path: &str) -> Vec<String> {
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<_> =
        fs::read_dir(folder(path)).unwrap().map(|entry| name(entry.unwrap().path())).collect();
    names.sort();
    names
}

/// No ordinary compiler looks at the programs: each is one line, and here is which.
#[test]
fn each_target_has_its_program() {
    let manifest = fs::read_to_string(folder("Cargo.toml")).unwrap();
    let mut names = NAMES.to_vec();
    for name in &names {
        let program = fs::read_to_string(folder("fuzz_targets").join(name).with_extension("rs"));
        let line = format!(
            "//! The target `{name}`, for libFuzzer.\n#![no_main]\n\n\
             libfuzzer_sys::fuzz_target!(|bytes: &[u8]| overspill_fuzz::{name}::run(bytes));\n"
        );
        assert_eq!(program.ok().as_ref(), Some(&line));
    }
    // That one runs in the unit tests of the preload library.
    names.push("stopped_call");
    names.sort();
    assert_eq!(names_in("fuzz_targets"), names);
    for name in names_in("seeds") {
        assert!(names.contains(&name.as_str()), "seeds of no target: {name}");
    }
    for name in names {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
    }
}

/// Nor at the manifest by which these build the preload library.
#[test]
fn the_preload_library_is_built_from_what_it_uses() {
    let [real, ours] = ["../crates/preload/Cargo.toml", "preload/Cargo.toml"].map(|path| {
        let manifest = fs::read_to_string(folder(path)).unwrap();
        let (mut names, mut used) = (Vec::new(), false);
        for line in manifest.lines() {
            if let Some(table) = line.strip_prefix('[') {
                let table = table.trim_end_matches(']');
                used = matches!(table, "dependencies" | "dev-dependencies");
                names.extend(table.strip_prefix("dependencies.").map(str::to_owned));
            } else if let Some((name, _)) = line.split_once(['.', ' ']).filter(|_| used) {
                names.push(name.to_owned());
            }
        }
        names.retain(|name| name.starts_with(|first: char| first.is_ascii_alphabetic()));
        names.sort();
        names
    });
    assert_eq!(real, ours);
}
