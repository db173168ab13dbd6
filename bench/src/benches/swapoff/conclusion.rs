//! What the figures show, in sentences.

use super::figures;
use super::step::{REFERENCE_AFTER, REFERENCE_BEFORE, Step, Workload};
use crate::measure::Spread;
use crate::report::{Row, percent, ratio, short, whole};

/// What is to be gained: times less time and times fewer operations than a page at a time,
const SOONER_TARGET: f64 = 7.0;
const FEWER_TARGET: f64 = 18.0;
/// as a share of what the disk reads in sequence,
const DEVICE_TARGET: f64 = 0.7;
/// and times as fast as the kernel.
const KERNEL_TARGET: f64 = 5.0;

/// The sentences; `without_kernel` says why the kernel was not measured.
pub fn of(rows: &[Row], without_kernel: Option<&str>) -> String {
    let row = |workload: Workload, step: Step| {
        let is = |row: &&Row| {
            row.step == step.to_string()
                && row.labels.get("workload").is_some_and(|label| *label == workload.to_string())
        };
        rows.iter().find(is)
    };
    let figure = |workload, step, name: &str| row(workload, step)?.figures.get(name).copied();
    let mut sentences = Vec::new();
    // The defaults, or the best that was asked for.
    let steps = [Step::InFlight, Step::Run256, Step::Run32, Step::Run8];
    if let Some(step) = steps.into_iter().find(|step| row(Workload::Alone, *step).is_some()) {
        sentences.extend(alone(step, |step, name| figure(Workload::Alone, step, name)));
        sentences.extend(beside(step, |step, name| figure(Workload::Load, step, name)));
    }
    if sentences.is_empty() {
        sentences.push("One step shows no difference: add others with --steps.".to_owned());
    }
    if let Some(reason) = without_kernel {
        sentences.push(format!("The kernel was left out: {reason}."));
    }
    sentences.push(format!(
        "For context, the change to FreeBSD that the mechanism comes from, on its machine with 1 \
         GiB: {} s to {} s elapsed, {} s to {} s of system time, {} operations to {} of 18.3 \
         pages each.",
        ratio(REFERENCE_BEFORE.elapsed_s),
        ratio(REFERENCE_AFTER.elapsed_s),
        ratio(REFERENCE_BEFORE.sys_s),
        ratio(REFERENCE_AFTER.sys_s),
        whole(REFERENCE_BEFORE.operations as f64),
        whole(REFERENCE_AFTER.operations as f64)
    ));
    sentences.join(" ")
}

/// What a step does without a load, target by target.
fn alone(step: Step, figure: impl Fn(Step, &str) -> Option<Spread>) -> Vec<String> {
    let median = |step, name: &str| figure(step, name).map(|spread| spread.median);
    let mut sentences = Vec::new();
    if let (Some(sooner), Some(here), Some(base)) = (
        figure(step, figures::SOONER),
        median(step, figures::ELAPSED),
        median(Step::Run1, figures::ELAPSED),
    ) {
        let met = met(sooner, SOONER_TARGET);
        sentences.push(format!(
            "{step} empties the device in {} s, a page at a time it takes {} s: {} times as fast \
             ({} to {} by round); 7 times: {met}.",
            short(here),
            short(base),
            ratio(sooner.median),
            ratio(sooner.min),
            ratio(sooner.max)
        ));
    }
    if let (Some(fewer), Some(pages)) =
        (figure(step, figures::FEWER), median(step, figures::PAGES_PER_OPERATION))
    {
        let met = met(fewer, FEWER_TARGET);
        sentences.push(format!(
            "An operation reads {} pages, {} times fewer operations; 18 times: {met}.",
            short(pages),
            ratio(fewer.median)
        ));
    }
    if let (Some(share), Some(here), Some(disk)) = (
        figure(step, figures::DEVICE_RATIO),
        median(step, figures::MB_PER_S),
        median(step, figures::DEVICE_MB_PER_S),
    ) {
        let met = met(share, DEVICE_TARGET);
        sentences.push(format!(
            "It brings in {} MB/s, {} of the {} MB/s that the disk reads in sequence ({} to {} by \
             round); 70 %: {met}.",
            whole(here),
            percent(share.median),
            whole(disk),
            percent(share.min),
            percent(share.max)
        ));
    }
    if let (Some(times), Some(kernel)) =
        (figure(step, figures::OF_KERNEL), median(Step::Kernel, figures::ELAPSED))
    {
        let met = met(times, KERNEL_TARGET);
        sentences.push(format!(
            "The kernel's swapoff takes {} s, {} times as long ({} to {} by round); 5 times: {met}.",
            short(kernel),
            ratio(times.median),
            ratio(times.min),
            ratio(times.max)
        ));
    }
    sentences
}

fn met(figure: Spread, target: f64) -> &'static str {
    if figure.median >= target { "met" } else { "missed" }
}

/// What becomes of the load.
fn beside(step: Step, figure: impl Fn(Step, &str) -> Option<Spread>) -> Option<String> {
    let told = |step| {
        let median = |name: &str| figure(step, name).map(|spread| spread.median);
        let text = format!(
            "{} times slower for {} s, its longest access {} ms",
            ratio(median(figures::LOAD_SLOWDOWN)?),
            short(median(figures::ELAPSED)?),
            short(median(figures::LOAD_MS)?)
        );
        Some(text)
    };
    let others = [(Step::Run1, "a page at a time"), (Step::Kernel, "with the kernel's")];
    let others =
        others.into_iter().filter_map(|(step, what)| Some(format!("; {what} {}", told(step)?)));
    Some(format!("Beside it a load is {}{}.", told(step)?, others.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;
    use serde_json::json;

    fn row(workload: Workload, step: Step, figures: &[(&str, f64)]) -> Row {
        let round = |scale: f64| sample(figures.iter().map(|(name, value)| (*name, value * scale)));
        Row::new(
            &step.to_string(),
            &[("workload", json!(workload.to_string()))],
            None,
            &vec![round(0.9), round(1.0), round(1.1)],
        )
    }

    #[test]
    fn each_target_is_met_or_missed_with_its_figure() {
        let load = |slower| {
            [(figures::ELAPSED, 2.0), (figures::LOAD_SLOWDOWN, slower), (figures::LOAD_MS, 7.5)]
        };
        let best = [
            (figures::ELAPSED, 0.5),
            (figures::SOONER, 8.0),
            (figures::FEWER, 17.0),
            (figures::PAGES_PER_OPERATION, 17.0),
            (figures::DEVICE_RATIO, 0.75),
            (figures::MB_PER_S, 1500.0),
            (figures::DEVICE_MB_PER_S, 2000.0),
            (figures::OF_KERNEL, 4.0),
        ];
        let rows = [
            row(Workload::Alone, Step::Run1, &[(figures::ELAPSED, 4.0)]),
            row(Workload::Alone, Step::InFlight, &best),
            row(Workload::Alone, Step::Kernel, &[(figures::ELAPSED, 2.0)]),
            row(Workload::Load, Step::InFlight, &load(3.0)),
            row(Workload::Load, Step::Kernel, &load(2.0)),
        ];
        let text = of(&rows, None);
        for said in [
            "in-flight empties the device in 0.500 s, a page at a time it takes 4.0 s: 8.00 times \
             as fast (7.20 to 8.80 by round); 7 times: met.",
            "An operation reads 17.0 pages, 17.00 times fewer operations; 18 times: missed.",
            "1,500 MB/s, 75.0 % of the 2,000 MB/s that the disk reads in sequence (67.5 % to 82.5 \
             % by round); 70 %: met.",
            "The kernel's swapoff takes 2.0 s, 4.00 times as long (3.60 to 4.40 by round); 5 \
             times: missed.",
            "Beside it a load is 3.00 times slower for 2.0 s, its longest access 7.5 ms; with the \
             kernel's 2.00 times slower",
            "For context, the change to FreeBSD",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(!text.contains("left out"));
    }

    #[test]
    fn what_was_not_measured_is_not_told() {
        let rows = [row(Workload::Alone, Step::Run1, &[(figures::ELAPSED, 4.0)])];
        let text = of(&rows, Some("it needs root"));
        assert!(text.starts_with("One step shows no difference"), "{text}");
        assert!(text.contains(" The kernel was left out: it needs root. For context"), "{text}");
    }
}
