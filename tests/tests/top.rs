//! The live view, `overspill top`, on a real terminal: tmux, whose screens are compared. Figures
//! are masked, and graphs are left out.

use overspill_tests::documents::same_output;
use overspill_tests::job::{Job, refused};
use overspill_tests::process::{run, running, wait_until};
use overspill_tests::{Scratch, TIME_LIMIT, binary, skipped};
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// A job that swaps all the time, in a directory with a short name.
fn busy(name: &str) -> Option<Job> {
    Job::churn(&SCRATCH, name, &["--memory", "16M", "--swap", "/var/tmp:1G"], &["64"])
}

fn has_tmux() -> bool {
    let there = Command::new("tmux").arg("-V").output().is_ok();
    if !there {
        skipped("there is no tmux");
    }
    there
}

/// A terminal of 80 columns and 24 lines in which a shell command runs. It ends when dropped.
struct Terminal {
    socket: PathBuf,
    /// What it has shown last.
    screen: RefCell<String>,
}

impl Terminal {
    /// With `overspill top ARGUMENTS` for the jobs where this one is, and then its exit status.
    fn top(job: &Job, variables: &str, arguments: &str) -> Terminal {
        // Not in the directory of the job, which the terminal may outlive.
        let socket = std::env::temp_dir().join(format!("overspill-tmux.{}", job.pid()));
        let terminal = Terminal { socket, screen: RefCell::default() };
        let command = format!(
            "env -u NO_COLOR OVERSPILL_RUNTIME_DIR='{}' {variables} '{}' top {arguments}; \
             echo ended with $?; exec sleep 600",
            job.runtime.display(),
            binary(&SCRATCH).display()
        );
        terminal.tmux(&["-u", "new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", &command]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.env_remove("TMUX").env("LC_ALL", "C.UTF-8").arg("-S").arg(&self.socket);
        let outcome = run(tmux.args(["-f", "/dev/null"]).args(arguments), TIME_LIMIT);
        assert_eq!(outcome.status, 0, "tmux {arguments:?}: {}", outcome.stderr);
        outcome.stdout
    }

    /// Presses keys, by their names in tmux.
    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn type_in(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// What it shows, without graphs.
    fn shows(&self) -> String {
        let screen = self.tmux(&["capture-pane", "-p"]);
        let is_graph = |c: char| ('▁'..='█').contains(&c) || c == '░';
        let screen: String = screen.chars().filter(|c| !is_graph(*c)).collect();
        self.screen.replace(screen.clone());
        screen
    }

    /// Waits until it shows this.
    fn wait_for(&self, part: &str) {
        let shown = wait_until(TIME_LIMIT, || self.shows().contains(part));
        assert!(shown, "{part} is not in\n{}", self.screen.borrow());
    }

    /// Waits until it shows these lines, with any figures in them.
    fn compare(&self, expected: &str) {
        let expected: Vec<String> = expected.lines().map(str::to_owned).collect();
        let same = || same_output(&expected, self.shows().trim_end());
        let shown = wait_until(TIME_LIMIT, same);
        assert!(shown, "not\n{}\nbut\n{}", expected.join("\n"), self.screen.borrow());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(&self.socket).arg("kill-server");
        let _ = tmux.stdout(Stdio::null()).stderr(Stdio::null()).status();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn jobs(keys: &str) -> String {
    format!(
        "overspill top: 1 job by used
JOB COMMAND P BUDGET USED COMPRESS'D RATIO SWAP FLT/S STALL%
384 churn_c 1 16 MiB 15 MiB 8 MiB 1.5 40 MiB 4000 50

job 384 (churn_c)
in use 95 %
faults 4000/s
stalled 50 %
...
{keys}"
    )
}

fn opened(last: &str) -> String {
    format!(
        "overspill top: 1 job by used
job 384 (churn_c), 1 process, for 0:05
budget 16 MiB 15 MiB in use, 3 MiB not managed
resident 5 MiB, cache 2 MiB, compressed 8 MiB in 5 MiB (1.5:1)
waiting some 50 %, all 50 %; avg10 12.34, avg60 1.00, avg300 1.00
in use 95 %
faults 4000/s
stalled 50 %
FAULTS PER S P50 P99 MAX 1 us ... 0.5 s
...
DEVICE PRIO USED SIZE READ WRITTEN ERRORS
/var/tmp -2 40 MiB 1 GiB 30 MiB 50 MiB 0
PROCESS COMMAND USED MAY HAVE RESIDENT COMPRESS'D SWAP FLT/S
385 churn_c 12 MiB 13 MiB 5 MiB 8 MiB 40 MiB 4000
...
{last}"
    )
}

#[test]
fn a_job_is_watched_and_changed_on_a_terminal() {
    if !has_tmux() {
        return;
    }
    let Some(job) = busy("top") else { return };
    let terminal = Terminal::top(&job, "", "0.2");
    terminal.compare(&jobs("q quit Enter open s sort b budget r reclaim o swapoff"));
    terminal.press(&["s"]);
    terminal.wait_for("by faults");
    terminal.press(&["s", "s", "s", "s"]);
    terminal.press(&["Enter"]);
    terminal.compare(&opened("q quit Esc back s sort b budget r reclaim o swapoff"));

    // Nothing is done without a yes.
    terminal.type_in("b128M");
    terminal.compare(&opened("Budget of job 384, such as 96M: 128M_ (Esc: leave it)"));
    terminal.press(&["Enter"]);
    let question = "Change the budget of job 384 (churn_c): 16 MiB -> 128 MiB? y/n";
    terminal.compare(&opened(question));
    terminal.press(&["n"]);
    terminal.wait_for("q quit");
    assert_eq!(job.budget()["memory_bytes"], 16 << 20);
    terminal.type_in("b3M");
    terminal.press(&["Enter"]);
    terminal.wait_for("the smallest possible is 4 MiB");

    terminal.type_in("r1M");
    terminal.press(&["Enter", "y"]);
    terminal.wait_for("reclaimed 1");
    terminal.type_in("o1y");
    terminal.wait_for("not enough memory to take swap device");
    terminal.type_in("b128M");
    terminal.press(&["Enter", "y"]);
    terminal.wait_for("16 MiB -> 128 MiB, ");
    assert_eq!(job.budget()["memory_bytes"], 128 << 20);
    terminal.type_in("o1");
    terminal.wait_for("of job");
    terminal.type_in("y");
    terminal.wait_for("/var/tmp is out of use");
    let pid = job.pid().to_string();
    assert_eq!(job.ask(&["swapon", "--pid", &pid, "--noheadings"]).stdout, "");
    terminal.wait_for("DEVICE     none");

    terminal.press(&["Escape"]);
    terminal.wait_for("Enter open");
    terminal.press(&["q"]);
    terminal.wait_for("ended with 0");
    assert!(!terminal.shows().contains("overspill top:"), "the screen is as it was before");
    drop(terminal);
    job.end_churn();
}

#[test]
fn it_follows_the_size_of_the_terminal_and_ends_with_the_job() {
    if !has_tmux() {
        return;
    }
    let Some(job) = busy("top-size") else { return };
    let pid = job.pid().to_string();
    let terminal = Terminal::top(&job, "NO_COLOR=1 LC_ALL=C", &format!("--pid {pid} 0.2"));
    terminal.wait_for("PROCESS COMMAND");
    terminal.tmux(&["resize-window", "-x", "60", "-y", "12"]);
    let follows = || {
        let screen = terminal.tmux(&["capture-pane", "-p"]);
        let lines: Vec<_> = screen.trim_end().lines().collect();
        lines.len() == 12 && lines[11].starts_with("q quit") && lines[2].contains("##")
    };
    assert!(wait_until(TIME_LIMIT, follows), "{}", terminal.shows());
    let screen = terminal.tmux(&["capture-pane", "-p", "-e"]);
    // 39 is that of the terminal.
    let is_colour =
        |n: &i32| screen.contains(&format!("[3{n}")) || screen.contains(&format!("[9{n}"));
    assert!(screen.is_ascii() && !(0..8).any(|n| is_colour(&n)), "{screen:?}");
    job.end_churn();
    terminal.wait_for("ended with 0");
}

#[test]
fn it_ends_with_its_terminal() {
    if !has_tmux() {
        return;
    }
    let Some(job) = busy("top-gone") else { return };
    let watched = format!("top --pid {} 0.3", job.pid());
    let terminal = Terminal::top(&job, "", &watched["top ".len()..]);
    terminal.wait_for("PROCESS COMMAND");
    let is_there = || {
        let command = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = |pid| String::from_utf8_lossy(&command(pid)).replace('\0', " ");
        running(binary(&SCRATCH)).into_iter().any(|pid| words(pid).contains(&watched))
    };
    assert!(is_there());
    drop(terminal);
    assert!(wait_until(TIME_LIMIT, || !is_there()), "it is there without a terminal");
    job.end_churn();
}

#[test]
fn one_screen_is_printed_as_text() {
    let Some(job) = busy("top-once") else { return };
    let text = |arguments: &[&str]| {
        let outcome = job.ask(&[&["top", "--once"], arguments].concat());
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
        assert!(outcome.stdout.lines().all(|line| line.chars().count() <= 80), "{outcome:?}");
        outcome.stdout
    };
    let lines = text(&[]);
    let lines: Vec<_> = lines.lines().collect();
    assert!(lines[0].starts_with("overspill top: 1 job"), "{lines:#?}");
    let words: Vec<_> = lines[2].split_whitespace().collect();
    assert_eq!(words[..3], [job.pid().to_string().as_str(), "churn_c", "1"], "{lines:#?}");
    let one = text(&["--pid", &job.processes()[0].0.to_string()]);
    assert!(one.contains("PROCESS COMMAND") && one.contains("/var/tmp"), "{one}");
    refused(&job.ask(&["top"]), 2, &["there is no terminal", "--once"]);
    refused(&job.ask(&["top", "--once", "1"]), 2, &["cannot be used with"]);
    let nobody = ((1 << 22) + 1).to_string();
    refused(&job.ask(&["top", "--once", "--pid", &nobody]), 1, &["there is no process"]);
    let mut command = job.command(&["top", "--once"]);
    job.end_churn();
    assert!(run(&mut command, TIME_LIMIT).stdout.contains("no job of yours runs"));
}
