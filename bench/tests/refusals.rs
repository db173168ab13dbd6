//! What benches refuse: a mistake on the command line with status 2, what cannot be measured here
//! with status 1 and one sentence.

mod common;

use common::bench;
use std::time::{Duration, Instant};

/// More than refusals take, and less than a measurement.
const SOON: Duration = Duration::from_secs(10);

/// Bench, options, and what is said of them.
type Refusal = (&'static str, &'static str, &'static str);

#[test]
fn a_mistake_on_the_command_line_is_status_2() {
    const MISTAKES: &[Refusal] = &[
        ("codecs", "--codecs lzo", "'lzo' is no codec"),
        ("codecs", "--codecs zstd:20", "a level of 1 to 19"),
        ("codecs", "--contents x", "heap"),
        ("codecs", "--size much", "much"),
        ("page-fault", "--steps none", "none"),
        ("page-fault", "--threads 0", "0"),
        ("page-fault", "--rounds 0", "0"),
        ("page-fault", "--size much", "much"),
        ("reclaim-storm", "--groups 0", "0"),
        ("reclaim-storm", "--groups 51", "51"),
        ("reclaim-storm", "--messages 0", "0"),
        ("reclaim-storm", "--steps never", "off, timed, wake, default"),
        ("reclaim-storm", "--device ram,latency=soon", "soon"),
        ("swap-r-rand", "--threads 0", "0"),
        ("swap-r-rand", "--memory much", "much"),
        ("swap-r-rand", "--reads few", "few"),
        ("swap-r-rand", "--device ram,nope=1", "nope"),
        ("swap-w-seq", "--steps none", "baseline, cluster-locks, "),
        ("swap-w-seq", "--threads 0", "0"),
        ("swap-w-seq", "--size much", "much"),
        ("swap-w-seq", "--device ram,latency=soon", "soon"),
        ("swapoff", "--steps never", "run-1, run-8, run-32, "),
        ("swapoff", "--size much", "much"),
        ("swapoff", "--rounds 0", "0"),
        ("swapoff", "--load-device ram,latency=soon", "soon"),
        ("job", "--workload sort", "give all, or of these: busy-2, busy-8, "),
        ("vs-kernel", "--workload never", "give all, accesses, programs, or of these: seq-write, "),
        ("vs-kernel", "--peer nothing", "give all, or of these: zram, zswap, file"),
        ("vs-kernel", "--overcommit 0", "0"),
        ("vs-kernel", "--contents 7", "7"),
        ("vs-kernel", "--threads 0", "0"),
        ("vs-kernel", "--size much", "much"),
        ("vs-kernel", "--memory 64M", "<COMMAND>"),
        ("vs-kernel", "--workload sort -- true", "cannot be used with"),
        ("vs-kernel", "--overcommit 2 -- true", "cannot be used with"),
        ("zswap", "--cases none", "none"),
        ("zswap", "--size much", "much"),
        ("zswap", "--device ram,latency=soon", "soon"),
    ];
    for (name, args, says) in MISTAKES {
        let outcome = bench(name, args);
        let told = (outcome.status, outcome.stdout.as_str());
        assert_eq!(told, (2, ""), "{name} {args}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{name} {args}: {}", outcome.stderr);
    }
}

#[test]
fn what_cannot_be_measured_here_is_one_sentence_and_status_1() {
    const REFUSALS: &[Refusal] = &[
        ("codecs", "--size 1K", "there is no page in a --size of 1 KiB: give 4K or more"),
        ("reclaim-storm", "--size 1M", "measure a larger --size"),
        ("swapoff", "--size 1M", "give --size 16 MiB or more"),
        ("swapoff", "--size 1000T", "give a smaller --size"),
        ("swapoff", "--device /dev/null", "name one, or a directory"),
        ("swapoff", "--device /no/such/directory/file", "name another place with --device"),
        ("vs-kernel", "--size 1M", "give --size 32 MiB or more"),
        ("vs-kernel", "--size 1000T", "give a smaller --size"),
        ("vs-kernel", "--dir /no/such/directory/at/all", "name another place"),
        ("working-set", "--size 1000T", "give a smaller --size"),
        ("zswap", "--size 1000T", "a --size of 1000 TiB needs "),
    ];
    for (name, args, says) in REFUSALS {
        let outcome = bench(name, args);
        let told = (outcome.status, outcome.stdout.as_str());
        assert_eq!(told, (1, ""), "{name} {args}: {}", outcome.stderr);
        let said = outcome.stderr.strip_prefix("overspill-bench: ");
        assert!(said.is_some_and(|said| said.contains(says)), "{name}: {}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{name}: {}", outcome.stderr);
    }
}

/// Before the first measurement: afterwards what was found would be lost.
#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let began = Instant::now();
    let unwritable = [
        ("codecs", "--plot", "the drawing"),
        ("vs-kernel", "--plot", "the drawing"),
        ("vs-kernel", "--html", "the page"),
    ];
    for (name, option, what) in unwritable {
        let outcome = bench(name, &format!("{option} /no/such/directory/x"));
        let said = format!(
            "overspill-bench: {what} cannot be written to '/no/such/directory/x': No such file or \
             directory (os error 2); name another file\n"
        );
        let told = (outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str());
        assert_eq!(told, (1, "", said.as_str()), "{name} {option}");
    }
    assert!(began.elapsed() < SOON, "it was measured first: {:?}", began.elapsed());
}
