//! Small graphs of one line: a mark a value.

/// Marks from nothing to all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks(&'static [char]);

impl Marks {
    /// Blocks, eight of them in the height of a line.
    pub const BLOCKS: Marks = Marks(&[' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']);
    /// For terminals that have no others.
    pub const ASCII: Marks = Marks(&[' ', '.', ':', '-', '=', '+', '*', '#', '@']);

    /// Those that a locale has.
    pub fn of_locale(variable: impl Fn(&str) -> Option<String>) -> Marks {
        // The first that is set counts, as in setlocale(3).
        let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") {
            Marks::BLOCKS
        } else {
            Marks::ASCII
        }
    }

    /// Values as a graph that is `highest` high. What is more than nothing has a mark.
    pub fn graph(self, values: impl IntoIterator<Item = f64>, highest: f64) -> String {
        let top = self.0.len() - 1;
        let mark = |value: f64| {
            let part = if highest > 0.0 { (value / highest).clamp(0.0, 1.0) } else { 0.0 };
            self.0[((part * top as f64).ceil() as usize).min(top)]
        };
        values.into_iter().map(mark).collect()
    }

    /// A bar of so many columns of which a part is full.
    pub fn bar(self, part: f64, columns: usize) -> String {
        let [full, empty] = if self == Marks::BLOCKS { ['█', '░'] } else { ['#', '-'] };
        let filled = ((part.clamp(0.0, 1.0) * columns as f64).round() as usize).min(columns);
        (0..columns).map(|at| if at < filled { full } else { empty }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_seen() {
        let graph = |values: &[f64]| Marks::BLOCKS.graph(values.iter().copied(), 8.0);
        assert_eq!(graph(&[0.0, 0.01, 1.0, 4.0, 7.5, 8.0, 9.0, f64::NAN]), " ▁▁▄███ ");
        assert_eq!(Marks::BLOCKS.graph([0.0, 1.0], 0.0), "  ");
        assert_eq!(Marks::ASCII.graph([0.0, 1.0, 2.0], 2.0), " =@");
    }

    #[test]
    fn a_bar_is_as_long_as_it_is_told() {
        assert_eq!(Marks::ASCII.bar(0.5, 4), "##--");
        assert_eq!(Marks::BLOCKS.bar(2.0, 2), "██");
        assert_eq!(Marks::ASCII.bar(f64::NAN, 2), "--");
    }

    #[test]
    fn the_locale_tells_the_marks() {
        let marks = |all: &str, lang: &str| {
            let value = |name: &str| match name {
                "LC_ALL" => Some(all.to_owned()),
                "LANG" => Some(lang.to_owned()),
                _ => None,
            };
            Marks::of_locale(value)
        };
        assert_eq!(marks("", "C.UTF-8"), Marks::BLOCKS);
        assert_eq!(marks("de_DE.utf8", "C"), Marks::BLOCKS);
        assert_eq!(marks("C", "en_US.UTF-8"), Marks::ASCII);
        assert_eq!(Marks::of_locale(|_| None), Marks::ASCII);
    }
}
