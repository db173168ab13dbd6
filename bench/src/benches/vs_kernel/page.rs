//! The findings as one page that needs nothing else, for people who have never heard of overspill.

use super::declared::{LADDER, WHO, is_access, peer, place, title};
use crate::measure::host::processor;
use crate::measure::{Failure, ROUNDS_BY_DEFAULT, Spread};
use crate::model::*;
use crate::render::bars::Bars;
use crate::render::html::{self, STYLE, Scale, chart, table};
use crate::render::{verdict, write_file};
use overspill::units::Bytes;
use serde_json::{Value, json};
use std::path::Path;

const PAGE: &str = include_str!("page.html");
const TITLE: &str = "The same program, the same RAM: overspill beside the kernel's swap";

/// What the page tells besides the findings.
#[derive(Debug)]
pub struct About {
    pub size: Bytes,
    pub rounds: usize,
    /// The command line that does it again.
    pub command: String,
}

pub fn write(path: &Path, about: &About, findings: &Findings) -> Result<(), Failure> {
    write_file("page", path, &page(about, findings)?)
}

fn page(about: &About, findings: &Findings) -> Result<String, Failure> {
    let About { size, rounds, command } = about;
    let machine = &findings.machine;
    let of_kind = processor().map_or(String::new(), |name| format!(" ({name})"));
    let machine = format!(
        "{}{of_kind}, {} of RAM, Linux {}",
        plural(machine.cpus as u64, "processor"),
        Bytes(machine.ram_bytes),
        machine.kernel
    );
    let groups = grouped(&findings.rows, title);
    let all = |part: fn(&str, &[&Row]) -> Option<Value>| -> Vec<Value> {
        groups.iter().filter_map(|(title, rows)| part(title, rows)).collect()
    };
    let values = json!({
        "title": TITLE,
        "style": STYLE,
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "rounds": plural(*rounds as u64, "round"),
        "quick": *rounds < ROUNDS_BY_DEFAULT as usize,
        "cards": cards(&findings.rows),
        "ratios": all(ratios),
        "times": all(times),
        "size": size.to_string(),
        "tables": all(all_figures),
        "verdicts": verdict::text(findings),
        "command": command,
    });
    html::page(PAGE, &values)
}

/// The result at a glance: for each peer the median of all ratios, of each way to use overspill.
fn cards(rows: &[Row]) -> Vec<Value> {
    let compared = rows.iter().filter(|row| row.figures.contains_key("ratio"));
    let groups = grouped(compared, |row| Some(peer(row)));
    groups.iter().map(|(peer, rows)| card(peer, rows)).collect()
}

fn card(peer: &str, rows: &[&Row]) -> Value {
    let of = |step: &str| -> Vec<f64> {
        let mine = rows.iter().filter(|row| row.step == step);
        mine.filter_map(|row| Some(row.get("ratio")?.median)).collect()
    };
    let all: Vec<f64> = WHO.iter().flat_map(|(step, ..)| of(step)).collect();
    let each = |(step, _, who): &(&str, &str, &str)| {
        let ratios = Some(of(step)).filter(|ratios| !ratios.is_empty())?;
        Some(format!("{who}: {}", ratio(Spread::of(ratios).median)))
    };
    let each: Vec<String> = WHO.iter().filter_map(each).collect();
    let faster = all.iter().filter(|ratio| **ratio < 1.0).count();
    json!({ "peer": peer, "faster": faster, "all": all.len(), "each": each })
}

/// The class of who did it, for styles.
fn class(name: &str) -> &'static str {
    WHO.iter().find(|(.., who)| *who == name).map_or("", |(_, class, _)| class)
}

fn ratios(title: &str, rows: &[&Row]) -> Option<Value> {
    let line = Some((1.0, "as fast as the kernel"));
    let unit = "overspill's time ÷ the kernel's time";
    let bars = Bars::of(rows.iter().copied(), "ratio", place);
    chart(title, &bars, &Scale { unit, format: ratio, line, class })
}

fn times(title: &str, rows: &[&Row]) -> Option<Value> {
    let (figure, unit, format): (_, _, Format) = if rows.iter().any(|row| is_access(row)) {
        ("ns_per_access", "microseconds an access", microseconds)
    } else {
        ("elapsed_s", "seconds", short)
    };
    let bars = Bars::of(rows.iter().copied(), figure, place);
    chart(title, &bars, &Scale { unit, format, line: None, class })
}

/// All that is printed of the rows too.
fn all_figures(title: &str, rows: &[&Row]) -> Option<Value> {
    let class = |row: &Row| match row.get("ratio").map(|ratio| ratio.median < 1.0) {
        Some(true) => "faster",
        Some(false) => "slower",
        None if row.step == "peer" => "kernel",
        None => "",
    };
    let columns: Vec<_> =
        LADDER.tables.iter().take(2).flat_map(|table| table.columns).copied().collect();
    Some(table(title, &["workload"], &columns, rows, class))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::row;

    #[test]
    fn the_page_needs_nothing_else_and_tells_who_is_faster() {
        let of = |workload: &str, contents: &str, step: &str, time: &str, ratio: &[f64]| {
            let labels = [
                ("workload", json!(workload)),
                ("peer", json!("zram")),
                ("overcommit", json!(4)),
                ("contents", json!(contents)),
                ("threads", json!(1)),
            ];
            row(step, &labels, &[(time, &[7000.0]), ("ratio", ratio)])
        };
        let drawn = |rows: Vec<Row>| {
            let command = "sudo overspill-bench vs-kernel --size 64M".to_owned();
            let about = About { size: Bytes(64 << 20), rounds: 1, command };
            let mut findings = Findings::new(&LADDER, json!({}), rows);
            findings.notes.push("1 < 2".to_owned());
            page(&about, &findings).unwrap()
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
        let alone = of("seq-read", "2.5:1", "library", "ns_per_access", &[]);
        let text = drawn(vec![alone]);
        assert!(text.contains("None of the kernel's ways to swap"), "{text}");
        assert!(text.contains("microseconds an access"), "{text}");
    }
}
