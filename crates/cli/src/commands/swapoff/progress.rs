//! How far swapoff is: a bar on a terminal, a line each second where that was asked for.

use crate::failure::say;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use overspill::units::Bytes;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Time between two lines.
const LINE: Duration = Duration::from_secs(1);

/// Shows on standard error how far the evacuation of a device is.
pub struct ProgressDisplay {
    device: String,
    amount: Amount,
    bar: Option<ProgressBar>,
    /// When the last line was written, if any is to be.
    last_line: Option<Instant>,
}

impl ProgressDisplay {
    /// For a device, with lines where standard error is no terminal if they are wanted.
    pub fn new(device: &str, lines: bool) -> ProgressDisplay {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{prefix} {wide_bar} {msg}")
                .expect("the template is right");
            bar.with_style(style).with_prefix(device.to_owned())
        });
        let now = Instant::now();
        let last_line = (bar.is_none() && lines).then_some(now);
        ProgressDisplay { device: device.to_owned(), amount: Amount::new(now), bar, last_line }
    }

    /// Shows that so many pages are left.
    pub fn show(&mut self, left_pages: u64) {
        let now = Instant::now();
        self.amount.note(left_pages);
        if let Some(bar) = &self.bar {
            bar.set_length(self.amount.most_pages);
            bar.set_position(self.amount.moved_pages());
            bar.set_message(self.amount.text(now));
        }
        if let Some(last) = self.last_line.filter(|last| now - *last >= LINE) {
            say(&format!("swapoff {}: {}", self.device, self.amount.text(now)));
            self.last_line = Some(last + LINE);
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// What was done, after it was done.
    pub fn summary(&self) -> String {
        let (pages, seconds) = (self.amount.most_pages, self.amount.began.elapsed().as_secs_f64());
        format!("swapoff {}: {} in {seconds:.1} s", self.device, Bytes::from_pages(pages))
    }
}

/// How much there is to be moved, and when it began.
#[derive(Debug)]
struct Amount {
    began: Instant,
    most_pages: u64,
    left_pages: u64,
}

impl Amount {
    fn new(began: Instant) -> Amount {
        Amount { began, most_pages: 0, left_pages: 0 }
    }

    /// Processes that take note later have more; what is freed meanwhile need not be moved.
    fn note(&mut self, left_pages: u64) {
        self.most_pages =
            self.most_pages.saturating_add(left_pages.saturating_sub(self.left_pages));
        self.left_pages = left_pages;
    }

    fn moved_pages(&self) -> u64 {
        self.most_pages - self.left_pages
    }

    fn text(&self, now: Instant) -> String {
        let (left, moved) = (self.left_pages, self.moved_pages());
        let seconds = (now - self.began).as_secs_f64();
        if moved == 0 || seconds == 0.0 {
            return format!("{left} pages left");
        }
        let rate = moved as f64 / seconds;
        let mib_per_s = rate * Bytes::from_pages(1).0 as f64 / f64::from(1 << 20);
        format!(
            "{left} pages left, {mib_per_s:.0} MiB/s, {:.0} s to go",
            (left as f64 / rate).ceil()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_what_was_moved_since_it_began() {
        let began = Instant::now();
        let mut amount = Amount::new(began);
        amount.note(0);
        assert_eq!(amount.text(began), "0 pages left");
        amount.note(1000);
        amount.note(500);
        // Another process has taken note.
        amount.note(1500);
        assert_eq!((amount.most_pages, amount.moved_pages()), (2000, 500));
        amount.note(1488);
        let text = amount.text(began + Duration::from_secs(2));
        assert_eq!(text, "1488 pages left, 1 MiB/s, 6 s to go");
    }
}
