//! Drawings: the charts of a bench, one below the other, as SVG.

use super::bars::{Bars, Drawn, charts};
use super::write_file;
use crate::measure::host::Machine;
use crate::measure::{Failing, Failure, Spread};
use crate::model::*;
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// Pixels of the drawing across, and of each chart down.
const WIDTH: u32 = 1000;
const HEIGHT: u32 = 450;
/// Colours that those who see few colours tell apart too (Okabe and Ito), one a series, in turn.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
];
/// Share of a group's width that its bars take.
const BARS_WIDTH: f64 = 0.8;
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Where a bar stands, of groups one wide.
fn place(bars: &Bars, group: usize, series: usize) -> (f64, f64) {
    let width = BARS_WIDTH / bars.series.len() as f64;
    let left = group as f64 + (1.0 - BARS_WIDTH) / 2.0 + series as f64 * width;
    (left, left + width * 0.92)
}

/// Draws the charts of a bench into a file.
pub fn draw(path: &Path, findings: &Findings) -> Result<(), Failure> {
    let text = drawn(findings).failing("the figures cannot be drawn")?;
    write_file("drawing", path, &text)
}

/// The drawing as text.
fn drawn(findings: &Findings) -> Result<String, Box<dyn std::error::Error>> {
    let charts = charts(findings);
    let Machine { cpus, kernel, .. } = &findings.machine;
    let title = format!("overspill: {} on {cpus} CPUs, Linux {kernel}", findings.subject);
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT * charts.len().max(1) as u32))
        .into_drawing_area();
    root.fill(&WHITE)?;
    let inner = root.margin(12, 0, 0, 0).titled(&title, (FONT, 22))?;
    for (chart, area) in charts.iter().zip(&inner.split_evenly((charts.len().max(1), 1))) {
        draw_chart(area, chart)?;
    }
    root.present()?;
    drop((root, inner));
    Ok(text)
}

fn draw_chart(area: &Area<'_>, drawn: &Drawn<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let bars = &drawn.bars;
    let highest = bars.highest().unwrap_or(1.0).max(1.0);
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(&drawn.title, (FONT, 18))
        .margin(16)
        .x_label_area_size(32)
        .y_label_area_size(96);
    let groups = 0.0..bars.groups.len().max(1) as f64;
    if drawn.chart.log {
        // The axis begins at a power of ten below the lowest bar.
        let lowest = bars
            .bars
            .iter()
            .map(|(_, _, value)| value.min)
            .filter(|min| *min > 0.0)
            .fold(highest, f64::min);
        let floor = 10f64.powf((lowest.log10() - 0.2).floor());
        let context = builder.build_cartesian_2d(groups, (floor..highest * 12.0).log_scale())?;
        fill_chart(area, context, drawn, floor)
    } else {
        let context = builder.build_cartesian_2d(groups, 0.0..highest * 1.4)?;
        fill_chart(area, context, drawn, 0.0)
    }
}

type Context<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;

fn fill_chart<'a, 'b: 'a, Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    area: &Area<'b>,
    mut context: Context<'a, 'b, Y>,
    drawn: &Drawn<'_>,
    floor: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let bars = &drawn.bars;
    // 1. The axes; groups are named in the middle of their bars.
    context
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(8)
        .y_desc(drawn.chart.axis)
        .y_label_formatter(&|value| if *value >= 1.0 { whole(*value) } else { value.to_string() })
        .axis_desc_style((FONT, 15))
        .label_style((FONT, 14))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let (left, top) = area.get_base_pixel();
    let centred = TextStyle::from((FONT, 15)).pos(Pos::new(HPos::Center, VPos::Top));
    for (at, group) in bars.groups.iter().enumerate() {
        let (x, y) = context.backend_coord(&(at as f64 + 0.5, floor));
        area.draw(&Text::new(group.as_str(), (x - left, y - top + 10), centred.clone()))?;
    }
    // 2. For each series its bars, with the lowest and the highest value of the rounds.
    for (index, name) in bars.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mine = || bars.bars.iter().filter(move |(_, of, _)| *of == index);
        let bar = |(group, _, value): &(usize, usize, Spread)| {
            let (from, to) = place(bars, *group, index);
            Rectangle::new([(from, floor), (to, value.median)], colour.filled())
        };
        context
            .draw_series(mine().map(bar))?
            .label(name.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled()));
        context.draw_series(mine().filter(|(_, _, value)| value.rounds > 1).map(
            |(group, _, value)| {
                let (from, to) = place(bars, *group, index);
                let middle = (from + to) / 2.0;
                PathElement::new(
                    vec![(middle, value.min.max(floor)), (middle, value.max)],
                    BLACK.stroke_width(2),
                )
            },
        ))?;
    }
    context
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.4))
        .label_font((FONT, 15))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{LADDER, row};
    use crate::model::declare::{Chart, Ladder, Title, chart};
    use serde_json::json;

    #[test]
    fn a_drawing_names_axes_groups_and_series_and_has_a_bar_for_each_row() {
        const CHART: Chart = chart(Title::Is("above"), "rate", "pages a second", |row| {
            (row.step.clone(), row.told(&["threads"]))
        });
        let charts = const { &[CHART, CHART.log(), Chart { figure: "none", ..CHART }] };
        let ladder = Box::leak(Box::new(Ladder { charts, ..LADDER }));
        let of = |step: &str, threads: u64, rate: f64| {
            row(step, &[("threads", json!(threads))], &[("rate", &[rate, 2.0 * rate])])
        };
        let rows = vec![of("low", 1, 1e5), of("high", 1, 2e5), of("low", 32, 3e5)];
        let mut findings = Findings::new(ladder, json!({}), rows);
        findings.subject = "steps".to_owned();
        findings.machine = Machine { cpus: 2, kernel: "6.18".to_owned(), ram_bytes: 0 };
        let text = drawn(&findings).unwrap();
        let title = "overspill: steps on 2 CPUs, Linux 6.18";
        for said in [title, "above", "pages a second", "low", "high", "1 thread", "32 threads"] {
            assert!(text.contains(said), "{said}: {text}");
        }
        let of_colour = |colour: &str| text.matches(&format!("fill=\"{colour}\"")).count();
        // Two charts; a bar a row, and one in the legend.
        assert_eq!((of_colour("#0072B2"), of_colour("#E69F00")), (2 * (2 + 1), 2 * (1 + 1)));
        findings.rows.clear();
        assert!(drawn(&findings).unwrap().contains("<svg"), "an empty drawing");
    }
}
