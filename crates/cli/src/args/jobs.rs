//! The options of the commands that look at running jobs: `set`, `stat`, `top`, `reclaim`.

use super::numbers::{parse_pid, whole};
use super::values::{parse_interval, parse_memory};
use clap::Args;
use overspill::units::Bytes;
use std::time::Duration;

/// `overspill set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// The job: the process of its `overspill run`, or any process that this started
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub pid: u32,

    /// The new budget, such as 512M or 1.5G
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Bytes,

    /// How long to wait until it is kept; 0 does not wait
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = whole(0..=86_400)
    )]
    pub wait: u32,
}

/// `overspill stat`.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// The job: the process of its `overspill run`, or any process that this started [default: the
    /// only one of yours]
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
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
    #[arg(value_name = "COUNT", value_parser = whole(1..=u32::MAX))]
    pub count: Option<u32>,
}

/// `overspill top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The job: the process of its `overspill run`, or any process that this started [default: all
    /// of yours]
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,

    /// Print one screen as text, about the time since each job began
    #[arg(long, conflicts_with = "interval")]
    pub once: bool,

    /// Seconds between two looks [default: 1]
    #[arg(value_name = "INTERVAL", value_parser = parse_interval)]
    pub interval: Option<Duration>,
}

/// `overspill reclaim`.
#[derive(Debug, Args)]
pub struct ReclaimArgs {
    /// The job: the process of its `overspill run`, or any process that this started
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub pid: u32,

    /// How much, such as 64M
    #[arg(value_name = "SIZE", value_parser = parse_reclaim)]
    pub size: Bytes,

    /// How long to wait for it
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = whole(1..=86_400)
    )]
    pub wait: u32,
}

fn parse_reclaim(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|bad: overspill::units::BadSize| bad.to_string())?;
    if size.pages() == 0 {
        return Err(format!(
            "nothing smaller than a page, {}, can be reclaimed",
            Bytes::from_pages(1)
        ));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command, try_parse};
    use std::ffi::OsString;

    #[test]
    fn set_takes_a_process_and_a_budget() {
        let set = |args: &str| {
            try_parse(["overspill", "set"].into_iter().chain(args.split(' ')).map(OsString::from))
        };
        let Ok(Cli { command: Command::Set(args) }) = set("--pid 7 --memory 1.5G") else {
            panic!("it is right")
        };
        assert_eq!((args.pid, args.memory, args.wait), (7, Bytes(3 << 29), 5));
        let refused = |args: &str| set(args).unwrap_err().to_string();
        assert!(refused("--pid 7 --memory 3M").contains("the smallest possible is 4 MiB"));
        assert!(refused("--pid 7 --memory lots").contains("'lots' is not a size"));
        assert!(refused("--pid 0 --memory 8M").contains("'0'"));
        assert!(refused("--pid 7 --memory 8M --wait -1").contains("-1"));
        assert!(refused("--pid 7").contains("--memory"));
    }

    #[test]
    fn stat_takes_an_interval_and_a_count_as_vmstat_does() {
        let stat = |args: &str| {
            try_parse(["overspill", "stat"].into_iter().chain(args.split(' ')).map(OsString::from))
        };
        let Ok(Cli { command: Command::Stat(args) }) = stat("--psi 0.5 3") else {
            panic!("it is right")
        };
        assert_eq!(
            (args.pid, args.interval, args.count),
            (None, Some(Duration::from_millis(500)), Some(3))
        );
        for refused in
            ["0", "-1", "x", "1e9", "nan", "1 0", "--json --psi", "--psi --latency", "--pid 0"]
        {
            assert!(stat(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn reclaim_takes_a_size() {
        let args = |args: &str| {
            try_parse(
                ["overspill", "reclaim"].into_iter().chain(args.split(' ')).map(OsString::from),
            )
        };
        let Ok(Cli { command: Command::Reclaim(reclaim) }) = args("--pid 7 64M") else {
            panic!("it is right")
        };
        assert_eq!((reclaim.pid, reclaim.size, reclaim.wait), (7, Bytes(64 << 20), 60));
        for refused in ["--pid 7", "64M", "--pid 7 100", "--pid 7 much", "--pid 7 64M --wait 0"] {
            assert!(args(refused).is_err(), "{refused}");
        }
    }
}
