//! A run as one page that needs nothing else: what ran, how long it takes with other budgets as
//! pictures ([`chart`]), where the time went, and what there is to be known of memory, processes
//! and swap devices.

mod chart;

use super::report::{Point, Report};
use crate::ran::Ran;
use crate::report::{
    MORE_DEVICES, MORE_PROCESSES, TEXTS_OF_DEVICE, TEXTS_OF_PROCESS, devices_told, duration,
    figures, others, processes_told, thousands, unmanaged_kinds,
};
use crate::rundir::Tree;
use crate::unmanaged;
use chart::{Chart, line};
use overspill::stats::FaultSource;
use overspill::units::Bytes;

const PAGE: &str = include_str!("page.html");

const TIME: Chart<'_> = Chart {
    title: "Time",
    unit: "how long it takes",
    curves: &[
        ("same", "as it ran", |point| point.elapsed_s),
        ("denser", "with a denser codec (Zstandard)", |point| point.denser_s),
        ("faster", "with swap devices twice as fast", |point| point.faster_s),
    ],
    format: seconds,
};
const PAGES: Chart<'_> = Chart {
    title: "Pages that come back",
    unit: "pages of 4 KiB that leave memory and come back",
    curves: &[
        ("pages", "all of them", |point: &Point| point.refaults as f64),
        ("same", "those that are read from swap devices", |point| point.device as f64),
    ],
    format: |pages| thousands(pages as u64),
};

/// What faults of each source are called, in the order of the table.
const FAULTS: [(FaultSource, &str); 5] = [
    (FaultSource::Zero, "faults on new pages"),
    (FaultSource::Cache, "faults on pages that had just left"),
    (FaultSource::Compressed, "faults on compressed pages"),
    (FaultSource::Device, "faults on pages of swap devices"),
    (FaultSource::Place, "faults on pages that were there"),
];

/// The page of a run, with what it tells of other budgets if anything was managed.
pub fn page(ran: &Ran, report: Option<&Report>, tree: &Tree) -> String {
    let (heading, answer) = match report {
        Some(report) => ("How much memory does it need?", report.answer()),
        None => ("Nothing of it was managed", ran.sentence.clone()),
    };
    let known = report.filter(|report| !report.at_most.is_empty());
    let sections = [
        known.map(budgets),
        report.map(|report| times(ran, report, tree)),
        Some(not_managed(tree)),
        report.map(|_| processes(tree)),
        report.map(|_| devices(tree)),
        report.map(|_| statistics(tree)),
        known.map(how_known),
    ];
    [
        ("{title}", escaped(&format!("overspill: {}", ran.command.join(" ")))),
        ("{heading}", heading.to_owned()),
        ("{version}", env!("CARGO_PKG_VERSION").to_owned()),
        ("{answer}", escaped(&sentence(&answer))),
        ("{cards}", cards(ran, report, tree)),
        ("{sections}", sections.into_iter().flatten().collect()),
        // Last: it may hold anything.
        ("{command}", escaped(&shell_line(&ran.command))),
    ]
    .into_iter()
    .fold(PAGE.to_owned(), |page, (name, value)| page.replacen(name, &value, 1))
}

fn escaped(text: &str) -> String {
    let special = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        // So that no name of the page is in a value.
        '{' => "&#123;".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(special).collect()
}

/// Words that begin with a capital letter.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    first + letters.as_str()
}

/// A command's words as a shell takes them.
fn shell_line(words: &[String]) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn seconds(seconds: f64) -> String {
    if seconds > 0.0 { duration((seconds * 1e9) as u64) } else { "0 s".to_owned() }
}

/// The figures at a glance.
fn cards(ran: &Ran, report: Option<&Report>, tree: &Tree) -> String {
    let count = tree.processes.len() as u64 + tree.left_out;
    let most = report.map(|report| ("had at most", Bytes(report.most_bytes).to_string()));
    let cards = [
        Some(("ran for", seconds(ran.elapsed_s))),
        Some(("exit status", ran.status.to_string())),
        Some(("budget of the job", Bytes(ran.budget_bytes).to_string())),
        most,
        Some(("most not managed", Bytes(tree.unmanaged.peak_bytes).to_string())),
        Some(("managed processes", thousands(count))),
    ];
    let card =
        |(name, value): (&str, String)| format!("<div><b>{value}</b><span>{name}</span></div>\n");
    let cards: String = cards.into_iter().flatten().map(card).collect();
    format!("<div class=\"cards\">\n{cards}</div>\n")
}

/// A table whose first line is its heading. Columns of `texts` are text.
fn table<const N: usize>(lines: &[[String; N]], texts: &[usize]) -> String {
    let mut text = "<div class=\"wide\"><table>\n".to_owned();
    for (at, cells) in lines.iter().enumerate() {
        let tag = if at == 0 { "th" } else { "td" };
        let cell = |(at, cell): (usize, &String)| match texts.contains(&at) {
            true => format!("<{tag} class=\"text\">{}</{tag}>", escaped(cell)),
            false => format!("<{tag}>{}</{tag}>", escaped(cell)),
        };
        let cells: String = cells.iter().enumerate().map(cell).collect();
        line(&mut text, &format!("<tr>{cells}</tr>"));
    }
    text + "</table></div>\n"
}

/// How long it takes with other budgets: pictures, and a table.
fn budgets(report: &Report) -> String {
    let mut rows = String::new();
    for (at, (cells, marks)) in report.marked_rows().into_iter().enumerate() {
        let tag = if at == 0 { "th" } else { "td" };
        let class = if marks.is_empty() { "" } else { " class=\"marked\"" };
        let [budget, rest @ ..] = cells;
        let rest: String = rest.iter().map(|cell| format!("<{tag}>{cell}</{tag}>")).collect();
        // In a narrow window they stand below the budget, in short.
        let short = marks.replace("at most ", "+").replace(" more", "").replace("the ", "");
        line(
            &mut rows,
            &format!(
                "<tr{class}><{tag}>{budget}<small>{short}</small></{tag}>{rest}<{tag} \
                 class=\"text wrap marks\">{marks}</{tag}></tr>"
            ),
        );
    }
    format!(
        "<h2>With other budgets</h2>\n<p>Dashed lines are the <i>knee</i>, from where on more \
         memory gains little, and the least budgets with which it takes at most 5, 10 and 25 % \
         more time than if nothing leaves memory. The curves begin with the budget of the \
         run.</p>\n{}{}<h3>The same as a table</h3>\n\
         <div class=\"wide\"><table>\n{rows}</table></div>\n<p class=\"note\"><i>Refaults</i> are \
         pages that left memory and came back, <i>of devices</i> those of them that had to be \
         read. <i>More</i> is how much longer it takes than if nothing leaves. <i>Denser</i> is \
         the time with Zstandard in place of LZ4, <i>faster</i> that with swap devices twice as \
         fast.</p>\n",
        TIME.draw(report),
        PAGES.draw(report)
    )
}

/// What the time of the run went to.
fn times(ran: &Ran, report: &Report, tree: &Tree) -> String {
    let total = &tree.total;
    let mut rows = vec![
        ("all", "from its start to its end", String::new(), ran.elapsed_s),
        ("all", "the same if nothing left memory (estimated)", String::new(), report.fastest_s),
        ("all", "processor time of the program", String::new(), ran.cpu_s),
    ];
    for (source, name) in FAULTS {
        let times = total.latency.of(source);
        if times.count() > 0 {
            rows.push(("", name, thousands(times.count()), times.total_ns() as f64 / 1e9));
        }
    }
    let waited = total.pressure.some.total_us as f64 / 1e6;
    rows.push(("", "at least one thread waited for memory", String::new(), waited));
    let longest = rows.iter().map(|(.., time)| *time).fold(1e-9, f64::max);
    let bar = |time: f64| match time > 0.0 {
        true => format!("<i style=\"width:{:.1}%\"></i>", 100.0 * time / longest),
        false => String::new(),
    };
    let row = |(class, name, count, time): &(&str, &str, String, f64)| {
        format!(
            "<tr class=\"{class}\"><td class=\"text wrap\">{name}</td><td>{count}</td><td>{}</td>\
             <td class=\"bar\">{}</td></tr>\n",
            seconds(*time),
            bar(*time)
        )
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<h2>Where the time went</h2>\n<div class=\"wide\"><table>\n<tr>\
         <th class=\"text\">what</th><th>faults</th><th>time</th><th></th></tr>\n{rows}\
         </table></div>\n<p class=\"note\">Faults of all threads and processes are added up, and \
         may so take longer than the run.</p>\n"
    )
}

/// What was not managed: how much, and of what kinds as far as that is known.
fn not_managed(tree: &Tree) -> String {
    let peak = Bytes(tree.unmanaged.peak_bytes);
    let told = unmanaged::sentence(tree).unwrap_or_else(|| {
        format!("{peak} at most at once were not managed, which is no more than is to be expected")
    });
    let kinds = unmanaged_kinds(tree);
    let kinds = match kinds.is_empty() {
        true => String::new(),
        false => {
            let head = [["kind", "when it was looked at last"].map(str::to_owned)];
            table(&[&head[..], &kinds[..]].concat(), &[0])
        }
    };
    format!(
        "<h2>What was not managed</h2>\n<p>{}.</p>\n{kinds}<p class=\"note\">Stacks, shared \
         memory, data of the program and its libraries and the engine's tables cannot \
         leave memory. They take a part of the budget.</p>\n",
        escaped(&sentence(&told))
    )
}

fn processes(tree: &Tree) -> String {
    let (lines, more) = processes_told(tree);
    let more = others(more, MORE_PROCESSES);
    format!(
        "<h2>Processes</h2>\n{}<p class=\"note\">{more}Processes that had little memory have no \
         engine, and are not listed.</p>\n",
        table(&lines, &TEXTS_OF_PROCESS)
    )
}

fn devices(tree: &Tree) -> String {
    let told = match devices_told(&tree.total.devices) {
        Some((lines, more)) => {
            let more = others(more, MORE_DEVICES);
            format!("{}<p class=\"note\">{more}</p>\n", table(&lines, &TEXTS_OF_DEVICE))
        }
        None => "<p>There was none: what left memory was compressed.</p>\n".to_owned(),
    };
    format!("<h2>Swap devices</h2>\n{told}")
}

fn statistics(tree: &Tree) -> String {
    let head = [["what", "figure", "counters"].map(str::to_owned)];
    let lines = [&head[..], &figures(tree)[..]].concat();
    format!("<h2>Statistics</h2>\n{}", table(&lines, &[0, 2]))
}

fn how_known(report: &Report) -> String {
    let took = |which: &str, us: f64| match us > 0.0 {
        true => format!("A page that {which} took {}.", duration((us * 1e3) as u64)),
        false => format!("No page {which}."),
    };
    format!(
        "<h2>How this is known</h2>\n<p>From one run. Each page that came back tells how many \
         others had left since it did: with so much more memory it would have stayed. {} {} The \
         rest of the time is the program's own. Nothing is known of budgets below that of this \
         run: give it a smaller one to know of those. Another run differs as runs do.</p>\n",
        took("was unpacked", report.compressed_us),
        took("was read from a device", report.device_us)
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::looped;
    use super::*;
    use crate::outside::{Most, Seen};
    use overspill::stats::{Counter, DeviceIdentity, DeviceKind, Stats};

    /// What two processes have left that went through 64 MiB.
    fn tree() -> Tree {
        let stats = Stats::anonymous().unwrap();
        stats.set_name("so<b>rt");
        stats.set(Counter::UnmanagedStackBytes, 3 << 20);
        (0..1000).for_each(|_| stats.fault_ns(FaultSource::Compressed, 1_000_000));
        stats.device(0).describe(DeviceIdentity {
            path: "/var/<b>".as_ref(),
            kind: DeviceKind::Directory,
            label: "",
            uuid: None,
            priority: None,
            pages: 100,
            id: 0,
        });
        let mut processes = vec![stats.snapshot(), stats.snapshot()];
        (processes[0].pid, processes[1].pid) = (71, 72);
        let mut total = processes[0].clone();
        total.merge(&processes[1]);
        let unmanaged = Most { budget_bytes: 20 << 20, peak_bytes: 9 << 20, ..Most::default() };
        Tree { processes, total, begun: true, unmanaged, ..Tree::default() }
    }

    fn ran(command: &[&str], tree: &Tree) -> Ran {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let budget_bytes = 20 << 20;
        Ran { command, elapsed_s: 2.0, budget_bytes, ..Ran::default() }.finish(tree)
    }

    fn has(text: &str, all: &[&str]) {
        all.iter().for_each(|said| assert!(text.contains(said), "{said}: {text}"));
    }

    #[test]
    fn the_page_needs_nothing_else_and_shows_all_that_is_known() {
        let text = page(&ran(&["sort", "<b>"], &tree()), Some(&looped()), &tree());
        has(
            &text,
            &[
                "<pre>sort '&lt;b&gt;'</pre>",
                ">It had 68 MiB at most; with 68 MiB it takes at most 10 % more time than if all",
                "<div><b>20 MiB</b><span>budget of the job</span></div>",
                "<div><b>2.0 s</b><span>ran for</span></div>",
                "<div><b>0</b><span>exit status</span></div>",
                "<div><b>2</b><span>managed processes</span></div>",
                // Curves, marks, and a curve that is as another.
                "<polyline class=\"same\" points=\"0.0,",
                "<b>68 MiB: knee, +5 %, +10 %, +25 %</b>",
                "<span>with swap devices twice as fast: the same</span>",
                "how long it takes</p>",
                "budget of the job (--memory)</p>",
                "<td>+100 %</td>",
                // The time, what was not managed, processes and devices.
                "faults on compressed pages</td><td>2,000</td><td>2.",
                "9 MiB at most at once were not managed",
                "<td class=\"text\">stacks</td><td>6 MiB</td>",
                "<td>71</td><td class=\"text\">so&lt;b&gt;rt</td>",
                "<td class=\"text\">/var/&lt;b&gt;</td><td class=\"text\">directory</td>",
                "A page that was unpacked took 12.0 us. No page was read from a device.",
                "(prefers-color-scheme: dark)",
                "@media print",
            ],
        );
        for elsewhere in ["http", "<script", "src=", "@import", "url("] {
            assert!(!text.contains(elsewhere), "it loads nothing: {elsewhere}");
        }
        let rest = PAGE.split('{').filter_map(|part| part.split_once('}')).map(|(name, _)| name);
        let names = rest.filter(|name| name.chars().all(|c| c.is_ascii_lowercase()));
        names.for_each(|name| assert!(!text.contains(&format!("{{{name}}}")), "{name}"));
    }

    #[test]
    fn a_command_may_hold_anything() {
        let text = page(&ran(&["{cards}</pre><script>"], &tree()), Some(&looped()), &tree());
        has(&text, &["<pre>'&#123;cards}&lt;/pre&gt;&lt;script&gt;'</pre>"]);
        assert!(!text.contains("<script"));
        assert_eq!(shell_line(&["it's", "", "a=1"].map(str::to_owned)), "'it'\\''s' '' a=1");
    }

    #[test]
    fn a_job_that_fitted_has_no_curve() {
        let report = Report { at_most: Vec::new(), ..looped() };
        let text = page(&ran(&["sort"], &tree()), Some(&report), &tree());
        has(&text, &["all of it fitted", "Where the time went"]);
        assert!(!text.contains("<svg") && !text.contains("refaults"), "{text}");
    }

    #[test]
    fn of_a_job_of_which_nothing_was_managed_the_page_says_why() {
        let reason = Some("is statically linked".to_owned());
        let name = "st<b>".to_owned();
        let seen = Seen { pid: 9, name, peak_bytes: 60 << 20, reason, kinds: [].into() };
        let unmanaged =
            Most { peak_bytes: 60 << 20, is_much: true, outside: Some(seen), ..Most::default() };
        let tree = Tree { begun: true, unmanaged, ..Tree::default() };
        let text = page(&ran(&["st"], &tree), None, &tree);
        has(
            &text,
            &[
                "<h1>Nothing of it was managed</h1>",
                "'st' ran for 2.0 s in a budget of 20 MiB and ended with status 0; nothing of it \
                 was managed, as 'st&lt;b&gt;' (pid 9), which is statically linked, had",
                "<p>Up to 60 MiB were not managed",
            ],
        );
        for absent in ["<svg", "Where the time went", "Swap devices", "How this is known"] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
    }
}
