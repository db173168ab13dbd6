//! The findings as one page that needs nothing else, for people who have never heard of overspill.

use super::figures;
use super::plot::{self, label, peer, series};
use crate::failure::Failure;
use crate::machine::Machine;
use crate::measure::Spread;
use crate::report::{Row, ratio, short, whole};
use overspill::base::Bytes;
use std::path::Path;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:1060px;margin:2rem auto;padding:0 1rem;color:#1a1a1a;\
background:#fff}h1{font-size:1.7rem;margin-bottom:.2rem}h2{font-size:1.25rem;margin-top:2.2rem}p.sub{color:#555;margin-top:0}\
figure{margin:1rem 0;overflow-x:auto}svg{width:100%;height:auto}table{border-collapse:collapse;font-size:.9rem;width:100%}\
.wide{overflow-x:auto}th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #e2e2e2;white-space:nowrap}\
th{border-bottom:2px solid #999}td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}tr.kernel td{background:#f4f4f4;\
border-top:2px solid #bbb}td.faster{color:#006b4a;font-weight:600}td.slower{color:#a33c00;font-weight:600}\
small{color:#666;font-weight:400}pre{white-space:pre-wrap;background:#f4f4f4;padding:1rem;font-size:.85rem}";

/// A column of the table.
type Cell = (&'static str, fn(&Row) -> String);

const CELLS: &[Cell] = &[
    ("time of an access, us", |row| figure(row, figures::PER_ACCESS).map_or(String::new(), |f| short(f.median / 1e3))),
    ("99.9 % within, us", |row| figure(row, figures::P999).map_or(String::new(), |f| whole(f.median / 1e3))),
    ("processor time, s", |row| figure(row, figures::CPU).map_or(String::new(), |f| short(f.median))),
    ("of the kernel's", |row| figure(row, figures::CPU_RATIO).map_or(String::new(), spread)),
    ("RAM, MiB", |row| figure(row, figures::RAM).map_or(String::new(), |f| whole(f.median / f64::from(1 << 20)))),
    ("disk, MiB", |row| figure(row, figures::DEVICE).map_or(String::new(), |f| whole(f.median / f64::from(1 << 20)))),
];

/// Writes the page.
///
/// # Errors
/// When the figures cannot be drawn or the file cannot be written.
pub fn write(path: &Path, machine: &Machine, size: Bytes, rows: &[Row], conclusion: &str) -> Result<(), Failure> {
    let text = page(machine, size, rows, conclusion)?;
    std::fs::write(path, text).map_err(|error| {
        Failure::new(format!("the page cannot be written to '{}': {error}; name another file", path.display()))
    })
}

fn page(machine: &Machine, size: Bytes, rows: &[Row], conclusion: &str) -> Result<String, Failure> {
    let work: Vec<&Row> = rows.iter().filter(|row| figure(row, figures::PER_ACCESS).is_some()).collect();
    let title = "overspill beside the kernel's swap";
    let mut drawings = String::new();
    for chart in plot::charts(rows) {
        let drawn = crate::plot::drawn("", &[chart]);
        let drawn = drawn.map_err(|error| Failure::new(format!("the figures cannot be drawn: {error}")))?;
        drawings += &format!("<figure>{drawn}</figure>\n");
    }
    let head: String = CELLS.iter().map(|(title, _)| format!("<th>{title}</th>")).collect();
    let lines: String = work.iter().map(|row| line(row)).collect();
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{title}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p class=\"sub\">{size} of memory on {cpus} processors, Linux {kernel}, {ram} of RAM</p>\n\
         <p>A program that needs more memory than it may use either swaps or dies. Swap is a thing of the kernel: one for the whole \
         machine, set up by its administrator. <b>overspill</b> does the same for one program, without a change to it and without the \
         kernel's swap: what does not fit into a budget is compressed in RAM, or goes to a file.</p>\n\
         <p>Here the same program accesses the same memory with as much RAM on both sides: by itself in a memory cgroup, with the \
         kernel's swap (zram and zswap compress in RAM, with LZ4 as overspill does; a swap file does not), and then with overspill, in \
         turn, several times over. A ratio is overspill's time to the kernel's in the same round: <b>below 1 overspill is \
         faster</b>. In brackets the lowest and the highest of the rounds.</p>\n\
         <ul><li><b>overspill run</b>: the unmodified program, started by <code>overspill run</code>; a thread serves its faults.</li>\
         <li><b>overspill run --fault signal</b>: the same, each thread serves its own.</li>\
         <li><b>overspill as a library</b>: the accesses in a process that uses overspill's regions.</li></ul>\n\
         <h2>Time of an access</h2>\n{drawings}\
         <h2>All figures</h2>\n<div class=\"wide\"><table><thead><tr><th>workload</th><th>compared with</th><th>who</th>\
         <th>ratio of time</th>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>\n\
         <p>Workloads: <i>seq-write</i> writes fresh memory in sequence, <i>seq-read</i> reads it so; <i>rand-read</i> and \
         <i>rand-write</i> access pages at random; <i>zipf-read</i> prefers some pages as caches do, and one access in twenty \
         writes.</p>\n<h2>What it shows</h2>\n<pre>{conclusion}</pre>\n</body></html>\n",
        cpus = machine.cpus,
        kernel = escaped(&machine.kernel),
        ram = Bytes(machine.ram_bytes),
        conclusion = escaped(conclusion),
    ))
}

fn line(row: &Row) -> String {
    let elapsed = figure(row, figures::RATIO);
    let class = match elapsed {
        Some(ratio) if ratio.median < 1.0 => "faster",
        Some(_) => "slower",
        None => "",
    };
    let setting = format!(
        "{} <small>{}x, {}, {} thr.</small>",
        escaped(&label(row, "workload")),
        label(row, "overcommit"),
        escaped(&label(row, "contents")),
        label(row, "threads")
    );
    let cells: String = CELLS.iter().map(|(_, cell)| format!("<td>{}</td>", cell(row))).collect();
    format!(
        "<tr{}><td>{setting}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td>{cells}</tr>\n",
        if row.step == "peer" { " class=\"kernel\"" } else { "" },
        escaped(&peer(row)),
        escaped(&series(row)),
        elapsed.map_or(String::new(), spread),
    )
}

fn figure(row: &Row, name: &str) -> Option<Spread> {
    row.figures.get(name).copied()
}

fn spread(figure: Spread) -> String {
    match figure.rounds {
        1 => ratio(figure.median),
        _ => format!("{} <small>({} to {})</small>", ratio(figure.median), ratio(figure.min), ratio(figure.max)),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{machine, sample};
    use serde_json::json;

    #[test]
    fn the_page_needs_nothing_else_and_tells_who_is_faster() {
        let row = |step: &str, ratio: f64| {
            let labels = [("workload", json!("seq-read")), ("peer", json!("zram")), ("threads", json!(1))];
            let figures = [(figures::PER_ACCESS, 7000.0), (figures::RATIO, ratio), (figures::CPU, 1.0)];
            let figures = figures.into_iter().filter(|(name, _)| step != "peer" || *name != figures::RATIO);
            Row::new(step, &labels, None, &vec![sample(figures)])
        };
        let rows = [row("peer", 1.0), row("library", 0.5), row("overspill-thread", 2.0)];
        let text = page(&machine(), Bytes(64 << 20), &rows, "1 < 2").unwrap();
        assert!(
            text.contains("<td class=\"faster\">0.50</td>") && text.contains("<td class=\"slower\">2.00</td>"),
            "{text}"
        );
        assert!(text.contains("<svg") && text.contains("1 &lt; 2") && text.contains("64 MiB of memory on 2"), "{text}");
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("http") && !elsewhere.contains("<script"), "it loads nothing");
    }
}
