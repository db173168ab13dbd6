//! The sentence about a run in which much memory was not managed: how much, whose, what it was, and
//! what helps. It comes at the end; and at once where little of the budget is left for pages, and
//! the program does nothing but bring them in: it may take hours then.

use crate::outside::{LEFT_REASON, Seen};
use crate::report::printable;
use crate::rundir::{RunDir, Tree};
use overspill::stats::{Counter, Snapshot};
use overspill::units::Bytes;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Of what a process had, kinds are named that are at least this part.
const NAMED_PART: u64 = 8;

/// What each kind is called, and what helps.
const KINDS: [(Counter, &str, &str); 8] = [
    (
        Counter::UnmanagedSharedBytes,
        "shared memory",
        "have it use less shared memory, or give a larger --memory",
    ),
    (
        Counter::UnmanagedStackBytes,
        "stacks",
        "have it use fewer threads or less stack, or give a larger --memory",
    ),
    (Counter::UnmanagedBrkBytes, "memory from brk", LARGER),
    (Counter::UnmanagedDataBytes, "data of the program and its libraries", LARGER),
    (Counter::UnmanagedFileBytes, "changed pages of files that are mapped privately", LARGER),
    (Counter::UnmanagedCodeBytes, "memory for code that is made while it runs", LARGER),
    (
        Counter::UnmanagedOtherBytes,
        "memory that it has asked the kernel for directly",
        "have it use malloc or mmap of the C library, or give a larger --memory",
    ),
    (Counter::UnmanagedEngineBytes, "tables of the engine and what it had before", LARGER),
];
const PRELOADED: &str =
    "have it be preloaded (dynamically linked, with LD_PRELOAD), or give a larger --memory";
const LARGER: &str = "give a larger --memory";

/// The sentence at the end; nothing if it was not so much.
pub fn sentence(tree: &Tree) -> Option<String> {
    let most = &tree.unmanaged;
    let (peak, budget) = (Bytes(most.peak_bytes), Bytes(most.budget_bytes));
    let beginning = format!("up to {peak} were not managed, beside a budget of {budget}");
    most.is_much.then(|| with_whose(&beginning, tree))
}

/// Looks whether a job gets on.
#[derive(Default)]
pub struct Progress {
    looked: Option<Instant>,
    /// How long its living processes had been in faults by then, by their numbers.
    in_faults: HashMap<u32, u64>,
    /// Looks in a row at which it did not.
    stuck: u32,
    is_told: bool,
}

impl Progress {
    const EVERY: Duration = Duration::from_secs(1);
    /// After so many the sentence is said.
    const STUCK: u32 = 3;
    /// What part of the time in faults is too much.
    const PART: u128 = 2;

    /// Looks if it is time. The sentence, once, where most of the budget is not managed and the job
    /// does not get on.
    pub fn look(&mut self, run_dir: &RunDir) -> Option<String> {
        let elapsed = self.looked.map_or(Progress::EVERY, |looked| looked.elapsed());
        if self.is_told || elapsed < Progress::EVERY {
            return None;
        }
        self.looked = Some(Instant::now());
        let Some(tree) = run_dir.where_little_is_managed() else {
            (self.in_faults, self.stuck) = (HashMap::new(), 0);
            return None;
        };
        self.note(&tree, elapsed).then(|| {
            let most = &tree.unmanaged;
            let (now, budget) = (Bytes(most.peak_bytes), Bytes(most.budget_bytes));
            let beginning = format!(
                "this will take long, as pages go out and come back most of the time: {now} of \
                 the budget of {budget} are not managed"
            );
            with_whose(&beginning, &tree)
        })
    }

    /// Notes how long processes were in faults; whether that was too long once more.
    fn note(&mut self, tree: &Tree, elapsed: Duration) -> bool {
        let before = std::mem::take(&mut self.in_faults);
        let now = tree.processes.iter().map(|process| (process.pid, process.fault_ns_total));
        self.in_faults = now.collect();
        let longest =
            self.in_faults.iter().filter_map(|(pid, ns)| ns.checked_sub(*before.get(pid)?));
        let is_stuck = u128::from(longest.max().unwrap_or(0)) > elapsed.as_nanos() / Progress::PART;
        self.stuck = if is_stuck { self.stuck + 1 } else { 0 };
        self.is_told = self.stuck >= Progress::STUCK;
        self.is_told
    }
}

/// A sentence that says whose the memory was, what it was, and what helps.
fn with_whose(beginning: &str, tree: &Tree) -> String {
    let most = &tree.unmanaged;
    let inside =
        tree.processes.iter().max_by_key(|process| process.get(Counter::UnmanagedPeakBytes));
    let inside = inside.filter(|process| process.get(Counter::UnmanagedPeakBytes) > 0);
    let peak = inside.map_or(0, |process| process.get(Counter::UnmanagedPeakBytes));
    let (what, help) = match (&most.outside, inside) {
        (Some(seen), _) if seen.peak_bytes >= peak => of_outside(seen),
        (_, Some(process)) => of_process(process, peak),
        _ => ("small processes had it, which are not managed".to_owned(), LARGER),
    };
    let worst = most.outside.as_ref().map_or(peak, |seen| peak.max(seen.peak_bytes));
    let of_several = if worst < most.peak_bytes / 2 { "of several processes " } else { "" };
    format!("{beginning}; {of_several}{what}: {help}")
}

fn of_outside(seen: &Seen) -> (String, &'static str) {
    let (name, pid) = (printable(&seen.name), seen.pid);
    let memory = Bytes(seen.peak_bytes);
    match &seen.reason {
        Some(reason) => (
            format!("'{name}' (pid {pid}), which {reason}, had {memory}"),
            match reason == LEFT_REASON {
                true => "start it without that, or give a larger --memory",
                false => PRELOADED,
            },
        ),
        None => {
            let get = |kind: Counter| seen.kinds.get(kind.name()).copied().unwrap_or(0);
            had(&format!("'{name}' (pid {pid}), which has no engine,"), seen.peak_bytes, get)
        }
    }
}

fn of_process(process: &Snapshot, peak: u64) -> (String, &'static str) {
    let who = format!("'{}' (pid {})", printable(&process.name), process.pid);
    had(&who, peak, |kind| process.get(kind))
}

/// What a process had, the largest kinds named, and what helps with the largest.
fn had(who: &str, memory: u64, get: impl Fn(Counter) -> u64) -> (String, &'static str) {
    let mut kinds: Vec<_> =
        KINDS.iter().map(|(counter, name, help)| (get(*counter), *name, *help)).collect();
    kinds.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
    let help = kinds.first().filter(|(bytes, ..)| *bytes > 0).map_or(LARGER, |(.., help)| help);
    let named = kinds.iter().filter(|(bytes, ..)| *bytes > memory / NAMED_PART);
    let named: Vec<_> = named.map(|(bytes, name, _)| format!("{} {name}", Bytes(*bytes))).collect();
    let memory = Bytes(memory);
    let of = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    (format!("{who} had {memory}{of}"), help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outside::Most;
    use overspill::stats::Stats;

    fn tree(counters: &[(Counter, u64)], outside: Option<Seen>) -> Tree {
        let stats = Stats::anonymous().unwrap();
        stats.set_name("python3");
        counters.iter().for_each(|(counter, n)| stats.set(*counter, *n << 20));
        let mut process = stats.snapshot();
        process.pid = 7;
        let unmanaged =
            Most { budget_bytes: 64 << 20, peak_bytes: 105 << 20, is_much: true, outside };
        Tree { processes: vec![process], unmanaged, ..Tree::default() }
    }

    fn seen(mib: u64, reason: Option<&str>) -> Option<Seen> {
        let kinds = [(Counter::UnmanagedOtherBytes.name(), mib << 20)].into();
        let reason = reason.map(str::to_owned);
        Some(Seen { pid: 9, name: "st\x1bat".into(), peak_bytes: mib << 20, reason, kinds })
    }

    #[test]
    fn it_says_how_much_whose_and_what_helps() {
        use Counter::*;
        let counters = [
            (UnmanagedPeakBytes, 101),
            (UnmanagedSharedBytes, 84),
            (UnmanagedStackBytes, 14),
            (UnmanagedBrkBytes, 1),
        ];
        let said = |outside| sentence(&tree(&counters, outside)).unwrap();
        let of_python = "up to 105 MiB were not managed, beside a budget of 64 MiB; 'python3' (pid \
            7) had 101 MiB (84 MiB shared memory, 14 MiB stacks): have it use less shared memory, \
            or give a larger --memory";
        assert_eq!(said(None), of_python);
        assert_eq!(said(seen(100, Some("is statically linked"))), of_python);
        let of_static = said(seen(102, Some("is statically linked")));
        assert!(
            of_static
                .contains("'st?at' (pid 9), which is statically linked, had 102 MiB: have it be"),
            "{of_static}"
        );
        let direct = said(seen(102, None));
        assert!(
            direct.contains("had 102 MiB (102 MiB memory that it has asked the kernel for"),
            "{direct}"
        );
        let small = sentence(&tree(&[(UnmanagedPeakBytes, 3)], None)).unwrap();
        assert!(
            small.contains("; of several processes 'python3' (pid 7) had 3 MiB: give"),
            "{small}"
        );
        assert!(sentence(&tree(&[], None)).unwrap().contains("small processes had it"));
    }

    #[test]
    fn a_job_does_not_get_on_where_it_is_in_faults_most_of_the_time() {
        let second = Duration::from_secs(1);
        let mut tree = tree(&[], None);
        let mut progress = Progress::default();
        let mut notes = |ms: &[u64]| -> Vec<bool> {
            let mut note = |ms: &u64| {
                tree.processes[0].fault_ns_total += ms * 1_000_000;
                progress.note(&tree, second)
            };
            ms.iter().map(&mut note).collect()
        };
        // The first look has nothing to compare with.
        assert_eq!(notes(&[900, 600, 600, 400]), [false; 4]);
        assert_eq!(notes(&[600, 700, 800]), [false, false, true]);
    }

    #[test]
    fn little_is_not_told() {
        let mut tree = tree(&[(Counter::UnmanagedPeakBytes, 3)], None);
        tree.unmanaged.is_much = false;
        assert_eq!(sentence(&tree), None);
    }
}
