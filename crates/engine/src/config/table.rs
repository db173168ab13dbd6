//! Tables of settings: the parser, its refusals, the help and the documents come from one row.

use std::fmt;
use std::str::FromStr;

/// How values of a type are written.
pub(super) enum Form<V: 'static> {
    /// One of these words.
    Words(&'static [(&'static str, V)]),
    /// A word or a pattern of `values`.
    Text {
        /// For messages and help. What has an upper-case letter, `..` or `[` is a pattern.
        values: &'static [&'static str],
        /// The value of a text.
        parse: fn(&str) -> Option<V>,
        /// The text of a value.
        show: fn(&V) -> String,
    },
}

impl<V: Copy + PartialEq> Form<V> {
    /// That of a type that knows its texts itself.
    pub const fn text(values: &'static [&'static str]) -> Form<V>
    where
        V: FromStr + fmt::Display,
    {
        Form::Text { values, parse: |text| text.parse().ok(), show: |value| value.to_string() }
    }

    pub fn values(&self) -> Vec<&'static str> {
        match self {
            Form::Words(words) => words.iter().map(|(word, _)| *word).collect(),
            Form::Text { values, .. } => values.to_vec(),
        }
    }

    pub fn parse(&self, text: &str) -> Option<V> {
        match self {
            Form::Words(words) => {
                words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
            }
            Form::Text { parse, .. } => parse(text),
        }
    }

    pub fn show(&self, value: &V) -> String {
        match self {
            Form::Words(words) => {
                let found = words.iter().find(|(_, known)| known == value);
                found.map_or("another", |(word, _)| *word).to_owned()
            }
            Form::Text { show, .. } => show(value),
        }
    }
}

/// A switch.
pub(super) const SWITCH: Form<bool> = Form::Words(&[("on", true), ("off", false)]);

/// A row of a table: one setting of a `T`.
pub struct Setting<T: 'static> {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) values: fn() -> Vec<&'static str>,
    pub(super) set: fn(&mut T, &str) -> Option<()>,
    pub(super) show: fn(&T) -> String,
}

/// A row: its name, the field that it sets, how values of that are written, and the meaning.
macro_rules! setting {
    ($name:literal, $($field:ident).+, $form:expr, $meaning:literal) => {
        $crate::config::table::Setting {
            name: $name,
            meaning: $meaning,
            values: || $form.values(),
            set: |of, text| {
                of.$($field).+ = $form.parse(text)?;
                Some(())
            },
            show: |of| $form.show(&of.$($field).+),
        }
    };
}
pub(super) use setting;

impl<T> Setting<T> {
    /// Its name, as in `out`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it means, in a sentence or a few.
    pub fn meaning(&self) -> &'static str {
        self.meaning
    }

    /// The values that it takes: words, and patterns such as `1..16` or `SIZE`.
    pub fn values(&self) -> Vec<&'static str> {
        (self.values)()
    }

    /// How it is set in `of`.
    pub fn show(&self, of: &T) -> String {
        (self.show)(of)
    }

    fn set(&self, of: &mut T, value: &str) -> Result<(), BadSetting> {
        (self.set)(of, value).ok_or_else(|| {
            let (name, values) = (self.name, self.values().join("|"));
            BadSetting(format!("setting {name} cannot be '{value}': it takes {values}"))
        })
    }
}

impl<T> fmt::Debug for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setting({})", self.name)
    }
}

/// Finds a row by its name.
pub(super) fn find<T>(table: &'static [Setting<T>], name: &str) -> Option<&'static Setting<T>> {
    table.iter().find(|setting| setting.name == name)
}

/// Applies a list such as `out=move,folio=1` to `of`; `kind` is what the table has rows of.
pub(super) fn apply<T>(
    table: &'static [Setting<T>],
    kind: &str,
    of: &mut T,
    list: &str,
) -> Result<(), BadSetting> {
    for item in items(list) {
        let (name, value) = item?;
        let setting = find(table, name).ok_or_else(|| {
            let known: Vec<_> = table.iter().map(Setting::name).collect();
            let known = known.join(", ");
            BadSetting(format!("there is no {kind} '{name}': choose one of {known}"))
        })?;
        setting.set(of, value)?;
    }
    Ok(())
}

/// The names and values of a list.
pub(super) fn items(list: &str) -> impl Iterator<Item = Result<(&str, &str), BadSetting>> {
    list.split(',').filter(|item| !item.is_empty()).map(|item| {
        item.split_once('=')
            .ok_or_else(|| BadSetting(format!("setting '{item}' has no value: write KEY=VALUE")))
    })
}

/// Why a setting was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSetting(String);

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSetting {}

/// Checks a table: names differ, the default and each word parse and show as themselves, and what
/// the default is changes nothing.
#[cfg(test)]
pub(super) fn check<T: Default + fmt::Debug>(table: &'static [Setting<T>]) {
    for (i, setting) in table.iter().enumerate() {
        let name = setting.name;
        assert!(table[..i].iter().all(|other| other.name != name), "{name} is there twice");
        assert!(setting.meaning.ends_with('.'), "{name}: sentences");
        let mut of = T::default();
        let default = setting.show(&of);
        setting.set(&mut of, &default).unwrap();
        assert_eq!(format!("{of:?}"), format!("{:?}", T::default()), "{name}={default}");
        let pattern = |value: &str| {
            value.contains("..") || value.contains(|c: char| c == '[' || c.is_ascii_uppercase())
        };
        for word in setting.values().into_iter().filter(|value| !pattern(value)) {
            setting.set(&mut of, word).unwrap();
            assert_eq!(setting.show(&of), word, "{name}");
        }
        let refused = setting.set(&mut of, "no such value").unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains(&setting.values().join("|")));
    }
}
