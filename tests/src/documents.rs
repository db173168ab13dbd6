//! Pages of the documentation as tests see them: commands with what they print, and links.
//!
//! A command stands in a fenced block of the language `console`, after `$ `, and what it prints
//! below it. A comment on the line before the block, [`Mark`], says how the block is tested:
//!
//! - `<!-- test: not run: WHY -->`: it is not run, for this reason;
//! - `<!-- test: run, OPTION, ... -->` with `output` (what it prints is compared, see
//!   [`same_output`]), `status N` (how it ends), `as root` (left out for other users), `needs
//!   PROGRAM` (left out where that is missing).
//!
//! A block without a mark is run, and each of its commands has to end with 0.

use crate::repository;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What stands in a page for any number of lines of output, or for the rest of a line.
const ANY: &str = "...";
/// Fewest words in which a mark can say why something is not run.
const REASON_WORDS: usize = 3;
/// Least length of a part of a sentence that tells something.
const SENTENCE_PART: usize = 8;
/// Units that follow a number, and vary with it.
const UNITS: [&str; 14] =
    ["B", "KiB", "MiB", "GiB", "TiB", "K", "M", "G", "T", "ns", "us", "ms", "s", "MiB/s"];

/// How a block is tested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// It is run.
    Run(Run),
    /// It is not run, for this reason.
    Not(String),
}

/// How a block is run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// What is printed has to be what the page says.
    pub output: bool,
    /// How the last command ends; the others end with 0.
    pub status: i32,
    /// Only for root.
    pub as_root: bool,
    /// Programs that must be there.
    pub needs: Vec<String>,
}

/// A command of a page, and what it is said to print.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Its line in the page, counted from 1.
    pub line: usize,
    /// As it is typed.
    pub command: String,
    /// Lines of output.
    pub output: Vec<String>,
}

/// A block of commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// How it is tested.
    pub mark: Mark,
    /// Its commands.
    pub commands: Vec<Shown>,
}

/// The blocks of commands of a page; an error names the line.
pub fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let (mut mark, mut language, mut indent) = (None, None, 0);
    let mut lines: Vec<(usize, &str)> = Vec::new();
    for (line, text) in (1..).zip(page.lines()) {
        let at = |error: String| format!("line {line}: {error}");
        match (language, text.trim_start().strip_prefix("```")) {
            (None, Some(tag)) => {
                language = Some(tag);
                indent = text.len() - text.trim_start().len();
            }
            (None, None) if text.trim().is_empty() => {}
            (None, None) => match mark_text(text) {
                Some(text) => mark = Some((line, Mark::parse(text).map_err(at)?)),
                None => not_followed(mark.take())?,
            },
            (Some("console"), Some(_)) => {
                let mark = mark.take().map_or_else(|| Mark::Run(Run::default()), |(_, mark)| mark);
                let commands = commands(&std::mem::take(&mut lines)).map_err(at)?;
                blocks.push(Block { mark, commands });
                language = None;
            }
            (Some("console"), None) => lines.push((line, text.get(indent..).unwrap_or_default())),
            (Some("sh" | "bash" | "shell"), _) => {
                return Err(at("commands stand in blocks of the language console".into()));
            }
            (Some(_), end) => {
                not_followed(mark.take())?;
                language = language.filter(|_| end.is_none());
            }
        }
    }
    not_followed(mark)?;
    Ok(blocks)
}

/// What a line says of the test of the next block.
fn mark_text(line: &str) -> Option<&str> {
    Some(line.trim().strip_prefix("<!-- test:")?.strip_suffix("-->")?.trim())
}

fn not_followed(mark: Option<(usize, Mark)>) -> Result<(), String> {
    mark.map_or(Ok(()), |(line, _)| Err(format!("line {line}: no block of commands follows")))
}

/// The commands of a block. One that ends in a backslash goes on in the next line.
fn commands(lines: &[(usize, &str)]) -> Result<Vec<Shown>, String> {
    let mut commands: Vec<Shown> = Vec::new();
    let mut goes_on = false;
    for (line, text) in lines.iter().copied() {
        match (text.strip_prefix("$ "), commands.last_mut()) {
            (None, Some(shown)) if goes_on => {
                shown.command += "\n";
                shown.command += text;
            }
            (Some(command), _) => {
                commands.push(Shown { line, command: command.to_owned(), output: Vec::new() });
            }
            (None, Some(shown)) => shown.output.push(text.to_owned()),
            (None, None) => return Err("the block begins with no command".into()),
        }
        let command = commands.last().filter(|shown| shown.output.is_empty());
        goes_on = command.is_some_and(|shown| shown.command.ends_with('\\'));
    }
    if commands.is_empty() { Err("the block is empty".into()) } else { Ok(commands) }
}

impl Mark {
    fn parse(text: &str) -> Result<Mark, String> {
        if let Some(reason) = text.strip_prefix("not run:") {
            return match reason.split_whitespace().count() {
                REASON_WORDS.. => Ok(Mark::Not(reason.trim().to_owned())),
                _ => Err("the mark does not say why the block is not run".into()),
            };
        }
        let mut items = text.split(',').map(str::trim);
        if items.next() != Some("run") {
            return Err(format!("'{text}' is neither 'run' nor 'not run: WHY'"));
        }
        let mut run = Run::default();
        for item in items {
            match item.split_once(' ') {
                None if item == "output" => run.output = true,
                Some(("as", "root")) => run.as_root = true,
                Some(("needs", program)) => run.needs.push(program.to_owned()),
                Some(("status", status)) => {
                    run.status = status.parse().map_err(|_| format!("'{item}' is no status"))?;
                }
                _ => return Err(format!("'{item}' is not known")),
            }
        }
        Ok(Mark::Run(run))
    }
}

/// Whether a command printed what a page says: the same lines, with any numbers and units in them
/// and any blanks between words. Lines that are alike then, one after the other, count once. A line
/// `...` of the page stands for any lines, and at the end of a line it stands for any words.
pub fn same_output(page: &[String], printed: &str) -> bool {
    let page = without_numbers(page.iter().map(String::as_str));
    let printed = without_numbers(printed.lines());
    fn same(page: &[String], printed: &[String]) -> bool {
        match page {
            [] => printed.is_empty(),
            [any, page @ ..] if any == ANY => {
                (0..=printed.len()).any(|skipped| same(page, &printed[skipped..]))
            }
            [line, page @ ..] => printed
                .split_first()
                .is_some_and(|(first, printed)| same_line(line, first) && same(page, printed)),
        }
    }
    fn same_line(page: &str, printed: &str) -> bool {
        match page.strip_suffix(ANY) {
            Some(begin) => printed.starts_with(begin.trim_end()),
            None => printed == page,
        }
    }
    same(&page, &printed)
}

fn without_numbers<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut lines: Vec<String> = lines.map(without_number).collect();
    lines.dedup();
    lines
}

/// A line with `#` for each number and its unit, and a blank between words.
fn without_number(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let mut text = String::new();
        for (before, here) in std::iter::once(None).chain(word.chars().map(Some)).zip(word.chars())
        {
            let goes_on = before.is_some_and(|before| before.is_ascii_digit())
                || (text.ends_with('#') && matches!(before, Some('.' | ',')));
            match here {
                '0'..='9' if goes_on => {}
                '0'..='9' => text.push('#'),
                '.' | ',' if text.ends_with('#') => {}
                here => text.push(here),
            }
        }
        let bare = text.trim_end_matches([',', ')', ';', ':']);
        let (bare, end) = text.split_at(bare.len());
        let attached = bare.strip_prefix('#').is_some_and(|unit| UNITS.contains(&unit));
        let follows = words.last().is_some_and(|last| last.ends_with('#'));
        if attached {
            words.push(format!("#{end}"));
        } else if follows && UNITS.contains(&bare) {
            words.last_mut().expect("there is one").push_str(end);
        } else {
            words.push(text);
        }
    }
    words.join(" ")
}

/// What a page says that overspill says: the parts of its sentences between what varies, with their
/// lines. Sentences stand in tables with the head `sentence`; `…`, PATH, NAME, SIZE, WORD and N are
/// what varies, and a semicolon separates sentences.
pub fn sentences(page: &str) -> Vec<(usize, &str)> {
    let is_varying = |word: &str| matches!(word, "PATH" | "NAME" | "SIZE" | "WORD" | "N");
    let mut found = Vec::new();
    let mut inside = false;
    for (line, text) in prose(page) {
        let Some(cell) = text.strip_prefix("| ").and_then(|row| row.split(" | ").next()) else {
            inside &= text.starts_with('|');
            continue;
        };
        if !inside {
            inside = cell == "sentence";
            continue;
        }
        let ends = |c: char| matches!(c, '…' | ';' | ',' | ':' | '=' | '(' | ')' | '\'');
        for part in cell.split(ends) {
            let mut from = 0;
            for (at, word) in part.split(' ').scan(0, |at, word| {
                *at += word.len() + 1;
                Some((*at - word.len() - 1, word))
            }) {
                if is_varying(word) {
                    found.push((line, part[from..at].trim()));
                    from = at + word.len();
                }
            }
            found.push((line, part[from..].trim()));
        }
    }
    found.retain(|(_, part)| part.len() >= SENTENCE_PART);
    found
}

/// All files of the repository whose names end so, by path.
pub fn files(end: &str) -> Vec<PathBuf> {
    fn collect(dir: &Path, end: &str, found: &mut Vec<PathBuf>) {
        let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if path.is_dir() && !path.is_symlink() && !name.starts_with('.') && name != "target" {
                collect(&path, end, found);
            } else if name.ends_with(end) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(repository(), end, &mut found);
    found.sort();
    found
}

/// The links of a page with their lines, but for those to other hosts.
pub fn links(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, text) in prose(page) {
        // What stands between backquotes is no link.
        let text: String = text.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let inside = targets.filter(|target| !target.contains("://") && !target.contains(' '));
        found.extend(inside.map(|target| (line, target.to_owned())));
    }
    found
}

/// The names by which headings of a page are linked to, as GitHub makes them.
pub fn anchors(page: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    for (_, text) in prose(page) {
        let Some((marks, title)) = text.split_once(' ') else { continue };
        if marks.is_empty() || !marks.trim_start_matches('#').is_empty() {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let name: String = title.trim().to_lowercase().chars().filter(kept).collect();
        let name = name.replace(' ', "-");
        let numbered = (1..).map(|n| format!("{name}-{n}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        anchors.insert(names.find(|name| !anchors.contains(name)).expect("there are enough"));
    }
    anchors
}

/// The lines of a page outside of fenced blocks.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(page.lines()).filter(move |(_, text)| {
        let fence = text.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn blocks_are_read_with_their_marks() {
        let page = "text\n\n<!-- test: run, output, status 1, as root, needs sort -->\n\n\
                    ```console\n$ one \\\n  more\nout\n\n$ two\n```\n\n\
                    ```rust\nlet x;\n```\n- item\n\n  ```console\n  $ three\n  out\n  ```\n\
                    <!-- test: not run: it takes an hour -->\n```console\n$ four\n```\n";
        let found = blocks(page).unwrap();
        let run = Run { output: true, status: 1, as_root: true, needs: vec!["sort".into()] };
        assert_eq!(found[0].mark, Mark::Run(run));
        let one = Shown { line: 6, command: "one \\\n  more".into(), output: lines("out\n\n") };
        assert_eq!(found[0].commands[0], one);
        assert_eq!((found[0].commands[1].line, found[0].commands.len()), (10, 2));
        assert_eq!(found[1].mark, Mark::Run(Run::default()));
        let three = Shown { line: 19, command: "three".into(), output: lines("out") };
        assert_eq!(found[1].commands, [three]);
        assert_eq!(found[2].mark, Mark::Not("it takes an hour".into()));
    }

    #[test]
    fn mistakes_of_a_page_are_named_with_their_line() {
        for (page, part) in [
            ("<!-- test: not run: -->\n```console\n$ x\n```\n", "does not say why"),
            ("<!-- test: not run: slow -->\n```console\n$ x\n```\n", "does not say why"),
            ("<!-- test: run, quickly -->\n```console\n$ x\n```\n", "'quickly'"),
            ("<!-- test: skip -->\n```console\n$ x\n```\n", "'skip'"),
            ("<!-- test: run, output -->\ntext\n", "no block"),
            ("<!-- test: run, output -->\n", "no block"),
            ("<!-- test: run -->\n```text\nx\n```\n", "no block"),
            ("```console\nx\n```\n", "begins with no command"),
            ("```bash\nx\n```\n", "language console"),
        ] {
            let error = blocks(page).unwrap_err();
            assert!(error.starts_with("line ") && error.contains(part), "{page}: {error}");
        }
    }

    #[test]
    fn outputs_are_compared_without_numbers() {
        let page = lines("256 MiB -> 96 MiB, 90.2 MiB in use by 1 process");
        assert!(same_output(&page, "1 GiB  -> 96.5 MiB, 900 KiB in use by 1 process\n"));
        assert!(!same_output(&page, "256 MiB -> 96 MiB, 90 MiB in use by 2 processes\n"));
        assert!(!same_output(&page, ""));
        let page = lines("a 1,234 (3.4:1)\nleft 5 pages, 12 MiB/s\n...\nend 4s");
        assert!(same_output(
            &page,
            "a 7 (12.1:1)\nleft 9 pages, 1 MiB/s\nleft 8 pages, 2 MiB/s\nx\nend 1.5s"
        ));
        assert!(same_output(&page, "a 7 (1:1)\nleft 9 pages, 1 MiB/s\nend 10ms"));
        assert!(!same_output(&page, "a 7 (1:1)\nleft 9 pages, 1 MiB/s\nend"));
        let page = lines("a 7 B ...\nb");
        assert!(same_output(&page, "a 6 B (1:1)\nb") && same_output(&page, "a 0 B\nb"));
        assert!(!same_output(&page, "b 7 B\nb") && !same_output(&page, "a 7 B\nc"));
    }

    #[test]
    fn sentences_are_taken_apart_at_what_varies() {
        let page = "| sentence | what to do |\n|---|---|\n\
                    | process N belongs to user N; is too small (here) | Nothing. |\n\n\
                    | other | table |\n|---|---|\n| a long sentence | x |\n";
        assert_eq!(sentences(page), [(3, "belongs to user"), (3, "is too small")]);
    }

    #[test]
    fn links_and_headings_are_found() {
        let page = "# One, two\n## `a` b\n## `a` b\n[x](y.md#z) `[no](no.md)` [h](https://h)\n\
                    ```text\n# no\n[no](no.md)\n```\n";
        assert_eq!(links(page), [(4, "y.md#z".to_owned())]);
        let names = ["one-two", "a-b", "a-b-1"].map(str::to_owned);
        assert_eq!(anchors(page), HashSet::from(names));
    }
}
