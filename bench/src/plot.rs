//! Drawings: charts of bars, one below the other, as SVG.
//!
//! A [`Chart`] has [`Bars`] in groups, with the same series in each.

use crate::measure::Spread;
use crate::measure::failure::Failure;
use crate::report::{Row, whole};
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

/// One chart.
#[derive(Debug)]
pub struct Chart {
    /// What stands above it.
    pub title: String,
    /// What the vertical axis counts.
    pub axis: &'static str,
    /// Whether that axis is logarithmic.
    pub log: bool,
    /// What is drawn.
    pub bars: Bars,
}

/// What rows say about one figure.
#[derive(Debug)]
pub struct Bars {
    groups: Vec<String>,
    series: Vec<String>,
    /// Group, series (as indices), value.
    bars: Vec<(usize, usize, Spread)>,
}

impl Bars {
    /// Those of all rows that have the figure; `place` names the group and the series of a row.
    pub fn of<'r>(
        rows: impl IntoIterator<Item = &'r Row>,
        figure: &str,
        place: impl Fn(&Row) -> (String, String),
    ) -> Bars {
        fn index(all: &mut Vec<String>, one: String) -> usize {
            all.iter().position(|other| *other == one).unwrap_or_else(|| {
                all.push(one);
                all.len() - 1
            })
        }
        let mut bars = Bars { groups: Vec::new(), series: Vec::new(), bars: Vec::new() };
        for row in rows {
            if let Some(value) = row.figures.get(figure) {
                let (group, series) = place(row);
                let (group, series) =
                    (index(&mut bars.groups, group), index(&mut bars.series, series));
                bars.bars.push((group, series, *value));
            }
        }
        bars
    }

    /// Where a bar stands, of groups one wide.
    fn place(&self, group: usize, series: usize) -> (f64, f64) {
        let width = BARS_WIDTH / self.series.len() as f64;
        let left = group as f64 + (1.0 - BARS_WIDTH) / 2.0 + series as f64 * width;
        (left, left + width * 0.92)
    }
}

/// Draws charts into a file.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(path: &Path, title: &str, charts: &[Chart]) -> Result<(), Failure> {
    let text = drawn(title, charts)
        .map_err(|error| Failure::new(format!("the figures cannot be drawn: {error}")))?;
    std::fs::write(path, text).map_err(|error| {
        Failure::new(format!(
            "the drawing cannot be written to '{}': {error}; name another file",
            path.display()
        ))
    })
}

/// The drawing as text.
///
/// # Errors
/// Those of the library that draws.
pub fn drawn(title: &str, charts: &[Chart]) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT * charts.len() as u32))
        .into_drawing_area();
    root.fill(&WHITE)?;
    let inner = root.margin(12, 0, 0, 0).titled(title, (FONT, 22))?;
    for (chart, area) in charts.iter().zip(&inner.split_evenly((charts.len(), 1))) {
        draw_chart(area, chart)?;
    }
    root.present()?;
    drop((root, inner));
    Ok(text)
}

fn draw_chart(area: &Area<'_>, chart: &Chart) -> Result<(), Box<dyn std::error::Error>> {
    let bars = &chart.bars;
    let highest = bars.bars.iter().map(|(_, _, value)| value.max).fold(1.0, f64::max);
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(&chart.title, (FONT, 18))
        .margin(16)
        .x_label_area_size(32)
        .y_label_area_size(96);
    let groups = 0.0..bars.groups.len().max(1) as f64;
    if chart.log {
        // The axis begins at a power of ten below the lowest bar.
        let lowest = bars
            .bars
            .iter()
            .map(|(_, _, value)| value.min)
            .filter(|min| *min > 0.0)
            .fold(highest, f64::min);
        let floor = 10f64.powf((lowest.log10() - 0.2).floor());
        let context = builder.build_cartesian_2d(groups, (floor..highest * 12.0).log_scale())?;
        fill_chart(area, context, chart, floor)
    } else {
        let context = builder.build_cartesian_2d(groups, 0.0..highest * 1.4)?;
        fill_chart(area, context, chart, 0.0)
    }
}

type Context<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;

fn fill_chart<'a, 'b: 'a, Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    area: &Area<'b>,
    mut context: Context<'a, 'b, Y>,
    chart: &Chart,
    floor: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let bars = &chart.bars;
    // 1. The axes; groups are named in the middle of their bars.
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
    for (at, group) in bars.groups.iter().enumerate() {
        let (x, y) = context.backend_coord(&(at as f64 + 0.5, floor));
        area.draw(&Text::new(group.as_str(), (x - left, y - top + 10), centred.clone()))?;
    }
    // 2. For each series its bars, with the lowest and the highest value of the rounds.
    for (index, name) in bars.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mine = || bars.bars.iter().filter(move |(_, of, _)| *of == index);
        let bar = |(group, _, value): &(usize, usize, Spread)| {
            let (from, to) = bars.place(*group, index);
            Rectangle::new([(from, floor), (to, value.median)], colour.filled())
        };
        context
            .draw_series(mine().map(bar))?
            .label(name.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled()));
        context.draw_series(mine().filter(|(_, _, value)| value.rounds > 1).map(
            |(group, _, value)| {
                let (from, to) = bars.place(*group, index);
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
    use crate::measure::Sample;

    fn bars() -> Bars {
        let row =
            |step: &str| Row::new(step, &[], None, &vec![Sample::from([("x".to_owned(), 1.0)])]);
        let rows = ["a 1", "a 2", "b 1"].map(row);
        Bars::of(&rows, "x", |row| {
            let (group, series) = row.step.split_once(' ').unwrap();
            (group.to_owned(), series.to_owned())
        })
    }

    #[test]
    fn bars_of_a_group_stand_side_by_side() {
        let bars = bars();
        assert_eq!(
            (bars.groups.len(), bars.series.as_slice(), bars.bars.len()),
            (2, ["1", "2"].map(String::from).as_slice(), 3)
        );
        let places = [bars.place(0, 0), bars.place(0, 1), bars.place(1, 0)];
        assert!(
            places.windows(2).all(|pair| pair[0].1 < pair[1].0)
                && places[0].0 > 0.0
                && places[2].1 < 2.0
        );
    }

    #[test]
    fn what_nothing_was_measured_of_is_an_empty_chart() {
        let chart = |bars| Chart { title: "above".to_owned(), axis: "beside", log: false, bars };
        let none = Bars::of(&[], "x", |_| unreachable!("there are no rows"));
        let text = drawn("all", &[chart(bars()), chart(none)]).unwrap();
        assert_eq!(
            (text.matches("above").count(), text.matches("fill=\"#0072B2\"").count()),
            (2, 2 + 1),
            "{text}"
        );
    }
}
