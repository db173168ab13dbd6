//! How values are written for people.

use indicatif::HumanCount;

pub type Format = fn(f64) -> String;

/// A whole number, with commas between thousands.
pub fn whole(value: f64) -> String {
    let text = HumanCount(value.abs().round_ties_even() as u64).to_string();
    if value < 0.0 && text != "0" { format!("-{text}") } else { text }
}

/// One digit after the point, more for values that have nothing before it.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => whole(value),
        v if v >= 1.0 || v == 0.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

pub fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// A gain, as percent with its sign.
pub fn gain(value: f64) -> String {
    format!("{:+.1} %", value * 100.0)
}

/// Bytes as MiB, whole.
pub fn mib(bytes: f64) -> String {
    whole(bytes / f64::from(1 << 20))
}

/// Bytes as MiB.
pub fn short_mib(bytes: f64) -> String {
    short(bytes / f64::from(1 << 20))
}

/// Nanoseconds as microseconds.
pub fn microseconds(ns: f64) -> String {
    short(ns / 1e3)
}

/// So many of a thing.
pub fn plural(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [0.0, 999.4, 1000.0, 1234567.5, -1234.0].map(whole),
            ["0", "999", "1,000", "1,234,568", "-1,234"]
        );
        assert_eq!([0.0, 0.01234, 12.34, 1234.0].map(short), ["0.0", "0.012", "12.3", "1,234"]);
        assert_eq!([percent(0.0312), gain(0.056), gain(-0.01)], ["3.1 %", "+5.6 %", "-1.0 %"]);
        assert_eq!([mib(2e9), short_mib(1e5), microseconds(1500.0)], ["1,907", "0.095", "1.5"]);
        assert_eq!([plural(1, "thread"), plural(2, "thread")], ["1 thread", "2 threads"]);
    }
}
