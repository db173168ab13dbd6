//! The documentation says what is so: its commands run, and its links lead somewhere.
//!
//! How a page says what is to be run is in [`overspill_tests::documents`]. Each block of commands
//! runs in a directory of its own that has `job.py`, a program to run, and in which the page's
//! `/var/tmp` and `/scratch` lie. A block with commands for running jobs gets one: its process is
//! the page's 384.

use overspill_tests::documents::{
    Block, Mark, Run, Shown, anchors, blocks, files, links, same_output, sentences,
};
use overspill_tests::job::Job;
use overspill_tests::process::run;
use overspill_tests::{Scratch, clean, is_root, overspill, repository, skipped};
use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// The page beside those of the guide whose commands are run.
const PAGE: &str = "README.md";
const GUIDE: &str = "docs/guide";
/// Longest that a command may take; on a machine that does nothing else it is a few seconds.
const LIMIT: Duration = Duration::from_secs(120);
/// The job that pages speak of.
const PAGES_PID: &str = "--pid 384";
/// The directories that pages speak of.
const PAGES_DIRS: [&str; 2] = ["/var/tmp", "/scratch"];
/// Its budget, and what it holds in MiB: a third more than fits, so that it swaps.
const JOB_MEMORY: &str = "64M";
const JOB_MIB: &str = "96";
/// What pages call their program: it holds some 40 MiB.
const PROGRAM: &str = "\
import sys
values = list(range(1_000_000))
print(sum(values))
";

/// What commands for running jobs begin with.
const ABOUT_JOBS: [&str; 7] = [
    "overspill stat",
    "overspill top",
    "overspill metrics",
    "overspill set ",
    "overspill reclaim ",
    "overspill swapon",
    "overspill swapoff",
];

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages whose commands are run, from the root of the repository.
fn tested_pages() -> Vec<String> {
    let guide = fs::read_dir(repository().join(GUIDE)).expect("there is a guide").flatten();
    let names = guide.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut pages: Vec<_> = names.map(|name| format!("{GUIDE}/{name}")).collect();
    pages.push(PAGE.to_owned());
    pages.sort();
    pages
}

fn blocks_of(page: &str) -> Vec<Block> {
    blocks(&read(&repository().join(page))).unwrap_or_else(|error| panic!("{page}, {error}"))
}

/// Where a block runs, and what it runs beside.
struct Surroundings {
    overspill: &'static Path,
    room: overspill_tests::scratch::Room,
    job: Option<Job>,
    runtime: PathBuf,
}

impl Surroundings {
    /// For a block; `None` where nothing can be run under overspill.
    fn new(name: &str, block: &Block) -> Option<Surroundings> {
        let overspill = overspill(&SCRATCH)?;
        let room = SCRATCH.room(name);
        fs::write(room.path.join("job.py"), PROGRAM).unwrap();
        for dir in PAGES_DIRS {
            fs::create_dir_all(inside(&room.path, dir)).unwrap();
        }
        let is_about_jobs = |command: &str| ABOUT_JOBS.iter().any(|about| command.contains(about));
        let wants_job = block.commands.iter().any(|shown| is_about_jobs(&shown.command));
        let swap = format!("{}:1G", inside(&room.path, "/var/tmp"));
        let options = ["--memory", JOB_MEMORY, "--swap", &swap];
        let job =
            if wants_job { Some(Job::churn(&SCRATCH, name, &options, &[JOB_MIB])?) } else { None };
        let runtime = job.as_ref().map_or_else(|| room.path.join("run"), |job| job.runtime.clone());
        fs::create_dir_all(&runtime).unwrap();
        Some(Surroundings { overspill, room, job, runtime })
    }

    /// A command of a page as it is run here, and how it ends.
    fn run(&self, shown: &Shown) -> (i32, String) {
        let mut text = shown.command.strip_prefix("sudo ").unwrap_or(&shown.command).to_owned();
        if let Some(job) = &self.job {
            text = text.replace(PAGES_PID, &format!("--pid {}", job.pid()));
        }
        for dir in PAGES_DIRS {
            text = text.replace(dir, &inside(&self.room.path, dir));
        }
        let home = self.overspill.parent().expect("it lies in a directory");
        let path = env::var_os("PATH").unwrap_or_default();
        // The system's own programs first: in PATH they may be scripts of version managers.
        let first = [home.to_owned(), "/usr/bin".into(), "/bin".into()];
        let path = env::join_paths(first.into_iter().chain(env::split_paths(&path)));
        let mut command = Command::new("sh");
        clean(&mut command)
            .args(["-c", &format!("exec 2>&1\n{text}")])
            .current_dir(&self.room.path)
            .env("PATH", path.expect("no colon in the path of the target directory"))
            .env("TMPDIR", inside(&self.room.path, "/var/tmp"))
            .env("XDG_STATE_HOME", self.room.path.join("state"))
            .env("OVERSPILL_RUNTIME_DIR", &self.runtime);
        let outcome = run(&mut command, LIMIT);
        (outcome.status, outcome.stdout.replace(self.room.path.to_str().unwrap(), ""))
    }
}

/// A directory of a page inside of a room.
fn inside(room: &Path, dir: &str) -> String {
    format!("{}{dir}", room.display())
}

/// Why a block cannot be run here.
fn is_left_out(how: &Run, block: &Block) -> Option<String> {
    let as_root = block.commands.iter().any(|shown| shown.command.starts_with("sudo "));
    if (how.as_root || as_root) && !is_root() {
        return Some("it is for root".into());
    }
    let is_there = |program: &String| Command::new(program).arg("--version").output().is_ok();
    how.needs.iter().find(|program| !is_there(program)).map(|name| format!("there is no {name}"))
}

fn run_block(page: &str, how: &Run, block: &Block) {
    let line = block.commands[0].line;
    if let Some(reason) = is_left_out(how, block) {
        return skipped(&format!("{page}, line {line}: {reason}"));
    }
    let name = format!("{}-{line}", page.rsplit('/').next().unwrap().trim_end_matches(".md"));
    let Some(surroundings) = Surroundings::new(&name, block) else { return };
    for (at, shown) in block.commands.iter().enumerate() {
        let began = Instant::now();
        let (status, printed) = surroundings.run(shown);
        eprintln!("{page}, line {}: {:.1?}", shown.line, began.elapsed());
        let expected = if at + 1 == block.commands.len() { how.status } else { 0 };
        let (line, command) = (shown.line, &shown.command);
        assert_eq!(status, expected, "{page}, line {line}: {command}\n{printed}");
        if how.output {
            let said = shown.output.join("\n");
            assert!(
                same_output(&shown.output, &printed),
                "{page}, line {line}: {command}\nprints\n{printed}\nand the page says\n{said}"
            );
        }
    }
    if let Some(job) = surroundings.job {
        job.end_churn();
    }
}

/// Runs what a page says.
fn page(page: &str) {
    for block in blocks_of(page) {
        if let Mark::Run(how) = &block.mark {
            run_block(page, how, &block);
        }
    }
}

// A test each, so that they run side by side.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        $(
            #[test]
            fn $name() {
                page($page);
            }
        )*

        #[test]
        fn no_page_is_forgotten() {
            assert_eq!(tested_pages(), [$($page),*]);
        }
    };
}

pages! {
    readme: "README.md",
    c: "docs/guide/c.md",
    compare: "docs/guide/compare.md",
    devices: "docs/guide/devices.md",
    install: "docs/guide/install.md",
    library: "docs/guide/library.md",
    limits: "docs/guide/limits.md",
    python: "docs/guide/python.md",
    run_a_program: "docs/guide/run.md",
    settings: "docs/guide/settings.md",
    size: "docs/guide/size.md",
    troubleshooting: "docs/guide/troubleshooting.md",
    watching: "docs/guide/watching.md",
}

#[test]
fn two_thirds_of_the_commands_are_run() {
    let (mut run, mut left) = (0, 0);
    for block in tested_pages().iter().flat_map(|page| blocks_of(page)) {
        match block.mark {
            Mark::Run(_) => run += block.commands.len(),
            Mark::Not(_) => left += block.commands.len(),
        }
    }
    assert!(run >= 2 * left, "{run} commands are run and {left} are not");
}

#[test]
fn every_link_leads_somewhere() {
    let mut found: HashMap<PathBuf, _> = HashMap::new();
    let mut broken = Vec::new();
    for page in files(".md") {
        for (line, target) in links(&read(&page)) {
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let to = match file {
                "" => page.clone(),
                file => page.parent().expect("a file lies in a directory").join(file),
            };
            let is_page = to.extension().is_some_and(|extension| extension == "md");
            let leads = to.exists()
                && (heading.is_empty()
                    || !is_page
                    || found
                        .entry(to.clone())
                        .or_insert_with(|| anchors(&read(&to)))
                        .contains(heading));
            if !leads {
                let from = page.strip_prefix(repository()).unwrap_or(&page);
                broken.push(format!("{}, line {line}: {target}", from.display()));
            }
        }
    }
    assert!(broken.is_empty(), "these links lead nowhere:\n{}", broken.join("\n"));
}

/// What cargo warns of when a crate is published without it.
#[test]
fn a_crate_has_what_a_registry_asks_for_or_is_not_published() {
    let mut published = 0;
    for manifest in files("Cargo.toml") {
        let text = read(&manifest);
        if !text.contains("[package]") || text.contains("publish = false") {
            continue;
        }
        for field in ["description", "license", "repository"] {
            let is_there = text.lines().any(|line| line.starts_with(field));
            assert!(is_there, "{}: there is no {field}", manifest.display());
        }
        published += 1;
    }
    assert_eq!(published, 4, "the engine, the command, and what they are built on");
}

#[test]
fn overspill_says_what_the_page_of_its_sentences_says() {
    let page = format!("{GUIDE}/troubleshooting.md");
    let speaks = ["crates", "torture"].map(|folder| repository().join(folder));
    let sources = files(".rs").into_iter();
    let sources = sources.filter(|file| speaks.iter().any(|folder| file.starts_with(folder)));
    let code: String = sources.map(|file| in_one_line(&read(&file))).collect();
    let text = read(&repository().join(&page));
    let parts = sentences(&text);
    assert!(parts.len() > 100, "{} parts of sentences", parts.len());
    let unsaid: Vec<_> = parts.into_iter().filter(|(_, part)| !code.contains(part)).collect();
    assert!(unsaid.is_empty(), "{page}: nobody says this any more: {unsaid:#?}");
}

/// Source text with its string literals in one line each.
fn in_one_line(source: &str) -> String {
    let mut lines = source.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}
