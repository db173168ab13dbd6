//! The findings as one page that needs nothing else, for people who have never heard of overspill.

use super::declared::{peer, title};
use crate::measure::*;
use crate::model::*;
use crate::render::charts::charts;
use crate::render::html::{self, STYLE, table};
use crate::render::{OutFile, verdict};
use overspill::units::Bytes;
use serde_json::{Value, json};

const PAGE: &str = include_str!("page.html");
const TITLE: &str = "The same program, the same RAM: overspill beside the kernel's swap";

/// Writes the page; `command` is the command line that does it again.
pub fn write(file: OutFile, command: &str, findings: &Findings) -> Result<(), Failure> {
    file.write(&page(command, findings)?)
}

fn page(command: &str, findings: &Findings) -> Result<String, Failure> {
    let Findings { ladder, machine, settings, rows, .. } = findings;
    let number = |name: &str| settings[name].as_u64().unwrap_or(0);
    let of_kind = host::processor().map_or(String::new(), |name| format!(" ({name})"));
    let machine = format!(
        "{}{of_kind}, {} of RAM, Linux {}",
        plural(machine.cpus as u64, "processor"),
        Bytes(machine.ram_bytes),
        machine.kernel
    );
    let groups = grouped(rows, |row| title(row));
    let tables: Vec<Value> =
        groups.iter().map(|(title, rows)| all_figures(ladder, title, rows)).collect();
    let values = json!({
        "title": TITLE,
        "style": STYLE,
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "rounds": plural(number("rounds"), "round"),
        "quick": number("rounds") < ROUNDS_BY_DEFAULT.into(),
        "cards": cards(ladder, rows),
        "charts": charts(findings),
        "size": Bytes(number("size_bytes")).to_string(),
        "own": settings["command"].is_array(),
        "memory": Bytes(number("memory_bytes")).to_string(),
        "tables": tables,
        "verdicts": verdict::text(findings),
        "command": command,
    });
    html::page(PAGE, &values)
}

/// The result at a glance: for each peer the median of all ratios, of each way to use overspill.
fn cards(ladder: &Ladder, rows: &[Row]) -> Vec<Value> {
    let compared = rows.iter().filter(|row| row.figures.contains_key("ratio"));
    let groups = grouped(compared, |row| Some(peer(row)));
    groups.iter().map(|(peer, rows)| card(ladder, peer, rows)).collect()
}

fn card(ladder: &Ladder, peer: &str, rows: &[&Row]) -> Value {
    let of = |step: &str| -> Vec<f64> {
        let mine = rows.iter().filter(|row| row.step == step);
        mine.filter_map(|row| Some(row.get("ratio")?.median)).collect()
    };
    let all: Vec<f64> = ladder.called.iter().flat_map(|(step, _)| of(step)).collect();
    let each = |(step, who): &(&str, &str)| {
        let ratios = Some(of(step)).filter(|ratios| !ratios.is_empty())?;
        Some(format!("{who}: {}", ratio(Spread::of(ratios).median)))
    };
    let each: Vec<String> = ladder.called.iter().filter_map(each).collect();
    let faster = all.iter().filter(|ratio| **ratio < 1.0).count();
    json!({ "peer": peer, "faster": faster, "all": all.len(), "each": each })
}

/// All that is printed of the rows too.
fn all_figures(ladder: &Ladder, title: &str, rows: &[&Row]) -> Value {
    let class = |row: &Row| match row.get("ratio").map(|ratio| ratio.median < 1.0) {
        Some(true) => "faster",
        Some(false) => "slower",
        None if row.step == "peer" => "kernel",
        None => "",
    };
    let columns: Vec<_> =
        ladder.tables.iter().take(2).flat_map(|table| table.columns).copied().collect();
    table(title, &["workload"], &columns, rows, class)
}

#[cfg(test)]
mod tests {
    use super::super::declared::LADDER;
    use super::*;
    use crate::fixture::{beside_zram, row};

    #[test]
    fn the_page_needs_nothing_else_and_tells_who_is_faster() {
        let of = |workload: &str, contents: &str, step: &str, time: &str, ratio: &[f64]| {
            row(step, &beside_zram(workload, contents), &[(time, &[7000.0]), ("ratio", ratio)])
        };
        let drawn = |rows: Vec<Row>| {
            let settings = json!({ "size_bytes": 64 << 20, "rounds": 1 });
            let mut findings = Findings::new(&LADDER, settings, rows);
            findings.notes.push("1 < 2".to_owned());
            page("sudo overspill-bench vs-kernel --size 64M", &findings).unwrap()
        };
        let text = drawn(vec![
            of("seq-read", "2.5:1", "peer", "ns_per_access", &[]),
            of("seq-read", "2.5:1", "library", "ns_per_access", &[0.5]),
            of("seq-read", "2.5:1", "overspill-thread", "ns_per_access", &[2.0]),
            of("sort", "its own", "overspill-thread", "elapsed_s", &[0.75]),
            row("floor", &[], &[("bare_copy_fault_ns", &[1.0])]),
        ]);
        for said in [
            "<tr class=\"faster\"><td>seq-read</td><td>library</td>",
            "<tr class=\"slower\"><td>seq-read</td><td>overspill-thread</td>",
            "<tr class=\"kernel\"><td>seq-read</td><td>peer</td>",
            "2 of 3 faster",
            "Real programs",
            "1 &lt; 2",
            "to 64 MiB of memory",
            "microseconds an access",
            "<pre>sudo overspill-bench vs-kernel --size 64M</pre>",
            "prefers-color-scheme: dark",
            "Shorter is better",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        for elsewhere in ["http", "<script", "src=", "@import", "url("] {
            assert!(!text.contains(elsewhere), "it loads nothing: {elsewhere}");
        }
        let labels =
            [("workload", json!("sort")), ("peer", json!("file")), ("memory", json!("9 MiB"))];
        let figures: [(&str, &[f64]); 2] = [("elapsed_s", &[7.0]), ("ratio", &[0.5])];
        let rows = vec![row("overspill-signal", &labels, &figures)];
        let settings =
            json!({ "command": ["sort", "x"], "memory_bytes": 9 << 20, "size_bytes": 1 << 25 });
        let own = page("vs-kernel -- sort x", &Findings::new(&LADDER, settings, rows)).unwrap();
        for said in
            ["sort, against the kernel&#x27;s swap file: 9 MiB of RAM", "takes 32 MiB by itself"]
        {
            assert!(own.contains(said), "{said}: {own}");
        }
        let alone = of("seq-read", "2.5:1", "library", "ns_per_access", &[]);
        let text = drawn(vec![alone]);
        assert!(text.contains("None of the kernel's ways to swap"), "{text}");
        assert!(text.contains("microseconds an access"), "{text}");
    }
}
