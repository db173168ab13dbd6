//! The sentence at the end of a run in which much memory was not managed: how much, whose, what it
//! was, and what helps.

use crate::outside::Seen;
use crate::report::printable;
use crate::rundir::Tree;
use overspill::stats::{Counter, Snapshot};
use overspill::units::Bytes;

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
const LARGER: &str = "give a larger --memory";

/// The sentence; nothing if it was not so much.
pub fn sentence(tree: &Tree) -> Option<String> {
    let most = &tree.unmanaged;
    if !most.is_much {
        return None;
    }
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
    let (peak, budget) = (Bytes(most.peak_bytes), Bytes(most.budget_bytes));
    Some(format!(
        "up to {peak} were not managed, beside a budget of {budget}; {of_several}{what}: {help}"
    ))
}

fn of_outside(seen: &Seen) -> (String, &'static str) {
    let (name, pid) = (printable(&seen.name), seen.pid);
    let memory = Bytes(seen.peak_bytes);
    match &seen.reason {
        Some(reason) => (
            format!("'{name}' (pid {pid}), which {reason}, had {memory}"),
            "have it be preloaded (dynamically linked, with LD_PRELOAD), or give a larger --memory",
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
    fn little_is_not_told() {
        let mut tree = tree(&[(Counter::UnmanagedPeakBytes, 3)], None);
        tree.unmanaged.is_much = false;
        assert_eq!(sentence(&tree), None);
    }
}
