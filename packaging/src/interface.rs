//! The C interface: its header, what pkg-config knows of it, and the sections of its manual page,
//! which come from the header.

use crate::definition::Installed;
use crate::roff::{escaped, item, paragraph, paragraphs, section};
use crate::texts;

const HEADER: &str = include_str!("../../crates/c/overspill.h");

/// What is found from where the file lies, wherever that is put.
const PKG_CONFIG: &str = concat!(
    "prefix=${pcfiledir}/../..\n",
    "includedir=${prefix}/include\n",
    "libdir=${prefix}/lib\n",
    "\n",
    "Name: overspill\n",
    "Description: Regions of memory larger than their budget of RAM\n",
    "URL: ",
    env!("CARGO_PKG_REPOSITORY"),
    "\n",
    "Version: ",
    env!("CARGO_PKG_VERSION"),
    "\n",
    "Cflags: -I${includedir}\n",
    "Libs: -L${libdir} -loverspill\n",
    "Libs.private: -lgcc_s -lpthread -ldl -lm\n",
);

/// What C compilers look for.
pub fn files() -> Vec<Installed> {
    vec![
        ("include/overspill.h".to_owned(), HEADER.into()),
        ("lib/pkgconfig/overspill.pc".to_owned(), PKG_CONFIG.into()),
    ]
}

/// A definition of the header, or a part of one.
#[derive(Default)]
struct Declared {
    /// What is said before it: paragraphs.
    comment: String,
    /// Its lines.
    code: String,
}

impl Declared {
    fn is_function(&self) -> bool {
        self.code.ends_with(");")
    }

    /// The name that it gives.
    fn name(&self) -> &str {
        // That of a type follows its braces.
        let last = self.code.rsplit('}').next().unwrap_or_default();
        let before = last.split(['(', '=', ',', ';']).next().unwrap_or_default();
        before.trim().rsplit([' ', '*']).next().unwrap_or_default()
    }

    /// What stands between its braces.
    fn parts(&self) -> Vec<Declared> {
        let inside = self.code.split_once("{\n").and_then(|(_, rest)| rest.rsplit_once('}'));
        let lines = inside.map_or("", |(inside, _)| inside).lines();
        let lines: Vec<_> = lines.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
        declared(&lines.join("\n"))
    }
}

/// The definitions with a comment.
fn declared(text: &str) -> Vec<Declared> {
    let mut all = Vec::new();
    let mut now: Option<Declared> = None;
    let mut in_comment = false;
    for line in text.lines() {
        if line == "/**" {
            (now, in_comment) = (Some(Declared::default()), true);
        } else if line == " */" {
            in_comment = false;
        } else if let Some(one) = now.as_mut() {
            let (to, line) = match in_comment {
                true => (&mut one.comment, line.trim_start_matches(" *").trim_start()),
                false => (&mut one.code, line),
            };
            *to += &format!("{line}\n");
            let ends = line.ends_with([';', ',']) && !in_comment;
            let count = |brackets: [char; 2]| one.code.matches(brackets).count();
            if ends && count(['{', '(']) == count(['}', ')']) {
                one.code.truncate(one.code.trim_end().len());
                all.extend(now.take());
            }
        }
    }
    all
}

/// A prototype, whose lines are one, unless it is long.
fn prototype(function: &Declared) -> String {
    let words: Vec<_> = function.code.split_whitespace().collect();
    format!("{}\n.br\n", escaped(&words.join(" ")))
}

/// A definition with its comment, of which the first paragraph stands beside it.
fn explained(term: &str, comment: &str) -> String {
    let mut texts = paragraphs(comment).map(|text| text.replace('\n', " "));
    let first = texts.next().unwrap_or_default();
    let rest: String = texts.map(|text| format!(".IP\n{}\n", escaped(&text))).collect();
    item(term, &first) + &rest
}

/// Each part of a definition.
fn list(of: &Declared) -> String {
    of.parts().iter().map(|part| explained(part.name(), &part.comment)).collect()
}

/// The sections between the name of the page and the other pages.
pub fn sections() -> String {
    let all = declared(HEADER);
    let (functions, types): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.is_function());
    let named = |name: &str| {
        let found = types.iter().find(|one| one.name() == name);
        found.map_or(String::new(), |one| list(one))
    };
    let prototypes: String = functions.iter().map(|one| prototype(one)).collect();
    let include = ".nh\n.ad l\n#include <overspill.h>\n.sp\n";
    let explained: String =
        functions.iter().map(|one| explained(&format!("{}()", one.name()), &one.comment)).collect();
    let prose = |text: &str| paragraphs(text).map(paragraph).collect::<String>();
    section("SYNOPSIS", &format!("{include}{prototypes}.hy\n.ad b\n"))
        + &section("DESCRIPTION", &prose(texts::INTERFACE_DESCRIPTION))
        + &section("FUNCTIONS", &explained)
        + &section("OPTIONS", &(named("overspill_options") + &named("overspill_delivery")))
        + &section("ADVICE", &named("overspill_advice"))
        + &section("ERRORS", &named("overspill_error"))
        + &section("EXAMPLES", &prose(texts::INTERFACE_EXAMPLES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_of_the_header_is_explained() {
        let text = sections().replace("\\-", "-");
        let all = declared(HEADER);
        assert!(all.iter().filter(|one| one.is_function()).count() > 15);
        for one in &all {
            assert!(!one.comment.is_empty(), "{}", one.code);
            let is_opaque = one.code.starts_with("typedef struct") && one.parts().is_empty();
            let names = one.parts().iter().map(|part| part.name().to_owned()).collect::<Vec<_>>();
            for name in names.iter().map(String::as_str).chain([one.name()]) {
                let is_type = one.code.starts_with("typedef") && name == one.name();
                assert!(is_opaque || is_type || text.contains(name), "{name}\n{text}");
            }
        }
        for error in ["OVERSPILL_OK", "OVERSPILL_ERROR_SYSTEM", "OVERSPILL_ADVICE_COLD"] {
            assert!(text.contains(&format!(".TP\n\\fB{error}\\fR\n")), "{error}\n{text}");
        }
    }
}
