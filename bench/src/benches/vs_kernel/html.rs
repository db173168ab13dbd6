//! The findings as one page that needs nothing else, for people who have never heard of overspill.

mod chart;

use super::figures;
use super::plot::{self, Who, label, peer};
use crate::measure::failure::Failure;
use crate::measure::host::Machine;
use crate::measure::{ROUNDS_BY_DEFAULT, Spread};
use crate::report::{Row, ratio, short, whole};
use chart::{Chart, Group, microseconds, seconds};
use overspill::base::Bytes;
use std::path::Path;

const STYLE: &str = include_str!("html/style.css");
const MIB: f64 = (1 << 20) as f64;

/// What is said of few rounds.
const QUICK: &str = "<p class=\"note\">This is a quick look: so few rounds do not tell a small \
                     difference from noise.</p>\n";

/// What the page tells besides the rows.
#[derive(Debug)]
pub struct About<'a> {
    /// Where it was measured.
    pub machine: &'a Machine,
    /// The memory that was accessed.
    pub size: Bytes,
    /// How often.
    pub rounds: usize,
    /// The command line that does it again.
    pub command: String,
    /// What it shows, as it was printed.
    pub conclusion: &'a str,
}

/// A column of the table.
type Cell = (&'static str, fn(&Row) -> String);

const CELLS: &[Cell] = &[
    ("time", time),
    ("time: ratio to the kernel", |row| figure(row, figures::RATIO).map_or(String::new(), spread)),
    ("99.9 % of accesses within", |row| {
        figure(row, figures::P999).map_or(String::new(), |f| microseconds(f.median))
    }),
    ("processor time", |row| {
        figure(row, figures::CPU).map_or(String::new(), |f| seconds(f.median))
    }),
    ("processor: ratio to the kernel", |row| {
        figure(row, figures::CPU_RATIO).map_or(String::new(), spread)
    }),
    ("RAM, MiB", |row| mib(row, figures::RAM)),
    ("pages brought in", |row| {
        figure(row, figures::PAGES_IN).map_or(String::new(), |f| whole(f.median))
    }),
    ("to and from disk, MiB", |row| mib(row, figures::DEVICE)),
];

/// Writes the page.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, about: &About<'_>, rows: &[Row]) -> Result<(), Failure> {
    std::fs::write(path, page(about, rows)).map_err(|error| {
        Failure::new(format!(
            "the page cannot be written to '{}': {error}; name another file",
            path.display()
        ))
    })
}

fn page(about: &About<'_>, rows: &[Row]) -> String {
    let About { machine, size, rounds, command, conclusion } = about;
    let title = "The same program, the same RAM: overspill beside the kernel's swap";
    let groups = plot::groups(rows);
    let ratios: String =
        groups.iter().filter_map(|(title, rows)| section(title, rows, ratios(rows))).collect();
    let ratios = if ratios.is_empty() {
        "<p>None of the kernel's ways to swap could be measured here, so there is nothing to \
         compare with; why is told below.</p>"
            .to_owned()
    } else {
        ratios
    };
    let times: String =
        groups.iter().filter_map(|(title, rows)| section(title, rows, times(rows))).collect();
    let tables: String = groups.iter().map(|(title, rows)| table(title, rows)).collect();
    let processor = crate::measure::host::processor()
        .map_or(String::new(), |name| format!(" ({})", escaped(&name)));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{title}</title><style>\n{STYLE}</style></head><body>\n<h1>{title}</h1>\n<p \
         class=\"sub\">overspill {version}; {cpus} processors{processor}, {ram} of RAM, Linux \
         {kernel}; medians of {rounds} round{s}</p>\n{quick}<p>A program that needs more memory \
         than it may use either swaps or dies. Swap is a thing of the kernel: one for the whole \
         machine, set up by its administrator. <b>overspill</b> does the same for one program, \
         without a change to it and without the kernel's swap: what does not fit into a budget of \
         RAM is compressed, and what does not fit then goes to a file.</p>\n{cards}<h2>How long \
         it takes, with the kernel's time as 1</h2>\n<p>A bar is overspill's time divided by the \
         kernel's time for the same work in the same round. <b>Shorter is better; left of the \
         dashed line overspill is faster.</b> A thin dark line spans the lowest and the highest \
         of the rounds.</p>\n{ratios}<h2>The times themselves</h2>\n<p>Shorter is \
         better.</p>\n{times}<h2>What was compared</h2>\n<dl><dt>The kernel</dt><dd>The program \
         by itself, in a memory cgroup that limits its RAM, with one of the kernel's ways to \
         swap: <i>zram</i>, a block device of compressed memory (LZ4); <i>zswap</i>, compressed \
         memory in front of a swap file; a <i>swap file</i> alone.</dd><dt>overspill \
         run</dt><dd>The same unmodified program, started as <code>overspill run --memory \
         …</code>: a thread in it serves its page faults.</dd><dt>overspill run --fault \
         signal</dt><dd>The same, each thread of the program serves its own faults. System calls \
         that are handed a page that is out may fail, so not every program bears \
         it.</dd><dt>overspill as a library</dt><dd>The same accesses, by a program written to \
         use overspill's memory.</dd></dl>\n<p><b>The same RAM.</b> What is compressed takes RAM, \
         too. The kernel's compressed pool lies outside of the cgroup, so it is measured, and \
         overspill gets as its budget what the kernel took in the same round, pool and all, less \
         what overspill needs beside its budget. Peaks of both are in the tables.</p>\n<p><b>The \
         work.</b> Accesses are to {size} of memory; <i>times the RAM</i> says how much more that \
         is than the limit of the cgroup. <i>seq-write</i> writes fresh memory in sequence, \
         <i>seq-read</i> reads it so; <i>rand-read</i> and <i>rand-write</i> access pages at \
         random; <i>zipf-read</i> prefers some pages, as users of a cache do, and one access in \
         twenty writes. <i>Contents 2.5:1</i> means that LZ4 packs what pages hold to two fifths, \
         as it does with the heaps of programs. Real programs: GNU <i>sort</i> with all lines in \
         memory; numpy sorts an array (<i>numpy-sort</i>) and multiplies matrices \
         (<i>numpy-product</i>); <i>redis</i>-server, read at random by redis-benchmark; the C++ \
         compiler of GCC (<i>cxx</i>), which g++ starts, on a source of many templates. What they \
         put out is compared between all runs.</p>\n<h2>All figures</h2>\n<p>Time is of an access \
         (µs), or of a whole program (s; of redis: of the reads). In brackets the lowest and the \
         highest ratio of the rounds. RAM is the peak, the compressed pool \
         included.</p>\n{tables}<h2>What it shows, in \
         words</h2>\n<pre>{conclusion}</pre>\n<h2>How to repeat it</h2>\n<pre>{command}</pre>\n<p \
         class=\"note\">It needs root for the kernel's side; what it changes on the machine it \
         puts back. Compare within one run only: a machine is faster or slower from one minute to \
         the next.</p>\n</body></html>\n",
        version = env!("CARGO_PKG_VERSION"),
        cpus = machine.cpus,
        kernel = escaped(&machine.kernel),
        ram = Bytes(machine.ram_bytes),
        s = if *rounds == 1 { "" } else { "s" },
        quick = if *rounds < ROUNDS_BY_DEFAULT as usize { QUICK } else { "" },
        cards = cards(rows),
        conclusion = escaped(conclusion),
        command = escaped(command),
    )
}

/// The result at a glance: for each peer the median of all ratios, of each way to use overspill.
fn cards(rows: &[Row]) -> String {
    let compared = |name: &&str| {
        rows.iter().any(|row| peer(row) == **name && figure(row, figures::RATIO).is_some())
    };
    let card = |name: &str| {
        let of = |who: Who| -> Vec<f64> {
            let mine = rows.iter().filter(|row| peer(row) == name && Who::of(row) == Some(who));
            mine.filter_map(|row| Some(figure(row, figures::RATIO)?.median)).collect()
        };
        let all: Vec<f64> = Who::OURS.into_iter().flat_map(of).collect();
        let faster = all.iter().filter(|ratio| **ratio < 1.0).count();
        let each: String = Who::OURS
            .into_iter()
            .filter_map(|who| Some((who, of(who))).filter(|(_, ratios)| !ratios.is_empty()))
            .map(|(who, ratios)| {
                format!("<span>{}: {}</span>", who.name(), ratio(Spread::of(ratios).median))
            })
            .collect();
        format!(
            "<div class=\"card\"><span>Against the kernel's {}</span><b>{} of {} \
             faster</b><span>ratio of time, median of the workloads:</span>{each}</div>",
            escaped(name),
            faster,
            all.len()
        )
    };
    let cards: String = plot::PEERS.into_iter().filter(compared).map(card).collect();
    if cards.is_empty() { cards } else { format!("<div class=\"cards\">{cards}</div>\n") }
}

/// A chart with its title and legend, unless there is nothing in it.
fn section(title: &str, rows: &[&Row], chart: Chart) -> Option<String> {
    let whos: Vec<Who> = Who::ALL
        .into_iter()
        .filter(|who| {
            chart
                .groups
                .iter()
                .any(|group| group.bars.iter().any(|(class, _, _)| *class == who.class()))
        })
        .collect();
    if whos.is_empty() || rows.is_empty() {
        return None;
    }
    let legend: String = whos
        .iter()
        .map(|who| format!("<span class=\"{}\"><i></i>{}</span>", who.class(), who.name()))
        .collect();
    Some(format!(
        "<h3>{}</h3><figure><div class=\"legend\">{legend}</div>{}</figure>\n",
        escaped(title),
        chart.drawn()
    ))
}

fn ratios(rows: &[&Row]) -> Chart {
    Chart {
        unit: "overspill's time ÷ the kernel's time",
        format: ratio,
        line: Some((1.0, "as fast as the kernel")),
        groups: bars(rows, figures::RATIO),
    }
}

fn times(rows: &[&Row]) -> Chart {
    if rows.iter().any(|row| figure(row, figures::PER_ACCESS).is_some()) {
        let groups = bars(rows, figures::MICROSECONDS);
        Chart { unit: "microseconds an access", format: short, line: None, groups }
    } else {
        Chart { unit: "seconds", format: short, line: None, groups: bars(rows, figures::ELAPSED) }
    }
}

/// A group a workload, with those that have the figure.
fn bars(rows: &[&Row], name: &str) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let (Some(who), Some(value)) = (Who::of(row), value(row, name)) else { continue };
        let bar = (who.class(), who.name(), value);
        let workload = label(row, "workload");
        match groups.iter_mut().find(|group| group.name == workload) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { name: workload, bars: vec![bar] }),
        }
    }
    groups
}

/// A figure, in the unit of the chart.
fn value(row: &Row, name: &str) -> Option<Spread> {
    if name != figures::MICROSECONDS {
        return figure(row, name);
    }
    let Spread { median, min, max, rounds } = figure(row, figures::PER_ACCESS)?;
    Some(Spread { median: median / 1e3, min: min / 1e3, max: max / 1e3, rounds })
}

fn table(title: &str, rows: &[&Row]) -> String {
    let used: Vec<&Cell> =
        CELLS.iter().filter(|(_, cell)| rows.iter().any(|row| !cell(row).is_empty())).collect();
    let head: String = used.iter().map(|(title, _)| format!("<th>{title}</th>")).collect();
    let mut lines = String::new();
    let mut last = String::new();
    for row in rows {
        let workload = label(row, "workload");
        if workload != last {
            lines += &format!(
                "<tr class=\"of\"><th colspan=\"{}\">{}</th></tr>\n",
                used.len() + 1,
                escaped(&workload)
            );
            last = workload;
        }
        let class = match figure(row, figures::RATIO) {
            Some(ratio) if ratio.median < 1.0 => "faster",
            Some(_) => "slower",
            None => "",
        };
        let cells: String = used
            .iter()
            .enumerate()
            .map(|(at, (_, cell))| {
                format!(
                    "<td{}>{}</td>",
                    if at == 1 { format!(" class=\"{class}\"") } else { String::new() },
                    cell(row)
                )
            })
            .collect();
        let who = Who::of(row);
        lines += &format!(
            "<tr{}><td>{}</td>{cells}</tr>\n",
            if who == Some(Who::Kernel) { " class=\"kernel\"" } else { "" },
            who.map_or("", Who::name),
        );
    }
    format!(
        "<h3>{}</h3><div \
         class=\"wide\"><table><thead><tr><th>who</th>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>\n",
        escaped(title)
    )
}

fn figure(row: &Row, name: &str) -> Option<Spread> {
    row.figures.get(name).copied()
}

fn time(row: &Row) -> String {
    let access = figure(row, figures::PER_ACCESS).map(|f| microseconds(f.median));
    access.or_else(|| Some(seconds(figure(row, figures::ELAPSED)?.median))).unwrap_or_default()
}

fn mib(row: &Row, name: &str) -> String {
    figure(row, name).map_or(String::new(), |f| whole(f.median / MIB))
}

fn spread(figure: Spread) -> String {
    match figure.rounds {
        1 => ratio(figure.median),
        _ => format!(
            "{} <small>({} to {})</small>",
            ratio(figure.median),
            ratio(figure.min),
            ratio(figure.max)
        ),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{machine, sample};
    use serde_json::json;

    fn row(workload: &str, step: &str, figures: &[(&str, f64)]) -> Row {
        let labels = [
            ("workload", json!(workload)),
            ("peer", json!("zram")),
            ("overcommit", json!(4)),
            ("contents", json!(if workload == "sort" { "its own" } else { "2.5:1" })),
            ("threads", json!(1)),
        ];
        Row::new(step, &labels, None, &vec![sample(figures.iter().copied())])
    }

    fn drawn(rows: &[Row]) -> String {
        let (machine, command) =
            (machine(), "sudo overspill-bench vs-kernel --size 64M".to_owned());
        page(
            &About {
                machine: &machine,
                size: Bytes(64 << 20),
                rounds: 1,
                command,
                conclusion: "1 < 2",
            },
            rows,
        )
    }

    #[test]
    fn the_page_needs_nothing_else_and_tells_who_is_faster() {
        let of = |ratio: f64| {
            [(figures::PER_ACCESS, 7000.0), (figures::RATIO, ratio), (figures::CPU, 1.0)]
        };
        let text = drawn(&[
            row("seq-read", "peer", &of(1.0)[..1]),
            row("seq-read", "library", &of(0.5)),
            row("seq-read", "overspill-thread", &of(2.0)),
            row("sort", "overspill-thread", &[(figures::ELAPSED, 3.0), (figures::RATIO, 0.75)]),
            Row::new("floor", &[], None, &vec![sample([(figures::BARE_COPY, 1.0)])]),
        ]);
        for said in [
            "<td class=\"faster\">0.50</td>",
            "<td class=\"slower\">2.00</td>",
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
        let text = drawn(&[row("seq-read", "library", &[(figures::PER_ACCESS, 7000.0)])]);
        assert!(
            text.contains("None of the kernel's ways to swap")
                && text.contains("microseconds an access"),
            "{text}"
        );
    }
}
