//! Swap devices that somebody else reads and writes while a program runs.

use overspill_tests::Scratch;
use overspill_tests::job::Job;
use overspill_tests::scratch::{Room, private_file};
use rustix::process::Signal;
use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

const PAGE: usize = 4096;
const MIB: u64 = 64;

/// A program that has written 64 MiB, of which most are in a file, and is about to read them.
fn written(
    room: &Room,
    (name, crypt): (&str, &str),
    more: &[&str],
    (program, args): (&str, &[&str]),
) -> Option<(Job, PathBuf)> {
    let file = room.path.join(name);
    private_file(&file);
    let device = format!("{}:256M{crypt}", file.to_str().unwrap());
    let options = ["--memory", "16M", "--set", "compressed=0", "--swap", &device];
    let options = [&options, more].concat();
    let job =
        Job::program(&SCRATCH, name, &options, program, &[&[&*MIB.to_string()], args].concat())?;
    Some((job, file))
}

/// One that tells which pages it could not read.
const UNREADABLE: (&str, &[&str]) = ("unreadable.c", &["wait"]);

/// The first words of pages with these numbers, of those that do not compress and some others.
fn first_words(pages: Range<u64>) -> HashSet<u64> {
    pages.map(mix).filter(|seed| seed & 3 < 2).map(mix).collect()
}

/// How many words of a file are of these.
fn found(file: &Path, words: &HashSet<u64>) -> usize {
    let bytes = fs::read(file).unwrap();
    let all = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    all.filter(|word| words.contains(word)).count()
}

/// As in `common.h` of the programs.
fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// How a run of it ends: pages that it could not read, and what was said.
fn end(job: Job) -> (u64, String) {
    job.signal(Signal::TERM);
    let (status, stdout, stderr) = job.end();
    let lost = stdout.strip_suffix(" unreadable, 0 wrong, 0 strange\n");
    let lost = lost.and_then(|lost| lost.parse().ok());
    assert_eq!(status, 0, "{stdout}{stderr}");
    (lost.unwrap_or_else(|| panic!("{stdout}{stderr}")), stderr)
}

#[test]
fn who_reads_the_device_finds_no_page_of_the_program() {
    let room = SCRATCH.room("sealed");
    let firsts = first_words(0..MIB << 8);
    for (name, crypt, readable) in [("sealed", "", false), ("plain", ",crypt=off", true)] {
        let Some((job, file)) = written(&room, (name, crypt), &[], UNREADABLE) else { return };
        // Most of the 64 MiB are there.
        let found = found(&file, &firsts);
        assert!(if readable { found > firsts.len() / 2 } else { found == 0 }, "{name}: {found}");
        let used = fs::metadata(&file).unwrap().blocks() * 512;
        assert!(used > MIB << 19, "{used} bytes are there");
        assert_eq!(end(job), (0, String::new()));
    }
}

#[test]
fn what_somebody_wrote_to_the_device_is_not_given_to_the_program() {
    let room = SCRATCH.room("forged");
    for fault in ["thread", "signal"] {
        let name = format!("forged-{fault}");
        let Some((job, path)) = written(&room, (&name, ""), &["--fault", fault], UNREADABLE) else {
            return;
        };
        // Each two neighbours change places, here and there a bit, and the end is gone.
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let (mut one, mut other) = ([0; PAGE], [0; PAGE]);
        for at in (PAGE as u64..24 << 20).step_by(2 * PAGE) {
            file.read_exact_at(&mut one, at).unwrap();
            file.read_exact_at(&mut other, at + PAGE as u64).unwrap();
            file.write_all_at(&other, at).unwrap();
            file.write_all_at(&one, at + PAGE as u64).unwrap();
        }
        file.read_exact_at(&mut one, 25 << 20).unwrap();
        one[99] ^= 1;
        file.write_all_at(&one, 25 << 20).unwrap();
        file.set_len(30 << 20).unwrap();
        let (lost, said) = end(job);
        assert!(lost > 24 << 6, "{lost} pages: {said}");
        let lines: Vec<&str> = said.lines().collect();
        assert!(
            matches!(lines[..], [line] if line.starts_with("overspill: a page cannot be read back")
                && line.contains(path.to_str().unwrap())
                && line.ends_with("is not what was written there (not authentic)")),
            "{said}"
        );
    }
}

/// Also where a device would show it: what is locked, and what is to be in no core dump.
#[test]
fn memory_that_stays_is_on_no_device() {
    let room = SCRATCH.room("locked");
    let (locked, others) = (first_words(MIB << 8..(MIB + 2) << 8), first_words(0..MIB << 8));
    let ways: [(&str, &[&str]); 2] = [("locked", &["2"]), ("undumped", &["2", "undumped"])];
    for (fault, (way, args)) in ["thread", "signal"].into_iter().flat_map(|f| ways.map(|w| (f, w)))
    {
        let (name, more) = (format!("{way}-{fault}"), ["--fault", fault]);
        let written = written(&room, (&name, ",crypt=off"), &more, ("locked.c", args));
        let Some((job, file)) = written else { return };
        assert!(found(&file, &others) > others.len() / 2);
        assert_eq!(found(&file, &locked), 0, "{name}");
        job.signal(Signal::TERM);
        assert_eq!(job.end(), (0, "all ok\n".to_owned(), String::new()));
    }
}
