//! The screen: a line about all jobs, the jobs or one of them ([`jobs`], [`job`]), and a line of
//! keys, or of what somebody is asked.

mod cells;
mod job;
mod jobs;

use super::app::{App, Prompt};
use super::bars::Marks;
use crate::control::protocol::SwapDevice;
use crate::report::printable;
pub use cells::Theme;
use cells::{columns, cut};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, app: &App, theme: Theme) {
    render(frame.area(), frame.buffer_mut(), app, theme);
}

fn render(area: Rect, buffer: &mut Buffer, app: &App, theme: Theme) {
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
            .areas(area);
    let width = usize::from(area.width);
    Paragraph::new(title(app, width)).style(theme.head()).render(top, buffer);
    Paragraph::new(body(app, theme, width, usize::from(middle.height))).render(middle, buffer);
    Paragraph::new(foot(app, width)).render(bottom, buffer);
}

/// The same as text of that width and of any height, without the keys.
pub fn text(app: &App, marks: Marks, width: usize) -> String {
    let theme = Theme { colours: false, marks };
    let lines = [vec![title(app, width)], body(app, theme, width, usize::MAX)].concat();
    let line = |line: Line<'_>| line.to_string().trim_end().to_owned() + "\n";
    lines.into_iter().map(line).collect()
}

fn title(app: &App, width: usize) -> Line<'static> {
    let jobs = match app.jobs.len() {
        0 => "no job of yours runs".to_owned(),
        1 => "1 job".to_owned(),
        count => format!("{count} jobs"),
    };
    Line::raw(ends(&format!("overspill top: {jobs}"), &format!("by {}", app.sort.name()), width))
}

fn body(app: &App, theme: Theme, width: usize, height: usize) -> Vec<Line<'static>> {
    match app.opened.and_then(|job| app.job(job)) {
        Some(job) => job::lines(app, job, theme, width, height),
        None => jobs::lines(app, theme, width, height),
    }
}

/// What somebody is asked, what was done last, or which keys there are.
fn foot(app: &App, width: usize) -> Line<'static> {
    let text = match &app.prompt {
        Some(Prompt::Size { job, is_budget: true, typed }) => {
            format!("Budget of job {job}, such as 96M: {typed}_   (Esc: leave it)")
        }
        Some(Prompt::Size { job, is_budget: false, typed }) => {
            format!("Reclaim from job {job}, such as 64M: {typed}_   (Esc: leave it)")
        }
        Some(Prompt::Device { job, first }) => {
            which_device(*job, app.job(*job).map_or(&[], |job| &job.look.swaps), *first, width)
        }
        Some(Prompt::Sure { question, .. }) => format!("{question} y/n"),
        None if !app.message.is_empty() => printable(&app.message),
        None if app.opened.is_some() && !app.only => {
            "q quit  Esc back  s sort  b budget  r reclaim  o swapoff".to_owned()
        }
        None if app.opened.is_some() => "q quit  s sort  b budget  r reclaim  o swapoff".to_owned(),
        None => "q quit  Enter open  s sort  b budget  r reclaim  o swapoff".to_owned(),
    };
    let text = cut(&text, width);
    if app.prompt.is_some() { Line::from(Span::raw(text).bold()) } else { Line::raw(text) }
}

/// The question for a device: with those from `first` on that there is room and a digit for.
fn which_device(job: u32, all: &[SwapDevice], first: usize, width: usize) -> String {
    let question = format!("Which device of job {job}?");
    let hint = |left: usize| match (left, first) {
        (0, 0) => "   (Esc: none)".to_owned(),
        (0, _) => "   (Up: others, Esc: none)".to_owned(),
        (left, _) => format!("   (Down: {left} more, Esc: none)"),
    };
    let offered = all.get(first..).unwrap_or_default();
    let with = |count: usize| {
        let device = |(at, device): (usize, &SwapDevice)| {
            format!("{}{} {}", if at == 0 { " " } else { "  " }, at + 1, printable(&device.path))
        };
        let named: String = offered.iter().take(count).enumerate().map(device).collect();
        format!("{question}{named}{}", hint(offered.len().saturating_sub(count)))
    };
    let most = (1..=9).rev().map(with).find(|text| columns(text) <= width);
    most.unwrap_or_else(|| with(1))
}

/// Text at both ends of a line.
fn ends(left: &str, right: &str, width: usize) -> String {
    let gap = width.saturating_sub(columns(left) + columns(right)).max(1);
    cut(&format!("{left}{}{right}", " ".repeat(gap)), width)
}

#[cfg(test)]
mod tests {
    use super::super::app::Key;
    use super::super::app::tests::{app, look};
    use super::cells::{cell, clock, count};
    use super::*;
    use crate::commands::top::watched::Watched;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::style::Color;
    use std::time::Duration;

    const PLAIN: Theme = Theme { colours: false, marks: Marks::ASCII };

    /// The screen of a terminal of that size.
    fn screen(app: &App, theme: Theme, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app, theme)).unwrap();
        terminal.backend().buffer().clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let row = |y: u16| -> String {
            (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect()
        };
        (0..buffer.area.height).map(row).map(|row| row.trim_end().to_owned()).collect()
    }

    fn shown(app: &App) -> Vec<String> {
        lines(&screen(app, PLAIN, 80, 24))
    }

    #[test]
    fn jobs_are_a_table_with_graphs_below() {
        let lines = shown(&app());
        let expected = "\
overspill top: 2 jobs                                                    by used
    JOB COMMAND    P    BUDGET      USED COMPRESS'D RATIO      SWAP FLT/S STALL%
    385 sort       1    64 MiB    60 MiB     60 MiB   3.0    30 MiB    10     10
    384 python3    1    64 MiB    50 MiB     60 MiB   3.0    30 MiB   100     10";
        assert_eq!(lines[..4].join("\n"), expected);
        assert!(lines[5].starts_with("job 385"), "{lines:#?}");
        assert!(lines[6].starts_with("in use          94 %") && lines[6].ends_with('@'));
        assert!(lines[7].starts_with("faults          10/s"));
        assert_eq!(lines[23], "q quit  Enter open  s sort  b budget  r reclaim  o swapoff");
    }

    #[test]
    fn an_opened_job_shows_all_of_it() {
        let mut app = app();
        app.key(Key::Down);
        app.key(Key::Enter);
        let lines = shown(&app);
        let text = lines.join("\n");
        for part in [
            "job 384 (python3), 1 process, for 1:05",
            "budget     64 MiB",
            "50 MiB in use",
            "2 MiB not managed",
            "compressed 60 MiB in 20 MiB (3.0:1)",
            "waiting    some 20 %, all 10 %; avg10 12.34, avg60 5.00, avg300 1.00",
            "FAULTS      PER S       P50       P99       MAX",
            "  zero         25",
            "  compressed   50",
            "  device       25",
            "DEVICE",
            "/var/tmp",
            "30 MiB     1 GiB",
            "PROCESS COMMAND",
            "6310 python3",
            "6311 helper",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(lines[23].starts_with("q quit  Esc back"), "{text}");
        assert!(lines.iter().all(|line| columns(line) <= 80));
    }

    #[test]
    fn what_is_asked_is_in_the_last_line() {
        let mut app = app();
        "b96".chars().for_each(|letter| drop(app.key(Key::Letter(letter))));
        assert_eq!(shown(&app)[23], "Budget of job 385, such as 96M: 96_   (Esc: leave it)");
        app.key(Key::Letter('M'));
        app.key(Key::Enter);
        let question = "Change the budget of job 385 (sort): 64 MiB -> 96 MiB? y/n";
        assert_eq!(shown(&app)[23], question);
        app.key(Key::Escape);
        app.key(Key::Letter('o'));
        assert_eq!(shown(&app)[23], "Which device of job 385? 1 /var/tmp   (Esc: none)");
        app.key(Key::Escape);
        app.message = "it\nis done".to_owned();
        assert_eq!(shown(&app)[23], "it?is done");
    }

    #[test]
    fn what_does_not_fit_is_told_of() {
        let mut app = app();
        let process = app.jobs[0].look.budget.largest[0].clone();
        let device = app.jobs[0].look.swaps[0].clone();
        app.jobs[0].look.budget.largest = vec![process; 200];
        app.jobs[0].look.budget.processes = 230;
        app.jobs[0].look.swaps = (1..=12)
            .map(|at| SwapDevice { path: format!("/disk{at}"), ..device.clone() })
            .collect();
        app.opened = Some(385);
        let lines = shown(&app);
        let listed = lines.iter().filter(|line| line.contains(" 6310 sort")).count();
        assert_eq!(lines[22], format!("  and {} more", 230 - listed), "{lines:#?}");
        assert!(text(&app, Marks::ASCII, 80).trim_end().ends_with("  and 30 more"));

        app.key(Key::Letter('o'));
        let some = "Which device of job 385? 1 /disk1  2 /disk2   (Down: 10 more, Esc: none)";
        assert_eq!(shown(&app)[23], some);
        for _ in 0..11 {
            app.key(Key::Down);
        }
        let last = "Which device of job 385? 1 /disk12   (Up: others, Esc: none)";
        assert_eq!(shown(&app)[23], last);
    }

    #[test]
    fn colours_are_left_out_where_they_are_not_wanted() {
        let mut app = app();
        app.jobs[0].look.stats.pressure[1].total_us = u64::MAX;
        let look = app.jobs[0].look.clone();
        app.jobs[0] = Watched::new(385, look);
        let colours = |theme| {
            let buffer = screen(&app, theme, 80, 24);
            buffer.content.iter().filter(|cell| cell.fg != Color::Reset).count()
        };
        assert_eq!(colours(PLAIN), 0);
        assert!(colours(Theme { colours: true, ..PLAIN }) > 0);
    }

    #[test]
    fn any_screen_has_something_on_it() {
        let mut app = app();
        app.update(vec![(384, Ok(look("\u{1b}[2J日本語日本語日本語", 1 << 20, u64::MAX)))]);
        app.update(vec![(384, Err(crate::failure::Failure::failed("silent")))]);
        for opened in [None, Some(384)] {
            app.opened = opened;
            for (width, height) in [(1, 1), (2, 3), (20, 5), (79, 10), (80, 24), (300, 100)] {
                let buffer = screen(&app, PLAIN, width, height);
                assert!(lines(&buffer).iter().any(|line| !line.is_empty()), "{width}x{height}");
                assert!(buffer.content.iter().all(|cell| !cell.symbol().contains('\u{1b}')));
            }
        }
    }

    #[test]
    fn text_is_the_screen_without_keys() {
        let mut app = app();
        let once = text(&app, Marks::ASCII, 80);
        assert_eq!(once.lines().take(4).collect::<Vec<_>>(), shown(&app)[..4]);
        assert!(!once.contains("q quit") && once.lines().count() < 12, "{once}");
        app.opened = Some(384);
        assert!(text(&app, Marks::BLOCKS, 80).contains("6311 helper"));
        let none = text(&App::default(), Marks::ASCII, 80);
        assert_eq!(
            none.split_whitespace().collect::<Vec<_>>()[..4],
            ["overspill", "top:", "no", "job"]
        );
    }

    #[test]
    fn texts_fit_their_columns() {
        assert_eq!(cut("abc", 2), "ab");
        assert_eq!(
            (cut("日本", 3), cut("日", 1), cut("a", 0)),
            ("日".into(), String::new(), String::new())
        );
        assert_eq!((cell("日", 3), cell("abc", 2)), ("日 ".into(), "ab".into()));
        assert_eq!([9.6, 99_999.0, 100_000.0, 1e8].map(count), ["10", "99999", "100k", "100M"]);
        assert_eq!(clock(Duration::from_secs(3_725)), "1:02:05");
    }
}
