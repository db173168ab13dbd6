//! The ladder as a drawing: throughput, and below it the serial time of the lock that would limit it.

use super::figures;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::measure::Spread;
use crate::report::{Row, whole};
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;
use std::path::Path;

const SIZE: (u32, u32) = (1000, 900);
/// Colours that those who see few colours tell apart too (Okabe and Ito), one a number of threads, in turn.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
];
/// Share of a step's width that its bars take.
const BARS_WIDTH: f64 = 0.8;
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A figure to draw.
struct Chart {
    title: &'static str,
    axis: &'static str,
    figure: String,
    log: bool,
}

/// Draws the rows of the bench into a file.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(path: &Path, rows: &[Row], machine: &Machine) -> Result<(), Failure> {
    let mut text = String::new();
    drawn(&mut text, rows, machine).map_err(|error| Failure::new(format!("the ladder cannot be drawn: {error}")))?;
    std::fs::write(path, text).map_err(|error| {
        Failure::new(format!("the drawing cannot be written to '{}': {error}; name another file", path.display()))
    })
}

fn drawn(text: &mut String, rows: &[Row], machine: &Machine) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("overspill: swap-w-seq on {} CPUs, Linux {}", machine.cpus, machine.kernel);
    let root = root.margin(12, 0, 0, 0).titled(&title, (FONT, 22))?;
    let charts = [
        Chart {
            title: "Pages swapped out (bar: median; line: lowest to highest round)",
            axis: "pages a second",
            figure: figures::RATE.to_owned(),
            log: false,
        },
        Chart {
            title: "Time that each page out holds the lock that would limit it (less is better)",
            axis: "ns a page, log scale",
            figure: figures::SERIAL.to_owned(),
            log: true,
        },
    ];
    let parts = root.split_evenly((charts.len(), 1));
    for (chart, area) in charts.iter().zip(&parts) {
        draw_chart(area, chart, rows)?;
    }
    root.present()?;
    Ok(())
}

/// What the rows say about one figure: steps, numbers of threads, and the bars.
struct Bars {
    steps: Vec<String>,
    threads: Vec<u64>,
    /// Step, threads (as indices), value.
    bars: Vec<(usize, usize, Spread)>,
}

impl Bars {
    fn of(rows: &[Row], figure: &str) -> Bars {
        fn index<T: PartialEq>(all: &mut Vec<T>, one: T) -> usize {
            all.iter().position(|other| *other == one).unwrap_or_else(|| {
                all.push(one);
                all.len() - 1
            })
        }
        let mut bars = Bars { steps: Vec::new(), threads: Vec::new(), bars: Vec::new() };
        for row in rows {
            let threads = row.labels.get("threads").and_then(Value::as_u64).unwrap_or(0);
            let (step, threads) = (index(&mut bars.steps, row.step.clone()), index(&mut bars.threads, threads));
            bars.bars.extend(row.figures.get(figure).map(|value| (step, threads, *value)));
        }
        bars
    }

    /// Where a bar stands, of steps one wide.
    fn place(&self, step: usize, threads: usize) -> (f64, f64) {
        let width = BARS_WIDTH / self.threads.len() as f64;
        let left = step as f64 + (1.0 - BARS_WIDTH) / 2.0 + threads as f64 * width;
        (left, left + width * 0.92)
    }
}

fn draw_chart(area: &Area<'_>, chart: &Chart, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let bars = Bars::of(rows, &chart.figure);
    let highest = bars.bars.iter().map(|(_, _, value)| value.max).fold(1.0, f64::max);
    let mut builder = ChartBuilder::on(area);
    builder.caption(chart.title, (FONT, 18)).margin(16).x_label_area_size(32).y_label_area_size(96);
    let steps = 0.0..bars.steps.len() as f64;
    if chart.log {
        // The axis begins at a power of ten below the lowest bar.
        let lowest = bars.bars.iter().map(|(_, _, value)| value.min).filter(|min| *min > 0.0).fold(highest, f64::min);
        let floor = 10f64.powf((lowest.log10() - 0.2).floor());
        let context = builder.build_cartesian_2d(steps, (floor..highest * 12.0).log_scale())?;
        fill_chart(area, context, chart, &bars, floor)
    } else {
        let context = builder.build_cartesian_2d(steps, 0.0..highest * 1.4)?;
        fill_chart(area, context, chart, &bars, 0.0)
    }
}

type Context<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;

fn fill_chart<'a, 'b: 'a, Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    area: &Area<'b>,
    mut context: Context<'a, 'b, Y>,
    chart: &Chart,
    bars: &Bars,
    floor: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    // 1. The axes; steps are named in the middle of their bars.
    context
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(8)
        .y_desc(chart.axis)
        .y_label_formatter(&|value| if *value >= 1.0 { whole(*value) } else { value.to_string() })
        .axis_desc_style((FONT, 15))
        .label_style((FONT, 14))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let (left, top) = area.get_base_pixel();
    let centred = TextStyle::from((FONT, 15)).pos(Pos::new(HPos::Center, VPos::Top));
    for (at, step) in bars.steps.iter().enumerate() {
        let (x, y) = context.backend_coord(&(at as f64 + 0.5, floor));
        area.draw(&Text::new(step.as_str(), (x - left, y - top + 10), centred.clone()))?;
    }
    // 2. For each number of threads its bars, with the lowest and the highest value of the rounds.
    for (index, threads) in bars.threads.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mine = || bars.bars.iter().filter(move |(_, of, _)| *of == index);
        let bar = |(step, _, value): &(usize, usize, Spread)| {
            let (from, to) = bars.place(*step, index);
            Rectangle::new([(from, floor), (to, value.median)], colour.filled())
        };
        context
            .draw_series(mine().map(bar))?
            .label(format!("{threads} thread{}", if *threads == 1 { "" } else { "s" }))
            .legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled()));
        context.draw_series(mine().filter(|(_, _, value)| value.rounds > 1).map(|(step, _, value)| {
            let (from, to) = bars.place(*step, index);
            let middle = (from + to) / 2.0;
            PathElement::new(vec![(middle, value.min.max(floor)), (middle, value.max)], BLACK.stroke_width(2))
        }))?;
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
    use crate::measure::Sample;
    use serde_json::json;

    fn row(step: &str, threads: u64, rate: f64) -> Row {
        let sample = |scale: f64| {
            Sample::from([(figures::RATE.to_owned(), rate * scale), (figures::SERIAL.to_owned(), scale / rate)])
        };
        Row::new(step, &[("threads", json!(threads))], None, &vec![sample(1.0), sample(2.0)])
    }

    #[test]
    fn a_drawing_names_axes_steps_and_threads_and_has_a_bar_for_each_row() {
        let rows = [row("baseline", 1, 1e5), row("slot-caches", 1, 2e5), row("baseline", 32, 3e5)];
        let machine = Machine { cpus: 2, kernel: "6.18".to_owned(), ram_bytes: 0 };
        let mut text = String::new();
        drawn(&mut text, &rows, &machine).unwrap();
        for said in ["swap-w-seq on 2 CPUs, Linux 6.18", "pages a second", "baseline", "slot-caches", "32 threads"] {
            assert!(text.contains(said), "{said}: {text}");
        }
        let of_colour = |colour: &str| text.matches(&format!("fill=\"{colour}\"")).count();
        // Two charts; a bar a row, and one in the legend.
        assert_eq!((of_colour("#0072B2"), of_colour("#E69F00")), (2 * (2 + 1), 2 * (1 + 1)), "{text}");
    }

    #[test]
    fn bars_of_a_step_stand_side_by_side() {
        let rows = [row("a", 1, 1.0), row("a", 2, 1.0), row("b", 1, 1.0)];
        let bars = Bars::of(&rows, figures::RATE);
        assert_eq!((bars.steps.len(), bars.threads.as_slice(), bars.bars.len()), (2, [1, 2].as_slice(), 3));
        let places = [bars.place(0, 0), bars.place(0, 1), bars.place(1, 0)];
        assert!(places.windows(2).all(|pair| pair[0].1 < pair[1].0) && places[0].0 > 0.0 && places[2].1 < 2.0);
    }
}
