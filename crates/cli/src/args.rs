//! The command line and the environment variables that stand for its options.

use clap::builder::FalseyValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use overspill::base::Bytes;
use overspill::config::{CachePartition, Config, Invalidate, OutOfRoom, Recheck, SETTINGS, SwapList};
use overspill::frame::Pick;
use overspill::slot::{Batching, SlotLock};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Runs programs in less RAM than they need
///
/// overspill is swap as software that you run, not a host that you configure: an unmodified program gets a
/// budget of RAM, and what does not fit is compressed in RAM or goes to a swap file. It needs no root, no
/// kernel swap and no change to the program, only userfaultfd (`overspill probe` tells).
#[derive(Debug, Parser)]
#[command(name = "overspill", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program with its memory in a budget
    #[command(long_about = RUN_ABOUT, after_long_help = run_notes())]
    #[command(override_usage = "overspill run [OPTIONS] -- CMD [ARGS]...")]
    Run(RunArgs),
    /// Change the budget of a running job
    #[command(long_about = SET_ABOUT, after_long_help = SET_NOTES)]
    Set(SetArgs),
    /// Show what a running job does: memory, swapping, faults, waiting
    #[command(long_about = STAT_ABOUT, after_long_help = STAT_NOTES)]
    Stat(StatArgs),
    /// Take pages of a running job out of memory
    #[command(long_about = RECLAIM_ABOUT, after_long_help = RECLAIM_NOTES)]
    Reclaim(ReclaimArgs),
    /// Say what this kernel and user allow, what is used, and what to change to get more
    ///
    /// Exit status 0 where `overspill run` works, 1 where it does not.
    Probe(ProbeArgs),
}

const RUN_ABOUT: &str = "\
Run a program with its memory in a budget

The program's heap and private anonymous mappings get --memory bytes of RAM. Pages beyond that are \
compressed within the budget, and what does not fit there goes to --swap. Everything is checked before \
the program starts.

  overspill run --memory 2G -- python3 job.py
  overspill run --memory 512M --swap /scratch:20G --stats -- sort -S 8G big.txt
  OVERSPILL_MEMORY=1G overspill run -- make test";

const SET_ABOUT: &str = "\
Change the budget of a running job

The processes of the job get another budget, and so do those that it starts later. What does not fit any more is \
compressed or written to the swap devices while the program goes on; then one line says what was and what is:

  $ overspill set --pid 384 --memory 96M
  256 MiB -> 96 MiB, 88.4 MiB in use by 1 process";

const SET_NOTES: &str = "\
A job is what one `overspill run` started. Each process that executed a program has a budget of SIZE; processes that \
forked from each other since share one, each half of what its parent had: these shares become smaller or larger in \
proportion, but never less than the smallest budget. So the job is afterwards as if it had been started with \
--memory SIZE.

A smaller budget does not by itself end a program: what cannot be taken out of memory, because there is no swap or it \
is full, stays, and the program keeps room to go on. What it allocates afterwards has to fit. A larger budget is in \
force at once, up to the RAM of the machine.

Exit status: 0 if the budget is kept; 1 if it is not, yet, or cannot be, or there is no such job; 2 for a mistake on the \
command line.

Environment: OVERSPILL_RUNTIME_DIR, as it was for `overspill run`: where the control sockets of jobs are (default: \
overspill in $XDG_RUNTIME_DIR, else /run/overspill for root, /tmp/overspill-UID for others).";

const STAT_ABOUT: &str = "\
Show what a running job does: memory, swapping, faults, waiting

One line in vmstat's layout for the time since the job began; with INTERVAL then a line for each INTERVAL seconds, COUNT \
lines in all, or until the job ends. All processes of the job are added up.

  overspill stat
  overspill stat --pid 384 1
  overspill stat --latency 2 5
  overspill stat --json 1 >log.jsonl";

const STAT_NOTES: &str = "\
Columns; memory in KiB, all from `si` on in a second:
  p            processes with managed memory
  swpd         space of swap devices in use
  free         budget that is not in use
  res          pages that are mapped
  cache        pages in the swap cache: in memory, and not mapped
  stored pool  compressed pages: their size by themselves, and the memory that they take
  ratio        the one for each of the other
  zi zo        KiB unpacked and packed
  si so        KiB read from swap devices and written to them
  rd wr        operations on swap devices
  minor major  faults: those of which the page was in memory, or none yet, and those that read a device
  some full    percent of the time in which a thread waited for memory, and in which none got on

--psi prints two lines as /proc/pressure/memory: the averages over 10, 60 and 300 seconds, and microseconds in all. A \
thread waits while a fault of its reads a device, reclaims for itself, or waits for room. `full` is told by processor \
time: it is the part of `some` that is left when what the program worked meanwhile is taken off, which is exact for one \
thread and an estimate for several. Of several processes the one that waits most is shown.

--latency tells how long faults took to serve, by where their page came from: nowhere (zero), the swap cache, compressed \
memory, a device, or its place. Times are too long by an eighth at most. Faults served by a thread wait for it, which is \
not in it.

--json prints an object a line with all of this, every counter by name, and times of faults within the interval.

Exit status: 0 if COUNT lines were printed, the job has ended, or nobody reads the output any more; 1 if there is no such \
job, or it cannot be reached; 2 for a mistake on the command line.

Environment: OVERSPILL_RUNTIME_DIR, as for `overspill set`.";

const RECLAIM_ABOUT: &str = "\
Take pages of a running job out of memory

The processes of the job give up SIZE of memory together, as with memory.reclaim of a memory cgroup: pages that were not \
used lately are compressed, or written to the swap devices, and come back when they are touched. The budget stays as it \
is.

  $ overspill reclaim --pid 384 64M
  reclaimed 64.2 MiB of 64 MiB from 2 processes";

const RECLAIM_NOTES: &str = "\
What is counted are pages that leave. Compressed pages stay in memory as far as they do not get smaller, so that the \
memory in use falls by less; more of it goes on to the swap devices when little else is left.

Exit status: 0 if SIZE was reclaimed, or more; 1 if it was less, and a sentence says why, or there is no such job; 2 for \
a mistake on the command line. A request that is not through when the time is over is given up. Only one counts at a \
time: a new one takes the place of another.

Environment: OVERSPILL_RUNTIME_DIR, as for `overspill set`.";

/// What each setting means; its values are in [`SETTINGS`].
const MEANINGS: &[(&str, &str)] = &[
    ("in", "how stored pages are brought in"),
    ("out", "how pages are taken out; move refuses pages pinned for DMA"),
    ("background", "a thread reclaims ahead of need"),
    ("workers", "threads that store pages ahead of need; auto is one for four processors, up to four"),
    ("folio", "most pages that one fault brings in; 1 turns folios off"),
    ("compressed", "percent of the budget that compressed pages may take; 0 turns the tier off"),
    (
        "zswap.codec",
        "what packs compressed pages; zstd (level 3, or 1 to 19) is denser and slower, none keeps them as they are",
    ),
    (
        "zswap.recompress",
        "compressed pages that stay cold are packed more densely: when no device has room, or before they go to one",
    ),
    ("zswap.invalidate", "what is looked at before a lock is taken to forget the compressed copy of a slot given back"),
    ("zswap.incompressible", "pages that do not compress go to a device, or are kept as they are"),
    (
        "zswap.writeback",
        "compressed pages go to devices unpacked, each to a slot, or as they are, several packed into a slot",
    ),
    (
        "zswap.keep",
        "pages read from compressed memory keep their copy there until they are written to, while it has room",
    ),
    ("same_filled", "pages whose 32-bit words are all the same are kept as that word"),
    ("clean", "pages read from a device leave memory without being written again, until they are written to"),
    ("cache.partition", "how much swap space, or how many frames, share a lock of the swap cache"),
    ("swapoff.run", "most pages read with one operation from a device that is taken out of use"),
    ("swapoff.depth", "how many such operations are in flight"),
    ("readahead", "most pages read from a device around one that is missing; 1 turns it off"),
    ("frame.percpu", "each processor keeps a list of free page frames"),
    ("frame.pick", "frames that go back in bulk are chosen before the zone's lock is taken, or under it"),
    ("slot.lock", "swap slots are handed out and taken back under the lock of their cluster, or of the device"),
    ("slot.cache", "each processor keeps this many swap slots to hand out, and collects as many that are freed"),
    ("slot.cpu_cluster", "each processor takes swap slots from a cluster of its own"),
    ("swap.batch", "swap slots, and pages of the swap cache, are handled many in one hold of a lock, rather than one"),
    ("reclaim.max", "most threads that reclaim for themselves at once, the others wait; auto: two a NUMA node"),
    (
        "reclaim.recheck",
        "when those look for frames: whenever they wake, or after a second, for 4 x the high watermark",
    ),
    (
        "watermark.min",
        "what of the budget faults leave free: below it threads reclaim for themselves; auto: 1/64, up to 8M",
    ),
    ("watermark.low", "free memory at which reclaim in the background begins; auto: 1/64 of the budget above min"),
    ("watermark.high", "free memory at which it stops; auto: 1/64 of the budget above low"),
    ("oom", "when there is no room: the access fails with SIGBUS, or the process is killed with a report"),
    ("oom.wait", "how long reclaim may be fruitless before there is no room, up to 10s"),
    ("uring", "swap I/O may use io_uring"),
    ("vector_drop", "many pages are dropped with one process_madvise"),
    ("window", "address space reserved for managed memory"),
];

fn default_value(setting: &str, config: &Config) -> String {
    let switch = |on| if on { "on" } else { "off" }.to_owned();
    match setting {
        "background" => switch(config.background),
        "folio" => config.folio_max.to_string(),
        "compressed" => config.compressed_max_percent.to_string(),
        "zswap.codec" => config.zswap_codec.to_string(),
        "zswap.recompress" => config.zswap_recompress.to_string(),
        "zswap.invalidate" => match config.invalidate {
            Invalidate::Always => "always".to_owned(),
            Invalidate::Empty => "empty".to_owned(),
            Invalidate::EmptyLookup => "empty+lookup".to_owned(),
        },
        "zswap.incompressible" => if config.keeps_incompressible { "keep" } else { "device" }.to_owned(),
        "zswap.keep" => switch(config.keeps_compressed),
        "zswap.writeback" => if config.packs { "packed" } else { "pages" }.to_owned(),
        "same_filled" => switch(config.same_filled),
        "cache.partition" => match config.cache_partition {
            CachePartition::Device => "device".to_owned(),
            CachePartition::Bytes(bytes) => format!("{}M", bytes >> 20),
        },
        "swapoff.run" => config.swapoff_run.to_string(),
        "swapoff.depth" => config.swapoff_depth.to_string(),
        "readahead" => config.readahead_max.to_string(),
        "frame.percpu" => switch(config.frame.percpu),
        "frame.pick" => match config.frame.pick {
            Pick::Outside => "outside".to_owned(),
            Pick::Inside => "inside".to_owned(),
        },
        "slot.lock" => match config.slot.lock {
            SlotLock::Cluster => "cluster".to_owned(),
            SlotLock::Device => "device".to_owned(),
        },
        "slot.cache" => if config.slot.cache { "64" } else { "off" }.to_owned(),
        "slot.cpu_cluster" => switch(config.slot.cpu_cluster),
        "swap.batch" => switch(config.slot.batching == Batching::Whole),
        "reclaim.recheck" => match config.reclaim_recheck {
            Recheck::Wake => "wake",
            Recheck::Timed => "timed",
        }
        .to_owned(),
        "oom" => match config.oom {
            OutOfRoom::Sigbus => "sigbus",
            OutOfRoom::Kill => "kill",
        }
        .to_owned(),
        "oom.wait" => format!("{}s", config.oom_wait.0.as_secs()),
        "uring" => switch(config.uring),
        "vector_drop" => switch(config.vector_drop),
        "window" => config.window.to_string(),
        _ => "auto".to_owned(),
    }
}

fn run_notes() -> String {
    let config = Config::default();
    let mut notes = format!("{SWAP_NOTES}\nSettings (--set KEY=VALUE):\n");
    for (name, values) in SETTINGS {
        let meaning = MEANINGS.iter().find(|(key, _)| key == name).map_or("", |(_, meaning)| meaning);
        notes += &format!("  {name:<16} {meaning}\n{:19}{values} [default: {}]\n", "", default_value(name, &config));
    }
    notes + NOTES
}

const SWAP_NOTES: &str = "\
Swap devices (--swap PATH[:SIZE][,KEY=VALUE...]):
  prio=N          0 to 32767; higher is filled first, equal ones in turn, run by run. One without
                  comes after all that have one, and after those named before it
  label=NAME      a name to tell it by
  discard=once    a part of the device is discarded before it is first used
  discard=pages   also when no page is left in it

A RAM device (--swap ram:SIZE[,KEY=VALUE...]) simulates a device, for tests and measurements. Its \
memory is NOT part of the budget: it comes on top, a device of SIZE for each process.
  latency=TIME    how long each operation takes at least, such as 20us
  bandwidth=SIZE  bytes a second, all operations together
  faults=RATE     this share of operations, such as 0.01, goes wrong at random: an error (eio),
                  cut short (short), no room (full), much slower (slow), a bit flipped in what is
                  read (flip) or, more rarely, in what is written for good (rot);
                  RATE:eio+slow names some of these kinds
  seed=N          another sequence of faults

Several may be named in one option: --swap /fast:4G,prio=1,/slow is two devices.
";

const NOTES: &str = "
What is managed: the malloc heap (C, C++ and what builds on them) and private anonymous mappings. What is not: \
thread stacks, file mappings, shared memory, the pages of the program and its libraries. These stay with the \
kernel and come on top of the budget, as do overspill's own tables (1% or less).

Programs that cannot be run: statically linked ones, set-user-ID ones and ones with file capabilities (the \
dynamic loader ignores LD_PRELOAD for them), and programs for another architecture.

Each process of the tree has a pool and a budget of its own for now: a program that starts four others may use \
five budgets. A forked child shares its parent's budget until it execs or exits.

Exit status: that of the program; 128 + N if signal N killed it; 125 if overspill itself failed; 126 if the \
program cannot be executed, 127 if it was not found; 2 for a mistake on the command line.

Signals TERM, HUP, INT, QUIT, USR1 and USR2 that are sent to overspill are passed on to the program.

While the program runs, `overspill stat` shows what it does, `overspill set` changes its budget, and `overspill reclaim` \
takes pages out of memory.

Environment: each option has a variable, named with it above; the command line wins. OVERSPILL_PRELOAD names the \
preload library where it is not found by itself, OVERSPILL_RUNTIME_DIR the directory of the control socket. OVERSPILL_SIMULATE, a facility for tests, takes a list of \
no-uffd, no-move, no-kernel-faults, no-uring and behaves as on a machine that lacks these.";

/// How faults reach the engine, as the user asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Fault {
    /// The way that runs every program: thread
    #[default]
    Auto,
    /// A handler thread serves faults: system calls see managed memory as any other
    Thread,
    /// The faulting thread serves itself: faster, and needs fewer rights, but a system call that is handed a
    /// page that is out fails with EFAULT, so only for programs known to bear that
    Signal,
}

/// `overspill run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The budget in RAM, such as 512M or 1.5G
    ///
    /// It holds resident pages, compressed pages, and pages on their way in or out. Default: three quarters of
    /// what is available to the job, which is the least of its memory cgroup limits and MemAvailable.
    #[arg(long, value_name = "SIZE", env = "OVERSPILL_MEMORY", hide_env_values = true, value_parser = parse_memory)]
    pub memory: Option<Bytes>,

    /// Where pages go that do not fit in the budget; may be given more than once, or name several
    ///
    /// A directory (a file without a name is made there and is gone with the program), a file or a block device
    /// (what they hold is OVERWRITTEN), used up to SIZE bytes; or memory that simulates a device (ram:SIZE). What follows
    /// a path as KEY=VALUE belongs to it: see "Swap devices" below. Default: the directory $TMPDIR, or /var/tmp where
    /// that is not set or is memory itself (tmpfs).
    #[arg(
        long,
        value_name = "PATH[:SIZE][,KEY=VALUE...]",
        env = "OVERSPILL_SWAP",
        hide_env_values = true,
        value_parser = parse_swap
    )]
    pub swap: Vec<SwapList>,

    /// Use no swap device: what does not fit compressed does not fit
    #[arg(long, env = "OVERSPILL_NO_SWAP", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub no_swap: bool,

    /// How page faults are served
    #[arg(
        long,
        value_enum,
        value_name = "WAY",
        env = "OVERSPILL_FAULT",
        hide_env_values = true,
        default_value = "auto"
    )]
    pub fault: Fault,

    /// Settings of the engine, for measurements; may be given more than once
    #[arg(
        long,
        value_name = "KEY=VALUE[,...]",
        env = "OVERSPILL_SET",
        hide_env_values = true,
        value_parser = parse_settings
    )]
    pub set: Vec<String>,

    /// Print statistics to standard error at the end
    #[arg(long, env = "OVERSPILL_STATS", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub stats: bool,

    /// Write statistics to FILE as JSON at the end; /dev/stderr works too
    #[arg(
        long,
        value_name = "FILE",
        env = "OVERSPILL_STATS_JSON",
        hide_env_values = true,
        value_parser = parse_file
    )]
    pub stats_json: Option<PathBuf>,

    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// `overspill set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// The job: the process of its `overspill run`, or any process that this started
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,

    /// The new budget, such as 512M or 1.5G
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Bytes,

    /// How long to wait until it is kept; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=86_400))]
    pub wait: u32,
}

/// `overspill stat`.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// The job: the process of its `overspill run`, or any process that this started [default: the only one of yours]
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,

    /// Print one JSON object a line, with all figures
    #[arg(long, conflicts_with_all = ["latency", "psi"])]
    pub json: bool,

    /// Show how long faults took, by where their pages came from
    #[arg(long, conflicts_with = "psi")]
    pub latency: bool,

    /// Show how much of the time is spent waiting for memory, as /proc/pressure/memory does
    #[arg(long)]
    pub psi: bool,

    /// Seconds between two lines, such as 1 or 0.5
    #[arg(value_name = "INTERVAL", value_parser = parse_interval)]
    pub interval: Option<Duration>,

    /// Lines in all [default: until the job ends]
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
}

/// `overspill reclaim`.
#[derive(Debug, Args)]
pub struct ReclaimArgs {
    /// The job: the process of its `overspill run`, or any process that this started
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,

    /// How much, such as 64M
    #[arg(value_name = "SIZE", value_parser = parse_reclaim)]
    pub size: Bytes,

    /// How long to wait for it
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub wait: u32,
}

/// `overspill probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Print one JSON object instead of sentences
    #[arg(long)]
    pub json: bool,
}

fn parse_memory(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|bad: overspill::base::BadSize| bad.to_string())?;
    if size < Config::MEMORY_MIN {
        return Err(format!("the smallest possible budget is {}", Config::MEMORY_MIN));
    }
    Ok(size)
}

fn parse_reclaim(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|bad: overspill::base::BadSize| bad.to_string())?;
    if size.pages() == 0 {
        return Err(format!("nothing smaller than a page, {}, can be reclaimed", Bytes::from_pages(1)));
    }
    Ok(size)
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.1 to 86400".to_owned()),
    }
}

fn parse_swap(list: &str) -> Result<SwapList, String> {
    match list.parse() {
        Ok(SwapList(specs)) if specs.is_empty() => Err("name a directory on a disk, such as /var/tmp".to_owned()),
        parsed => parsed.map_err(|bad: overspill::config::BadSwap| bad.to_string()),
    }
}

fn parse_settings(list: &str) -> Result<String, String> {
    Config::default().apply_settings(list).map_err(|bad| bad.to_string())?;
    Ok(list.to_owned())
}

fn parse_file(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => Err("name a file, or /dev/stderr".to_owned()),
        _ => Ok(text.into()),
    }
}

/// Reads the command line; on a mistake, or for help, prints and exits as clap does.
pub fn parse() -> Cli {
    try_parse(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

fn try_parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Run(run), Some(matches)) = (&mut cli.command, matches.subcommand_matches("run")) {
        settle_swap(run, matches)?;
    }
    Ok(cli)
}

/// `--swap` and `--no-swap` exclude each other, but the command line wins over the environment: a run inside a
/// run finds the outer one's choice there.
fn settle_swap(run: &mut RunArgs, matches: &ArgMatches) -> Result<(), clap::Error> {
    if run.swap.is_empty() || !run.no_swap {
        return Ok(());
    }
    let by_hand = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
    match (by_hand("swap"), by_hand("no_swap")) {
        (true, false) => run.no_swap = false,
        (false, true) => run.swap.clear(),
        _ => {
            let message = "--swap and --no-swap exclude each other: give one of them";
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> Result<RunArgs, clap::Error> {
        let args = ["overspill", "run"].iter().chain(args).map(OsString::from);
        try_parse(args).map(|cli| match cli.command {
            Command::Run(run) => run,
            _ => unreachable!("the subcommand is run"),
        })
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_programs_own_options_are_left_alone() {
        let args = run(&["--memory", "64M", "--", "prog", "--memory", "1", "--", "-x"]).unwrap();
        assert_eq!(args.memory, Some(Bytes(64 << 20)));
        assert_eq!(args.command, ["prog", "--memory", "1", "--", "-x"]);
        assert_eq!(run(&["prog", "--stats"]).unwrap().command, ["prog", "--stats"]);
        assert!(!run(&["prog", "--stats"]).unwrap().stats);
    }

    #[test]
    fn values_are_checked_where_they_are_read() {
        let refused = |args: &[&str]| run(args).unwrap_err().to_string();
        assert!(refused(&["--memory", "3M", "--", "x"]).contains("smallest possible budget is 4 MiB"));
        assert!(refused(&["--memory", "lots", "--", "x"]).contains("'lots' is not a size"));
        assert!(refused(&["--set", "folio=3", "--", "x"]).contains("folio cannot be '3'"));
        assert!(refused(&["--swap", "/tmp:9Q", "--", "x"]).contains("not a size"));
        assert!(refused(&["--swap", "", "--", "x"]).contains("name a directory"));
        assert!(refused(&["--swap", "/tmp,colour=red", "--", "x"]).contains("'colour=red' is not an option"));
        assert!(refused(&["--stats-json", "-", "--", "x"]).contains("/dev/stderr"));
        assert!(refused(&["--swap", "/tmp", "--no-swap", "--", "x"]).contains("exclude each other"));
        assert!(refused(&[]).contains("CMD"));
    }

    #[test]
    fn set_takes_a_process_and_a_budget() {
        let set = |args: &str| try_parse(["overspill", "set"].into_iter().chain(args.split(' ')).map(OsString::from));
        let Ok(Cli { command: Command::Set(args) }) = set("--pid 7 --memory 1.5G") else { panic!("it is right") };
        assert_eq!((args.pid, args.memory, args.wait), (7, Bytes(3 << 29), 5));
        let refused = |args: &str| set(args).unwrap_err().to_string();
        assert!(refused("--pid 7 --memory 3M").contains("smallest possible budget is 4 MiB"));
        assert!(refused("--pid 7 --memory lots").contains("'lots' is not a size"));
        assert!(refused("--pid 0 --memory 8M").contains("'0'"));
        assert!(refused("--pid 7 --memory 8M --wait -1").contains("-1"));
        assert!(refused("--pid 7").contains("--memory"));
    }

    #[test]
    fn stat_takes_an_interval_and_a_count_as_vmstat_does() {
        let stat = |args: &str| try_parse(["overspill", "stat"].into_iter().chain(args.split(' ')).map(OsString::from));
        let Ok(Cli { command: Command::Stat(args) }) = stat("--psi 0.5 3") else { panic!("it is right") };
        assert_eq!((args.pid, args.interval, args.count), (None, Some(Duration::from_millis(500)), Some(3)));
        for refused in ["0", "-1", "x", "1e9", "nan", "1 0", "--json --psi", "--psi --latency", "--pid 0"] {
            assert!(stat(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn reclaim_takes_a_size() {
        let args =
            |args: &str| try_parse(["overspill", "reclaim"].into_iter().chain(args.split(' ')).map(OsString::from));
        let Ok(Cli { command: Command::Reclaim(reclaim) }) = args("--pid 7 64M") else { panic!("it is right") };
        assert_eq!((reclaim.pid, reclaim.size, reclaim.wait), (7, Bytes(64 << 20), 60));
        for refused in ["--pid 7", "64M", "--pid 7 100", "--pid 7 much", "--pid 7 64M --wait 0"] {
            assert!(args(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn swaps_may_be_repeated_or_listed() {
        let args = run(&["--swap", "/a:1G,prio=1,/b", "--swap", "/c,discard=once", "--", "x"]).unwrap();
        let specs: Vec<_> = args.swap.iter().flat_map(|list| &list.0).map(ToString::to_string).collect();
        assert_eq!(specs, ["/a:1073741824,prio=1", "/b", "/c,discard=once"]);
    }

    #[test]
    fn the_help_explains_every_setting_with_its_real_default() {
        let (help, config) = (run_notes(), Config::default());
        for (name, values) in SETTINGS {
            assert!(MEANINGS.iter().any(|(key, _)| key == name), "{name}");
            let default = default_value(name, &config);
            assert!(help.contains(&format!("{values} [default: {default}]")), "{name}");
            // What is shown as the default changes nothing.
            let mut set = Config::default();
            set.apply_settings(&format!("{name}={default}")).unwrap();
            assert_eq!(format!("{set:?}"), format!("{config:?}"), "{name}");
        }
    }
}
