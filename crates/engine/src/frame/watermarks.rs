//! Watermarks: how much is kept free of what a process has of the budget for itself.

use crate::units::Bytes;
use std::fmt;
use std::str::FromStr;

/// A watermark: so much of the budget is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mark {
    /// By the size of the budget.
    #[default]
    Auto,
    /// A share of it, in units of a hundredth of a percent.
    Share(u16),
    /// A size.
    Size(Bytes),
}

impl Mark {
    /// Most that a watermark can be: half of the budget.
    const SHARE_MAX: u16 = 5_000;

    /// Pages of a budget of `limit` pages, half of it at most.
    pub fn pages(self, limit: u64, auto: u64) -> u64 {
        let pages = match self {
            Mark::Auto => return auto,
            Mark::Share(share) => limit * u64::from(share) / 10_000,
            Mark::Size(size) => size.pages(),
        };
        pages.min(limit / 2)
    }
}

impl FromStr for Mark {
    type Err = ();

    fn from_str(text: &str) -> Result<Mark, ()> {
        if text == "auto" {
            return Ok(Mark::Auto);
        }
        if let Some(percent) = text.strip_suffix('%') {
            let share = percent.parse::<f64>().map_err(|_| ())? * 100.0;
            let fits = (0.0..=f64::from(Mark::SHARE_MAX)).contains(&share);
            return if fits { Ok(Mark::Share(share.round() as u16)) } else { Err(()) };
        }
        text.parse().map(Mark::Size).map_err(|_| ())
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mark::Auto => f.write_str("auto"),
            Mark::Share(share) => write!(f, "{}%", f64::from(*share) / 100.0),
            Mark::Size(size) => f.write_str(&size.exact()),
        }
    }
}

/// The three of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// What of the budget a fault does not take: below it threads reclaim for themselves.
    pub min: Mark,
    /// Where reclaim in the background begins.
    pub low: Mark,
    /// Where it stops.
    pub high: Mark,
}

/// `auto`, or the three of them: `1%/2%/64M`.
impl FromStr for Watermarks {
    type Err = ();

    fn from_str(text: &str) -> Result<Watermarks, ()> {
        if text == "auto" {
            return Ok(Watermarks::default());
        }
        let marks = text.split('/').map(str::parse).collect::<Result<Vec<Mark>, ()>>()?;
        let [min, low, high] = marks[..] else { return Err(()) };
        Ok(Watermarks { min, low, high })
    }
}

impl fmt::Display for Watermarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            auto if *auto == Watermarks::default() => f.write_str("auto"),
            Watermarks { min, low, high } => write!(f, "{min}/{low}/{high}"),
        }
    }
}

impl Watermarks {
    /// Least pages kept back: what two batches may need before they free any.
    const MIN_LEAST: u64 = 96;
    /// Most of them unless more are asked for: 8 MiB.
    const MIN_MOST: u64 = 2048;
    /// Pages from one to the next: a 256th of the budget, but a batch of the background thread's as
    /// far as that is not more than a 64th, and 16 MiB at most. What is free is of no use to the
    /// program: with a 64th a Zipf load that has twice its budget misses 6 % more, and threads do
    /// not find frames without reclaim more often.
    const STEP_LEAST: u64 = 32;
    const STEP_BATCH: u64 = 128;
    const STEP_MOST: u64 = 4096;

    /// The three in pages of a budget of `limit` pages, as they were asked for.
    fn asked(&self, limit: u64) -> [u64; 3] {
        let min = self.min.pages(limit, (limit / 64).clamp(Self::MIN_LEAST, Self::MIN_MOST));
        let step = (limit / 64)
            .clamp(Self::STEP_LEAST, Self::STEP_BATCH)
            .max(limit / 256)
            .min(Self::STEP_MOST);
        let low = self.low.pages(limit, min + step);
        [min, low, self.high.pages(limit, low + step)]
    }

    /// Min, low and high in pages of a budget of `limit` pages: each above the one before, whatever
    /// the budget has become.
    pub fn pages(&self, limit: u64) -> [u64; 3] {
        let [min, low, high] = self.asked(limit);
        let min = min.max(Self::MIN_LEAST);
        let low = low.max(min + 1);
        [min, low, high.max(low + 1)]
    }

    /// Whether they rise, for a budget of `limit` pages.
    pub fn rise(&self, limit: u64) -> bool {
        let [min, low, high] = self.asked(limit);
        min < low && low < high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_shown_as_they_are_set() {
        let mark = |text: &str| text.parse::<Mark>();
        assert_eq!((mark("auto"), mark("1.5%")), (Ok(Mark::Auto), Ok(Mark::Share(150))));
        assert_eq!(
            (mark("50%"), mark("16M")),
            (Ok(Mark::Share(5000)), Ok(Mark::Size(Bytes(16 << 20))))
        );
        ["51%", "-1%", "%", "nan%", "much", ""]
            .iter()
            .for_each(|text| assert_eq!(mark(text), Err(()), "{text}"));
        let marks = |text: &str| text.parse::<Watermarks>();
        let three =
            Watermarks { min: Mark::Auto, low: Mark::Share(250), high: Mark::Size(Bytes(3 << 19)) };
        assert_eq!(marks("auto"), Ok(Watermarks::default()));
        assert_eq!(marks("auto/2.5%/1.5M"), Ok(three));
        ["", "1%", "1%/2%", "1%/2%/3%/4%", "1%/2%/60%"]
            .iter()
            .for_each(|text| assert_eq!(marks(text), Err(()), "{text}"));
        for text in ["auto", "auto/2.5%/1536K"] {
            assert_eq!(text.parse::<Watermarks>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn watermarks_follow_the_budget_and_rise() {
        let auto = Watermarks::default();
        assert_eq!(auto.pages(1 << 16), [1024, 1024 + 256, 1024 + 512]);
        assert_eq!(auto.pages(1 << 13), [128, 128 + 128, 128 + 256]);
        assert_eq!(
            auto.pages(1 << 22),
            [2048, 2048 + 4096, 2048 + 8192],
            "what is enough does not grow with the budget"
        );
        assert_eq!(auto.pages(1024), [96, 128, 160]);
        let shares =
            Watermarks { min: Mark::Share(200), low: Mark::Share(400), high: Mark::Share(1000) };
        assert_eq!(shares.pages(10_000), [200, 400, 1000]);
        assert!(shares.rise(10_000));
        // The reserve is what reclaim needs, however little is asked for; sizes are bounded by the
        // budget.
        assert_eq!(Watermarks { min: Mark::Size(Bytes(0)), ..auto }.pages(1 << 16)[0], 96);
        assert_eq!(
            Watermarks { high: Mark::Size(Bytes(1 << 40)), ..auto }.pages(1 << 16)[2],
            1 << 15
        );
        // What rises until then does after it.
        let low =
            Watermarks { min: Mark::Share(800), low: Mark::Share(900), high: Mark::Share(1000) };
        assert_eq!((low.rise(1024), low.pages(1024)), (true, [96, 97, 102]));
        // What is upside down is refused when the pool is made, and put right when its budget makes
        // it so.
        let upside_down = Watermarks { low: Mark::Size(Bytes(4096)), ..auto };
        assert!(!upside_down.rise(1 << 16));
        assert_eq!(upside_down.pages(1 << 16)[..2], [1024, 1025]);
        let high = Watermarks { high: Mark::Size(Bytes(8 << 20)), ..auto };
        assert!(high.rise(1 << 14) && !high.rise(1 << 20));
        assert!(high.pages(1 << 20).is_sorted_by(|low, high| low < high));
    }
}
