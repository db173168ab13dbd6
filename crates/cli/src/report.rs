//! The statistics of a run as text for people, with the names of /proc/vmstat beside it.

use crate::outside::Most;
use crate::rundir::Tree;
use overspill::stats::{Counter, DeviceSnapshot, Snapshot};
use overspill::units::Bytes;
use std::fmt::Write;
use std::time::Duration;

/// Most processes of a tree, and most swap devices, that get a line.
const LINES_MAX: usize = 10;
/// The most pages whose bytes can be counted: a figure may be anything, the file that it is from is
/// another process's.
const PAGES_MAX: u64 = u64::MAX >> overspill::units::PAGE_SHIFT;

/// The whole report of a run in which something was managed, each line ended.
pub fn render(tree: &Tree, elapsed: Duration) -> String {
    let elapsed = duration(elapsed.as_nanos() as u64);
    let total = &tree.total;
    let count = tree.processes.len() as u64 + tree.left_out;
    match tree.processes.as_slice() {
        [process] if count == 1 => {
            let name = printable(&process.name);
            format!("overspill: {name} (pid {}), {elapsed}\n", process.pid)
                + &table(&rows(total, total.get(Counter::BudgetBytes), &tree.unmanaged))
                + &device_lines(&process.devices)
        }
        _ => {
            let mut text = format!(
                "overspill: {} processes, {elapsed}; sums over all of them\n",
                thousands(count)
            );
            text += &table(&rows(total, tree.budget(), &tree.unmanaged));
            text += &device_lines(&total.devices);
            text + &process_lines(tree)
        }
    }
}

/// One line of the table: what it is, the figure, and the counters it comes from.
struct Row {
    label: &'static str,
    value: String,
    source: String,
}

/// The rows of the table: memory, faults and traffic, and what has happened that mostly does not.
fn rows(total: &Snapshot, budget: u64, unmanaged: &Most) -> Vec<Row> {
    let mut rows = memory_rows(total, budget);
    rows.splice(3..3, unmanaged_rows(total, unmanaged));
    rows.extend(fault_rows(total));
    rows.extend(rare_rows(total));
    rows
}

/// A counter by its name, and its figure.
fn raw(total: &Snapshot, counter: Counter) -> String {
    format!("{} {}", counter.name(), total.get(counter))
}

/// A row for a counter of pages.
fn pages(total: &Snapshot, label: &'static str, counter: Counter) -> Row {
    let value = Bytes::from_pages(total.get(counter)).to_string();
    Row { label, value, source: raw(total, counter) }
}

/// How much memory there was, and where pages are at the end.
fn memory_rows(total: &Snapshot, budget: u64) -> Vec<Row> {
    use Counter::*;
    let (value, source) = (Bytes(budget).to_string(), BudgetBytes.name().to_owned());
    let mut rows = vec![Row { label: "budget of the job", value, source }];
    for (label, counter) in [
        ("peak in use", ChargedPeakBytes),
        ("not managed at the end", UnmanagedBytes),
        ("peak managed", ManagedPeakBytes),
        ("metadata", MetadataBytes),
    ] {
        let value = total.bytes(counter).to_string();
        rows.push(Row { label, value, source: raw(total, counter) });
    }
    let (content, stored) =
        (Bytes::from_pages(total.get(CompressedPages)), total.bytes(CompressedBytes));
    let ratio = if stored.0 > 0 {
        format!(" ({:.1}:1)", content.0 as f64 / stored.0 as f64)
    } else {
        String::new()
    };
    let source = format!("{}, {}{ratio}", raw(total, CompressedPages), raw(total, CompressedBytes));
    rows.push(Row { label: "compressed at the end", value: content.to_string(), source });
    rows.push(pages(total, "same-filled at the end", SameFilledPages));
    rows.push(pages(total, "on device at the end", DevicePages));
    rows
}

/// What was not managed at most, and of what kinds that was if it was much.
fn unmanaged_rows(total: &Snapshot, unmanaged: &Most) -> Vec<Row> {
    use Counter::*;
    let row = |label, bytes: u64, source| Row { label, value: Bytes(bytes).to_string(), source };
    let peak = unmanaged.peak_bytes;
    let kinds = [
        ("- shared memory", UnmanagedSharedBytes),
        ("- stacks", UnmanagedStackBytes),
        ("- brk", UnmanagedBrkBytes),
        ("- program and libraries", UnmanagedDataBytes),
        ("- private files", UnmanagedFileBytes),
        ("- code", UnmanagedCodeBytes),
        ("- other", UnmanagedOtherBytes),
        ("- the engine's", UnmanagedEngineBytes),
    ];
    let kinds = kinds.into_iter().filter(|(_, kind)| total.get(*kind) > 0);
    [row("not managed at most", peak, format!("unmanaged.peak_bytes {peak}"))]
        .into_iter()
        .chain(kinds.map(|(label, kind)| row(label, total.get(kind), raw(total, kind))))
        .collect()
}

/// Faults, what they took, and pages on their way.
fn fault_rows(total: &Snapshot) -> Vec<Row> {
    use Counter::*;
    let faults =
        |label, count, counter| Row { label, value: thousands(count), source: raw(total, counter) };
    let minor = total.get(PgFault).saturating_sub(total.get(PgMajFault));
    let mut rows = vec![
        faults("minor faults", minor, PgFault),
        faults("major faults", total.get(PgMajFault), PgMajFault),
        pages(total, "to compressed", ZswpOut),
        pages(total, "from compressed", ZswpIn),
        pages(total, "to device", PswpOut),
        pages(total, "from device", PswpIn),
    ];
    let (p50, p99) = (duration(total.fault_ns_p50), duration(total.fault_ns_p99));
    rows.push(Row {
        label: "time in faults",
        value: duration(total.fault_ns_total),
        source: format!("half within {p50}, 99 % within {p99}"),
    });
    rows
}

/// What is worth a line only when it has happened.
fn rare_rows(total: &Snapshot) -> Vec<Row> {
    use Counter::*;
    let mut rows = Vec::new();
    let [some, full] = [total.pressure.some, total.pressure.full].map(|stall| stall.total_us);
    if some > 0 {
        rows.push(Row {
            label: "waited for memory",
            value: duration(some.saturating_mul(1000)),
            source: format!("psi: some {some} us, full {full} us"),
        });
    }
    for (label, counter) in [
        ("forks", Forks),
        ("budget changed", BudgetChanges),
        ("DMA seen", DmaSeen),
        ("not compressed", CompressRefused),
        ("failed writes", WriteErrors),
        ("failed reads", ReadErrors),
        ("not as written", ChecksumErrors),
        ("failed faults", FaultErrors),
        ("killed: no room", OomKill),
        ("left to the kernel", Unmanaged),
    ] {
        if total.get(counter) > 0 {
            let value =
                if counter == DmaSeen { "yes".to_owned() } else { thousands(total.get(counter)) };
            rows.push(Row { label, value, source: raw(total, counter) });
        }
    }
    rows
}

fn table(rows: &[Row]) -> String {
    let label_width = rows.iter().map(|row| row.label.len()).max().unwrap_or(0);
    let value_width = rows.iter().map(|row| row.value.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Row { label, value, source } in rows {
        writeln!(text, "  {label:<label_width$}  {value:>value_width$}   {source}")
            .expect("strings take everything");
    }
    text
}

/// What there is to be known of a run: what it is, the figure, and the counters it comes from.
pub fn figures(tree: &Tree) -> Vec<[String; 3]> {
    let rows = rows(&tree.total, tree.budget(), &tree.unmanaged);
    rows.into_iter().map(|row| [row.label.to_owned(), row.value, row.source]).collect()
}

/// The kinds that were not managed, as far as they are known, each with its figure.
pub fn unmanaged_kinds(tree: &Tree) -> Vec<[String; 2]> {
    let rows = unmanaged_rows(&tree.total, &tree.unmanaged).into_iter().skip(1);
    rows.map(|row| [row.label.trim_start_matches("- ").to_owned(), row.value]).collect()
}

fn device_lines(devices: &[DeviceSnapshot]) -> String {
    let Some((lines, more)) = devices_told(devices) else { return String::new() };
    columns(&lines, &TEXTS_OF_DEVICE) + &others(more, MORE_DEVICES)
}

/// Columns of text of [`devices_told`] and [`processes_told`], and what is said of those left out.
pub const TEXTS_OF_DEVICE: [usize; 2] = [0, 1];
pub const TEXTS_OF_PROCESS: [usize; 1] = [1];
pub const MORE_DEVICES: &str = "more";
pub const MORE_PROCESSES: &str = "with fewer faults";

/// A line for each swap device, under a line of what the columns are, and how many there are more;
/// nothing if there is none.
pub fn devices_told(devices: &[DeviceSnapshot]) -> Option<(Vec<[String; 9]>, u64)> {
    if devices.is_empty() {
        return None;
    }
    let head =
        ["swap device", "kind", "prio", "used", "size", "read", "written", "errors", "bad slots"];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(devices.iter().take(LINES_MAX).map(|device| {
        let label =
            if device.label.is_empty() { String::new() } else { format!(" ({})", device.label) };
        let moved = |pages: u64, ops: u64| {
            format!("{} in {}", Bytes::from_pages(pages & PAGES_MAX), thousands(ops))
        };
        let errors = [device.read_errors, device.checksum_errors, device.write_errors];
        [
            printable(&(device.path.clone() + &label)),
            device.kind.name().to_owned(),
            device.priority.map_or("-".to_owned(), |priority| priority.to_string()),
            Bytes(device.used_bytes).to_string(),
            Bytes(device.size_bytes).to_string(),
            moved(device.pages_read, device.reads),
            moved(device.pages_written, device.writes),
            thousands(errors.into_iter().fold(0, u64::saturating_add)),
            thousands(device.bad_slots),
        ]
    }));
    Some((lines, devices.len().saturating_sub(LINES_MAX) as u64))
}

fn process_lines(tree: &Tree) -> String {
    let (lines, more) = processes_told(tree);
    columns(&lines, &TEXTS_OF_PROCESS) + &others(more, MORE_PROCESSES)
}

/// A line for each process, as of devices.
pub fn processes_told(tree: &Tree) -> (Vec<[String; 9]>, u64) {
    use Counter::*;
    let head = [
        "pid",
        "name",
        "faults",
        "major",
        "in faults",
        "peak in use",
        "not managed",
        "peak managed",
        "on device",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(tree.processes.iter().take(LINES_MAX).map(|process| {
        [
            process.pid.to_string(),
            printable(&process.name),
            thousands(process.get(PgFault)),
            thousands(process.get(PgMajFault)),
            duration(process.fault_ns_total),
            process.bytes(ChargedPeakBytes).to_string(),
            process.bytes(UnmanagedPeakBytes).to_string(),
            process.bytes(ManagedPeakBytes).to_string(),
            Bytes::from_pages(process.get(DevicePages)).to_string(),
        ]
    }));
    (lines, tree.left_out + tree.processes.len().saturating_sub(LINES_MAX) as u64)
}

pub fn others(count: u64, which: &str) -> String {
    if count == 0 { String::new() } else { format!("  and {} {which}\n", thousands(count)) }
}

/// Lines of columns of one width each. Those of `texts` are text, which begins its column; figures
/// end theirs.
fn columns<const N: usize>(lines: &[[String; N]], texts: &[usize]) -> String {
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        text.push(' ');
        for (i, (cell, width)) in line.iter().zip(widths).enumerate() {
            let padded = if texts.contains(&i) {
                format!(" {cell:<width$}")
            } else {
                format!(" {cell:>width$}")
            };
            text += &padded;
            text.push_str(if i + 1 < N { " " } else { "\n" });
        }
    }
    text
}

/// Text from a file or socket of other programs, made safe for a terminal.
pub fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// 1234567 as 1,234,567.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// A time in the unit that leaves one to three digits before the point.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::stats::{FaultSource, Pressure, Stall, Stats};

    fn process(pid: u32, name: &str, counters: &[(Counter, u64)]) -> Snapshot {
        let stats = Stats::anonymous().unwrap();
        stats.set_name(name);
        counters.iter().for_each(|(counter, n)| stats.set(*counter, *n));
        (0..99).for_each(|_| stats.fault_ns(FaultSource::Zero, 5_000));
        stats.fault_ns(FaultSource::Device, 1 << 20);
        let some = Stall { total_us: 1_500_000, ..Stall::default() };
        stats.set_pressure(&Pressure { some, full: Stall { total_us: 700, ..some } });
        let mut snapshot = stats.snapshot();
        snapshot.pid = pid;
        snapshot
    }

    fn tree(processes: Vec<Snapshot>, left_out: u64) -> Tree {
        let mut total = Snapshot::default();
        processes.iter().for_each(|p| total.merge(p));
        let unmanaged = Most { peak_bytes: 9 << 20, ..Most::default() };
        Tree { processes, total, left_out, begun: true, unmanaged }
    }

    fn typical(pid: u32) -> Snapshot {
        use Counter::*;
        let counters = [
            (BudgetBytes, 256 << 20),
            (ChargedPeakBytes, 255 << 20),
            (ManagedPeakBytes, 5 << 28),
            (UnmanagedStackBytes, 2 << 20),
            (CompressedPages, 25_600),
            (CompressedBytes, 40 << 20),
            (PgFault, 1_234_567),
            (PgMajFault, 4_567),
            (PswpIn, 256),
        ];
        process(pid, "python3", &counters)
    }

    fn line<'a>(text: &'a str, label: &str) -> &'a str {
        text.lines()
            .find(|line| line.trim_start().starts_with(label))
            .unwrap_or_else(|| panic!("{label} in\n{text}"))
    }

    #[test]
    fn one_process_is_one_aligned_table() {
        let text = render(&tree(vec![typical(7)], 0), Duration::from_millis(12_345));
        assert!(text.starts_with("overspill: python3 (pid 7), 12.3 s\n"), "{text}");
        assert!(line(&text, "budget of the job").contains("256 MiB"));
        assert!(
            line(&text, "not managed at most").contains("9 MiB   unmanaged.peak_bytes 9437184")
        );
        assert!(line(&text, "- stacks").contains("2 MiB   unmanaged_stack_bytes 2097152"));
        assert!(line(&text, "peak managed").contains("1.2 GiB   managed_peak_bytes 1342177280"));
        assert!(
            line(&text, "compressed at the end").contains("100 MiB   zswap_stored_pages 25600")
        );
        assert!(line(&text, "compressed at the end").ends_with("(2.5:1)"));
        assert!(line(&text, "minor faults").contains("1,230,000   pgfault 1234567"));
        assert!(line(&text, "from device").contains("1 MiB   pswpin 256"));
        assert!(line(&text, "time in faults").contains("half within 5.1 us"), "{text}");
        assert!(
            line(&text, "waited for memory").ends_with("1.5 s   psi: some 1500000 us, full 700 us"),
            "{text}"
        );
        // The figures end in one column.
        let ends: Vec<_> = text.lines().skip(1).map(|l| l.rfind("   ").unwrap()).collect();
        assert!(ends.windows(2).all(|w| w[0] == w[1]), "{text}");
        for absent in ["- code", "forks", "DMA", "failed", "not compressed", "processes"] {
            assert!(!text.contains(absent), "{absent} in\n{text}");
        }
    }

    #[test]
    fn what_went_wrong_gets_a_line() {
        let text = render(
            &tree(vec![process(1, "x", &[(Counter::WriteErrors, 3), (Counter::DmaSeen, 1)])], 0),
            Duration::ZERO,
        );
        assert!(line(&text, "failed writes").contains("3   swap_write_errors 3"));
        assert!(line(&text, "DMA seen").contains("yes"));
    }

    #[test]
    fn a_tree_is_a_total_and_a_line_for_the_first_ten() {
        let processes: Vec<_> = (100..112).map(typical).collect();
        let text = render(&tree(processes, 5), Duration::from_secs(1));
        assert!(
            text.starts_with("overspill: 17 processes, 1.0 s; sums over all of them\n"),
            "{text}"
        );
        assert!(line(&text, "budget of the job").contains("256 MiB"));
        assert!(line(&text, "major faults").contains("54,804"));
        assert!(line(&text, "100").contains("python3"));
        assert!(text.contains("\n  109  ") && !text.contains("\n  110  "));
        assert!(text.ends_with("  and 7 with fewer faults\n"), "{text}");
    }

    #[test]
    fn every_device_gets_a_line() {
        use overspill::stats::{DeviceFigure, DeviceIdentity, DeviceKind};
        let stats = Stats::anonymous().unwrap();
        for index in 0..12 {
            let (path, label) =
                if index == 1 { ("/dev/sd\x1bb", "fast") } else { ("/var/tmp", "") };
            let kind = if index == 1 { DeviceKind::Block } else { DeviceKind::Directory };
            let priority = (index != 2).then_some(-2 - index as i32);
            let device = DeviceIdentity {
                path: path.as_ref(),
                kind,
                label,
                uuid: None,
                priority,
                pages: 1 << 18,
                id: 0,
            };
            stats.device(index).describe(device);
        }
        let counts = [
            (DeviceFigure::Used, 256),
            (DeviceFigure::PagesWritten, 512),
            (DeviceFigure::Writes, 4000),
        ];
        counts.into_iter().for_each(|(figure, n)| stats.device(1).set(figure, n));
        [DeviceFigure::ReadErrors, DeviceFigure::WriteErrors]
            .iter()
            .for_each(|error| stats.device(1).add(*error, 1));
        stats.device(0).set(DeviceFigure::PagesRead, u64::MAX);
        let text = render(&tree(vec![stats.snapshot()], 0), Duration::ZERO);
        let words = |label| line(&text, label).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words("swap device"),
            "swap device kind prio used size read written errors bad slots"
        );
        assert_eq!(
            words("/dev/sd"),
            "/dev/sd?b (fast) block -3 1 MiB 1 GiB 0 B in 0 2 MiB in 4,000 2 0"
        );
        assert!(text.contains(" directory     -  "), "one that is only read: {text}");
        // In one process each is a device of its own.
        assert_eq!(text.lines().filter(|line| line.contains("/var/tmp")).count(), 9);
        assert!(text.ends_with("  and 2 more\n"), "{text}");
        assert!(!render(&tree(vec![typical(7)], 0), Duration::ZERO).contains("swap device"));
    }

    #[test]
    fn figures_have_human_units() {
        assert_eq!(
            [0, 12, 999, 1000, 1234567].map(thousands),
            ["0", "12", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [999, 1_500, 2_000_000, 61_500_000_000].map(duration),
            ["999 ns", "1.5 us", "2.0 ms", "61.5 s"]
        );
        assert_eq!(printable("a\x1b[31m"), "a?[31m");
    }
}
