//! Cases and rows: what is measured, and what was.

use super::format::plural;
use crate::measure::*;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// One row: a step, and what it is measured with.
#[derive(Clone, Debug)]
pub struct Case<K = ()> {
    pub step: String,
    /// What tells it from other cases of the step.
    pub labels: Vec<(&'static str, Value)>,
    /// Figures published by the origin of the mechanism.
    pub reference: Option<Value>,
    /// What the bench needs to know of it besides.
    pub what: K,
}

impl<K> fmt::Display for Case<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.step)?;
        self.labels.iter().try_for_each(|(name, value)| write!(f, ", {}", word(name, value)))
    }
}

#[derive(Clone, Debug)]
pub struct Row {
    pub step: String,
    /// What else tells this row from others, such as `threads`.
    pub labels: Map<String, Value>,
    /// Figures published by the origin of the mechanism.
    pub reference: Option<Value>,
    pub figures: BTreeMap<String, Spread>,
}

impl Row {
    pub fn new<K>(case: &Case<K>, series: &Series) -> Row {
        let labels = case.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Row {
            step: case.step.clone(),
            labels: labels.collect(),
            reference: case.reference.clone(),
            figures: summarise(series),
        }
    }

    pub fn get(&self, figure: &str) -> Option<Spread> {
        self.figures.get(figure).copied()
    }

    /// A label as people read it; nothing if it has none of this name.
    pub fn label(&self, name: &str) -> String {
        self.labels.get(name).map_or(String::new(), text)
    }

    /// All labels in words, in the order of `names`.
    pub fn told(&self, names: &[&str]) -> String {
        let of = |name: &&str| Some(word(name, self.labels.get(*name)?));
        names.iter().filter_map(of).collect::<Vec<_>>().join(", ")
    }
}

/// What there is by what a key says of it, in the order in which the keys come up; what has none is
/// left out.
pub fn grouped<T>(
    all: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> Option<String>,
) -> Vec<(String, Vec<T>)> {
    let mut groups: Vec<(String, Vec<T>)> = Vec::new();
    for (one, key) in all.into_iter().filter_map(|one| key(&one).map(|key| (one, key))) {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, mine)) => mine.push(one),
            None => groups.push((key, vec![one])),
        }
    }
    groups
}

/// A value as people read it: text without quotes.
pub fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub fn word(name: &str, value: &Value) -> String {
    match (name, value.as_u64()) {
        ("threads", Some(n)) => plural(n, "thread"),
        ("overcommit", Some(n)) => format!("{n}x"),
        ("tier", _) => format!("tier {}", text(value)),
        _ => text(value),
    }
}

/// An object of what each of these is, by its name.
pub fn by_name<N: ToString, V: Into<Value>>(all: impl IntoIterator<Item = (N, V)>) -> Value {
    Value::Object(all.into_iter().map(|(name, value)| (name.to_string(), value.into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_are_told_in_words() {
        let labels = vec![("threads", json!(1)), ("tier", json!("off")), ("case", json!("zero"))];
        let case = Case { step: "x".to_owned(), labels, reference: None, what: () };
        let row = Row::new(&case, &Series::new());
        assert_eq!(row.told(&["case", "tier", "none", "threads"]), "zero, tier off, 1 thread");
        assert_eq!((row.label("tier"), row.label("none")), ("off".to_owned(), String::new()));
    }
}
