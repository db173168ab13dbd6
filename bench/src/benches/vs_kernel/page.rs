//! The findings as one page that needs nothing else, for people who have never heard of overspill.

use super::declared::{LADDER, RATIO, WHO, is_access, peer, place, title};
use crate::measure::host::processor;
use crate::measure::{Failure, ROUNDS_BY_DEFAULT, Spread};
use crate::model::findings::Findings;
use crate::model::format::{microseconds, plural, ratio, short};
use crate::model::row::Row;
use crate::render::bars::Bars;
use crate::render::html::{STYLE, Scale, escaped, figure, filled, table};
use crate::render::verdict;
use overspill::units::Bytes;
use std::path::Path;

const PAGE: &str = include_str!("page.html");
const TITLE: &str = "The same program, the same RAM: overspill beside the kernel's swap";

/// What is said of few rounds.
const QUICK: &str = "<p class=\"note\">This is a quick look: so few rounds do not tell a small \
                     difference from noise.</p>\n";
const NO_PEER: &str = "<p>None of the kernel's ways to swap could be measured here, so there is \
                       nothing to compare with; why is told below.</p>\n";

/// What the page tells besides the findings.
#[derive(Debug)]
pub struct About {
    /// The memory that was accessed.
    pub size: Bytes,
    /// How often.
    pub rounds: usize,
    /// The command line that does it again.
    pub command: String,
}

/// Writes the page.
pub fn write(path: &Path, about: &About, findings: &Findings) -> Result<(), Failure> {
    std::fs::write(path, page(about, findings)).map_err(|error| {
        Failure::new(format!(
            "the page cannot be written to '{}': {error}; name another file",
            path.display()
        ))
    })
}

fn page(about: &About, findings: &Findings) -> String {
    let About { size, rounds, command } = about;
    let machine = &findings.machine;
    let of_kind = processor().map_or(String::new(), |name| format!(" ({name})"));
    let machine = format!(
        "{}{of_kind}, {} of RAM, Linux {}",
        plural(machine.cpus as u64, "processor"),
        Bytes(machine.ram_bytes),
        machine.kernel
    );
    let groups = groups(&findings.rows);
    let of_all = |part: fn(&str, &[&Row]) -> String| -> String {
        groups.iter().map(|(title, rows)| part(title, rows)).collect()
    };
    let ratios = of_all(ratios);
    filled(
        PAGE,
        &[
            ("title", TITLE.to_owned()),
            ("style", STYLE.to_owned()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("machine", escaped(&machine)),
            ("rounds", plural(*rounds as u64, "round")),
            ("quick", if *rounds < ROUNDS_BY_DEFAULT as usize { QUICK } else { "" }.to_owned()),
            ("cards", cards(&findings.rows)),
            ("ratios", if ratios.is_empty() { NO_PEER.to_owned() } else { ratios }),
            ("times", of_all(times)),
            ("size", size.to_string()),
            ("tables", of_all(all_figures)),
            ("verdicts", escaped(&verdict::text(findings))),
            ("command", escaped(command)),
        ],
    )
}

/// Rows that belong together, and what they are about.
fn groups(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut of: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        let Some(title) = title(row) else { continue };
        match of.iter_mut().find(|(other, _)| *other == title) {
            Some((_, rows)) => rows.push(row),
            None => of.push((title, vec![row])),
        }
    }
    of
}

/// The result at a glance: for each peer the median of all ratios, of each way to use overspill.
fn cards(rows: &[Row]) -> String {
    let mut peers: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| row.figures.contains_key(RATIO)) {
        if !peers.contains(&peer(row)) {
            peers.push(peer(row));
        }
    }
    let cards: String = peers.iter().map(|peer| card(peer, rows)).collect();
    if cards.is_empty() { cards } else { format!("<div class=\"cards\">{cards}</div>\n") }
}

fn card(name: &str, rows: &[Row]) -> String {
    let of = |step: &str| -> Vec<f64> {
        let mine = rows.iter().filter(|row| peer(row) == name && row.step == step);
        mine.filter_map(|row| Some(row.get(RATIO)?.median)).collect()
    };
    let all: Vec<f64> = WHO.iter().flat_map(|(step, ..)| of(step)).collect();
    let faster = all.iter().filter(|ratio| **ratio < 1.0).count();
    let each = |(step, _, who): &(&str, &str, &str)| {
        let ratios = of(step);
        let median = (!ratios.is_empty()).then(|| Spread::of(ratios).median)?;
        Some(format!("<span>{who}: {}</span>", ratio(median)))
    };
    let each: String = WHO.iter().filter_map(each).collect();
    format!(
        "<div class=\"card\"><span>Against the kernel's {}</span><b>{faster} of {} \
         faster</b><span>ratio of time, median of the workloads:</span>{each}</div>",
        escaped(name),
        all.len()
    )
}

/// The class of who did it, for styles.
fn class(name: &str) -> &'static str {
    WHO.iter().find(|(.., who)| *who == name).map_or("", |(_, class, _)| class)
}

fn ratios(title: &str, rows: &[&Row]) -> String {
    let line = Some((1.0, "as fast as the kernel"));
    let unit = "overspill's time ÷ the kernel's time";
    let bars = Bars::of(rows.iter().copied(), RATIO, place);
    figure(title, &bars, &Scale { unit, format: ratio, line, class })
}

fn times(title: &str, rows: &[&Row]) -> String {
    let (name, unit, format): (_, _, fn(f64) -> String) = if rows.iter().any(|row| is_access(row)) {
        ("ns_per_access", "microseconds an access", microseconds)
    } else {
        ("elapsed_s", "seconds", short)
    };
    let bars = Bars::of(rows.iter().copied(), name, place);
    figure(title, &bars, &Scale { unit, format, line: None, class })
}

/// All that is printed of the rows too.
fn all_figures(title: &str, rows: &[&Row]) -> String {
    let class = |row: &Row| match row.get(RATIO).map(|ratio| ratio.median < 1.0) {
        Some(true) => "faster",
        Some(false) => "slower",
        None if row.step == "peer" => "kernel",
        None => "",
    };
    let columns: Vec<_> =
        LADDER.tables.iter().take(2).flat_map(|table| table.columns).copied().collect();
    table(title, &["workload"], &columns, rows, class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::row;
    use serde_json::json;

    fn of(workload: &str, step: &str, figures: &[(&str, f64)]) -> Row {
        let labels = [
            ("workload", json!(workload)),
            ("peer", json!("zram")),
            ("overcommit", json!(4)),
            ("contents", json!(if workload == "sort" { "its own" } else { "2.5:1" })),
            ("threads", json!(1)),
        ];
        let figures: Vec<(&str, [f64; 1])> =
            figures.iter().map(|(name, value)| (*name, [*value])).collect();
        let figures: Vec<(&str, &[f64])> =
            figures.iter().map(|(name, value)| (*name, &value[..])).collect();
        row(step, &labels, &figures)
    }

    fn drawn(rows: Vec<Row>) -> String {
        let command = "sudo overspill-bench vs-kernel --size 64M".to_owned();
        let about = About { size: Bytes(64 << 20), rounds: 1, command };
        let mut findings = Findings::new(&LADDER, json!({}), rows);
        findings.notes.push("1 < 2".to_owned());
        page(&about, &findings)
    }

    #[test]
    fn the_page_needs_nothing_else_and_tells_who_is_faster() {
        let all = |ratio: f64| [("ns_per_access", 7000.0), (RATIO, ratio), ("cpu_s", 1.0)];
        let text = drawn(vec![
            of("seq-read", "peer", &all(1.0)[..1]),
            of("seq-read", "library", &all(0.5)),
            of("seq-read", "overspill-thread", &all(2.0)),
            of("sort", "overspill-thread", &[("elapsed_s", 3.0), (RATIO, 0.75)]),
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
    }

    #[test]
    fn without_a_peer_there_are_times_and_no_ratios() {
        let text = drawn(vec![of("seq-read", "library", &[("ns_per_access", 7000.0)])]);
        assert!(text.contains("None of the kernel's ways to swap"), "{text}");
        assert!(text.contains("microseconds an access"), "{text}");
    }
}
