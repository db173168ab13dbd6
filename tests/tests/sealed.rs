//! Swap devices that somebody else reads and writes while a program runs.

use overspill_tests::Scratch;
use overspill_tests::job::Job;
use overspill_tests::scratch::Room;
use rustix::process::Signal;
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

const PAGE: usize = 4096;
const MIB: u64 = 64;

/// `unreadable.c` has written 64 MiB, of which most are in a file, and is about to read them.
fn written(room: &Room, name: &str, more: &[&str], crypt: &str) -> Option<(Job, PathBuf)> {
    let file = room.path.join(name);
    File::create(&file).unwrap();
    let device = format!("{}:256M{crypt}", file.to_str().unwrap());
    let options = ["--memory", "16M", "--set", "compressed=0", "--swap", &device];
    let options = [&options, more].concat();
    let job = Job::program(&SCRATCH, name, &options, "unreadable.c", &[&MIB.to_string(), "wait"])?;
    Some((job, file))
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
    // The first words of pages that do not compress, and of those that do.
    let firsts: HashSet<u64> =
        (0..MIB << 8).map(mix).filter(|seed| seed & 3 < 2).map(mix).collect();
    for (name, crypt, readable) in [("sealed", "", false), ("plain", ",crypt=off", true)] {
        let Some((job, file)) = written(&room, name, &[], crypt) else { return };
        let bytes = fs::read(&file).unwrap();
        let is_used = |page: &&[u8]| page.iter().any(|byte| *byte != 0);
        let used = bytes[PAGE..].chunks_exact(PAGE).filter(is_used).count();
        assert!(used as u64 > MIB << 6, "only {used} pages are there");
        let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let found = words.filter(|word| firsts.contains(word)).count();
        assert_eq!(found > used / 4, readable, "{name}: {found} pages of {used}");
        assert!(readable || found == 0, "{name}: {found} pages");
        assert_eq!(end(job), (0, String::new()));
    }
}

#[test]
fn what_somebody_wrote_to_the_device_is_not_given_to_the_program() {
    let room = SCRATCH.room("forged");
    for fault in ["thread", "signal"] {
        let name = format!("forged-{fault}");
        let Some((job, path)) = written(&room, &name, &["--fault", fault], "") else { return };
        // Each two neighbours change places, here and there a bit, and the end is gone.
        let file = File::options().read(true).write(true).open(&path).unwrap();
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
