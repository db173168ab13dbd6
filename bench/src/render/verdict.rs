//! What is judged, a line each, and what the origin of the mechanism published.

use super::table::{aligned, spread};
use crate::measure::*;
use crate::model::*;
use serde_json::Value;

const NOTHING: &str = "Nothing is compared with anything here: measure other steps too.";

/// All of it as text, with the notes of the bench.
pub fn text(findings: &Findings) -> String {
    let judged: Vec<Vec<String>> =
        findings.ladder.verdicts.iter().flat_map(|verdict| lines(findings, verdict)).collect();
    let Machine { cpus, kernel, .. } = &findings.machine;
    let mut text = match judged.is_empty() {
        true => format!("{NOTHING}\n"),
        false => format!(
            "Medians (lowest to highest round) on {cpus} CPUs, Linux {kernel}:\n\n{}",
            aligned(&judged, |_| true, 0)
        ),
    };
    let published = published(findings.ladder);
    let notes: Vec<&str> = published.iter().chain(&findings.notes).map(String::as_str).collect();
    text += &format!("\n{}", notes.join("\n"));
    text.truncate(text.trim_end().len());
    text
}

/// The lines of a verdict: where, what, how much, and what follows from that.
fn lines(findings: &Findings, verdict: &Verdict) -> Vec<Vec<String>> {
    let rows = selected(findings, verdict);
    let format = format_of(findings.ladder, verdict.figure);
    let told: Vec<Option<[String; 3]>> = match (verdict.goal, verdict.rows) {
        (NoLoss, _) => vec![no_loss(findings, verdict, &rows)],
        (_, Across(labels)) => vec![across(findings, verdict, labels, &rows, format)],
        _ => {
            let line = |row: &&Row| {
                let figure = row.get(verdict.figure)?;
                let outcome = outcome(findings, verdict, row, format)?;
                Some([place(findings, row), spread(figure, format), outcome])
            };
            rows.iter().map(line).collect()
        }
    };
    let line = |[place, figure, outcome]: [String; 3]| {
        vec![place, verdict.says.to_owned(), figure, outcome]
    };
    told.into_iter().flatten().map(line).collect()
}

/// The rows that a verdict is about: those that have its figure.
fn selected<'f>(findings: &'f Findings, verdict: &Verdict) -> Vec<&'f Row> {
    let number = |row: &Row, label: &str| row.labels.get(label).and_then(Value::as_u64);
    let belongs = |row: &&Row| match verdict.rows {
        All => true,
        Most(label) => {
            number(row, label) == findings.rows.iter().map(|row| number(row, label)).max().flatten()
        }
        Labelled(label) => row.labels.contains_key(label),
        With(labels) | Across(labels) => {
            labels.iter().all(|(name, value)| row.label(name) == *value)
        }
    };
    let rows: Vec<&Row> = (findings.rows.iter())
        .filter(|row| row.figures.contains_key(verdict.figure))
        .filter(belongs)
        .collect();
    let measured = |step: &&&str| rows.iter().any(|row| row.step == **step);
    match verdict.steps.iter().find(measured) {
        _ if verdict.steps.is_empty() => rows,
        Some(step) => rows.into_iter().filter(|row| row.step == *step).collect(),
        None => Vec::new(),
    }
}

fn place(findings: &Findings, row: &Row) -> String {
    let labels = row.told(findings.groups);
    if labels.is_empty() { row.step.clone() } else { format!("{labels}: {}", row.step) }
}

/// How a figure is written: as the comparison says that makes it, or as a column does.
pub fn format_of(ladder: &Ladder, figure: &str) -> Format {
    let compared = ladder.comparisons.iter().find(|comparison| comparison.name == figure);
    let mut columns = ladder.tables.iter().flat_map(|table| table.columns);
    compared
        .map(|comparison| comparison.how.format())
        .or_else(|| Some(columns.find(|column| column.figure == figure)?.format))
        .unwrap_or(format::short)
}

/// What follows from a figure. `None` if it is to be no worse than one that was not measured.
fn outcome(findings: &Findings, verdict: &Verdict, row: &Row, format: Format) -> Option<String> {
    let figure = row.get(verdict.figure)?;
    let NotAbove(step) = verdict.goal else {
        return Some(judged(verdict.goal, figure, format));
    };
    let is_base = |other: &&Row| other.step == step && other.labels == row.labels;
    let base = findings.rows.iter().find(is_base).filter(|_| row.step != step)?;
    let above = figure.min > base.get(verdict.figure)?.max;
    Some(match above {
        true => format!("not met: above {step} in every round"),
        false => format!("met: not above {step} in every round"),
    })
}

/// Whether a figure by itself reaches a goal.
pub fn judged(goal: Goal, figure: Spread, format: Format) -> String {
    let told = format(figure.median);
    match goal {
        AtLeast(least) if figure.median >= least => format!("met: {} or more", format(least)),
        AtLeast(least) => format!("not met: {told} of {}", format(least)),
        AtMost(most) if figure.median <= most => format!("met: {} or less", format(most)),
        AtMost(most) => format!("not met: {told}, {} at most", format(most)),
        GainOf(least) => {
            let gained = figure.min > 0.0 && figure.rounds >= ROUNDS_BY_DEFAULT as usize;
            match figure.median >= least && gained {
                true => format!("met: {} or more, {}", format(least), change(figure)),
                false => format!("not met: {told} of {}, {}", format(least), change(figure)),
            }
        }
        Gain => change(figure).to_owned(),
        Told | NotAbove(_) | NoLoss => String::new(),
    }
}

/// What a change is worth that is positive where something is gained: only what every round says,
/// and rounds enough, tell it from noise.
fn change(change: Spread) -> &'static str {
    match change {
        _ if change.rounds < ROUNDS_BY_DEFAULT as usize => "too few rounds to tell",
        Spread { min, .. } if min > 0.0 => "a gain in every round",
        Spread { max, .. } if max < 0.0 => "a loss in every round",
        _ => "no gain that can be told from noise",
    }
}

/// The median over all rows, with what it is made of.
fn across(
    findings: &Findings,
    verdict: &Verdict,
    labels: &[(&str, &str)],
    rows: &[&Row],
    format: Format,
) -> Option<[String; 3]> {
    let median = |row: &&Row| Some(row.get(verdict.figure)?.median);
    let medians: Vec<f64> = rows.iter().filter_map(median).collect();
    let first = rows.first()?;
    let fixed: Vec<&str> = labels.iter().map(|(name, _)| *name).collect();
    let own = findings.groups.iter().find(|name| !fixed.contains(name));
    let each = |(row, median): (&&Row, &f64)| {
        format!("{} {}", own.map_or(String::new(), |name| row.label(name)), format(*median))
    };
    let told: Vec<String> = rows.iter().zip(&medians).map(each).collect();
    let median = Spread::of(medians);
    Some([
        format!("{}: {}", first.told(&fixed), first.step),
        format!("{} ({})", format(median.median), told.join(", ")),
        judged(verdict.goal, median, format),
    ])
}

/// Which rows have a loss in every round, and whether chance explains them: rows that do not differ
/// have one now and then, one of 2^rounds.
fn no_loss(findings: &Findings, verdict: &Verdict, rows: &[&Row]) -> Option<[String; 3]> {
    let figure = |row: &&Row| row.get(verdict.figure);
    let rounds = rows.iter().filter_map(|row| Some(figure(row)?.rounds)).min()?;
    let lost: Vec<String> = (rows.iter())
        .filter(|row| figure(row).is_some_and(|change| change.max < 0.0))
        .map(|row| place(findings, row))
        .collect();
    let by_chance = rows.len() as f64 / 2f64.powi(rounds as i32);
    let outcome = match lost.len() {
        _ if rounds < ROUNDS_BY_DEFAULT as usize => "too few rounds to tell".to_owned(),
        0 => "met: none".to_owned(),
        n if n as f64 <= by_chance + 2.0 * by_chance.sqrt() => {
            format!("no more than chance explains: {}", lost.join("; "))
        }
        _ => format!("not met: {}", lost.join("; ")),
    };
    Some(["all".to_owned(), format!("{} of {}", lost.len(), rows.len()), outcome])
}

/// What was published of the steps.
fn published(ladder: &Ladder) -> Option<String> {
    let number = |value: &Value| match value.as_f64() {
        Some(n) if n.fract() == 0.0 => whole(n),
        Some(n) => ((n * 1000.0).round() / 1000.0).to_string(),
        None => value.to_string(),
    };
    let figure = |(name, value): (&String, &Value)| match value.as_array() {
        Some(all) => format!("{name} {}", all.iter().map(number).collect::<Vec<_>>().join(", ")),
        None => format!("{name} {}", number(value)),
    };
    let steps = ladder.steps.iter().filter_map(|step| {
        let reference = step.reference?();
        let figures: Vec<String> = reference.as_object()?.iter().map(figure).collect();
        Some(format!("{}: {}", step.name, figures.join(", ")))
    });
    let steps: Vec<String> = steps.collect();
    (!steps.is_empty()).then(|| format!("Published: {}. {}.", ladder.origin, steps.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{LADDER, row};
    use crate::model::declare::Step;
    use crate::model::format::{gain, ratio};
    use serde_json::json;

    fn findings(verdicts: &'static [Verdict], rows: Vec<Row>) -> Findings {
        let steps = const { &[Step::new("old", "").published(|| json!({"n": 29_026, "s": 1.5}))] };
        let ladder = Ladder { verdicts, steps, origin: "them, 2008", ..LADDER };
        let mut findings = Findings::new(Box::leak(Box::new(ladder)), json!({}), rows);
        findings.machine = Machine { cpus: 2, kernel: "6.18".to_owned(), ram_bytes: 0 };
        findings
    }

    fn of(step: &str, threads: u64, rate: &[f64]) -> Row {
        row(step, &[("threads", json!(threads))], &[("rate", rate)])
    }

    #[test]
    fn a_goal_is_met_or_not_with_its_figure() {
        let spread = |values: &[f64]| Spread::of(values.to_vec());
        let said = |goal, values: &[f64]| judged(goal, spread(values), ratio);
        assert_eq!(said(AtLeast(1.5), &[1.5]), "met: 1.50 or more");
        assert_eq!(said(AtLeast(1.5), &[1.2]), "not met: 1.20 of 1.50");
        assert_eq!(said(AtMost(1.1), &[1.1]), "met: 1.10 or less");
        assert_eq!(said(AtMost(1.1), &[1.2]), "not met: 1.20, 1.10 at most");
        assert_eq!(said(Told, &[1.2]), "");
        let change = |values: &[f64]| judged(Gain, spread(values), gain);
        assert_eq!(change(&[0.01, 0.02, 0.03]), "a gain in every round");
        assert_eq!(change(&[-0.03, -0.02, -0.01]), "a loss in every round");
        assert_eq!(change(&[-0.01, 0.02, 0.03]), "no gain that can be told from noise");
        assert_eq!(change(&[0.01, 0.02]), "too few rounds to tell");
        let gain_of = |values: &[f64]| judged(GainOf(0.04), spread(values), gain);
        assert_eq!(gain_of(&[0.04; 3]), "met: +4.0 % or more, a gain in every round");
        assert!(gain_of(&[0.5, 0.5]).starts_with("not met: +50.0 % of +4.0 %, too few"));
        assert!(gain_of(&[-0.1, 0.5, 0.5]).starts_with("not met: +50.0 % of +4.0 %, no gain"));
    }

    #[test]
    fn the_first_step_is_judged_that_was_measured_where_there_are_most_threads() {
        const MOST: Rows = Most("threads");
        const VERDICTS: &[Verdict] = &[
            verdict(MOST, &["best", "good"], "rate", "pages", AtLeast(5.0)),
            told(With(&[("threads", "1")]), &["good"], "rate", "pages with one"),
            verdict(All, &["good"], "rate", "no worse", NotAbove("old")),
            told(Labelled("threads"), &["other"], "rate", "none"),
        ];
        let rows = vec![of("good", 1, &[3.0]), of("old", 1, &[2.0]), of("good", 2, &[4.0, 6.0])];
        let expected = "\
Medians (lowest to highest round) on 2 CPUs, Linux 6.18:

2 threads: good  pages           5 (4 to 6)  met: 5 or more
1 thread: good   pages with one  3
1 thread: good   no worse        3           not met: above old in every round

Published: them, 2008. old: n 29,026, s 1.5.";
        assert_eq!(text(&findings(VERDICTS, rows)), expected);
        let none = text(&findings(VERDICTS, Vec::new()));
        assert!(none.starts_with("Nothing is compared"), "{none}");
    }

    #[test]
    fn a_loss_that_chance_explains_is_not_held_against_a_step() {
        const VERDICTS: &[Verdict] = &[verdict(All, &[], "rate", "over the step before", NoLoss)];
        let said = |rounds: usize, lost: u64| {
            let change = |n: u64| if n <= lost { -0.1 } else { 0.1 };
            let rows = (1..=8).map(|n| of("x", n, &vec![change(n); rounds])).collect();
            text(&findings(VERDICTS, rows))
        };
        let (few, by_chance) =
            ("too few rounds to tell", "no more than chance explains: 1 thread: x");
        for (rounds, lost, expected) in
            [(2, 1, few), (3, 1, by_chance), (12, 1, "not met: 1 thread: x"), (12, 0, "met: none")]
        {
            let text = said(rounds, lost);
            assert!(text.contains(&format!("{lost} of 8  {expected}\n")), "{expected}: {text}");
        }
    }

    #[test]
    fn a_median_over_rows_says_what_it_is_made_of() {
        const ZRAM: Rows = Across(&[("peer", "zram")]);
        const VERDICTS: &[Verdict] = &[verdict(ZRAM, &["x"], "rate", "median", AtMost(0.7))];
        let row = |workload: &str, peer: &str, rate: f64| {
            let labels = [("peer", json!(peer)), ("workload", json!(workload))];
            row("x", &labels, &[("rate", &[rate])])
        };
        let rows = vec![row("a", "zram", 1.0), row("b", "zram", 2.0), row("a", "file", 7.0)];
        let mut findings = findings(VERDICTS, rows);
        findings.groups = &["workload", "peer"];
        let text = text(&findings);
        assert!(text.contains("zram: x  median  2 (a 1, b 2)  not met: 2, 1 at most"), "{text}");
    }
}
