//! What the environment asks for.
//!
//! `overspill run` sets these variables, and children of the program inherit them. Where a program
//! has taken them away they are there by other names, `OVERSPILL_JOB_MEMORY` and so on, which count
//! then ([`ADDED`]):
//!
//! | variable | meaning |
//! |---|---|
//! | OVERSPILL_MEMORY | the budget; without it this library changes nothing but the allocator |
//! | OVERSPILL_SWAP | swap devices as in `--swap`, separated by commas ([`SwapList`]) |
//! | OVERSPILL_NO_SWAP | present: no swap devices, whatever OVERSPILL_SWAP says |
//! | OVERSPILL_FAULT | `thread`, `signal`, or `auto`: by a thread where signals cannot be had |
//! | OVERSPILL_STRICT | present: nothing is executed that this library does not get into |
//! | OVERSPILL_SET | settings, `KEY=VALUE` separated by commas |
//! | OVERSPILL_SIMULATE | features to do without, for tests |
//! | OVERSPILL_BASELINES | mechanisms that run as their baselines do, for tests |
//! | OVERSPILL_WINDOW | where the window begins in signal delivery, in hexadecimal |
//! | OVERSPILL_RUN_DIR | directory of the run: its table, and the statistics of each process |

use overspill::config::{Config, Delivery, SwapList};
use overspill::job::{self, JobTable};
use overspill_os::directory::{Directory, Unfit};
use overspill_os::probe::{self, Simulated};
use overspill_os::seccomp;
use std::ffi::CString;
use std::fmt::Display;

const PREFIX: &str = "OVERSPILL_";
/// The beginning of the names of variables that were added to an environment.
pub const ADDED: &str = "OVERSPILL_JOB_";

/// Whether a variable says that the process is not of the job that has executed it.
fn is_off((key, value): (&str, &str)) -> bool {
    key == "OVERSPILL" && value == "off"
}

/// The settings among the variables of a process, named without `OVERSPILL_`.
pub fn settings<'a>(
    variables: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    const NAMES: [&str; 10] = [
        "MEMORY",
        "SWAP",
        "NO_SWAP",
        "FAULT",
        "STRICT",
        "SET",
        "SIMULATE",
        "BASELINES",
        "WINDOW",
        "RUN_DIR",
    ];
    let is_added = |(key, _): (&str, &str)| key.strip_prefix(ADDED) == Some(NAMES[0]);
    let prefix = if variables.clone().any(is_added) { ADDED } else { PREFIX };
    variables
        .filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, value)))
        .filter(|(name, _)| NAMES.contains(name))
}

/// What the variables ask for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The pool's configuration.
    pub config: Config,
    /// Where the window begins in signal delivery.
    pub window: usize,
    /// Whether a thread may serve faults where that cannot be done by signal.
    pub or_thread: bool,
    /// Whether nothing may be executed that this library does not get into.
    pub strict: bool,
}

impl Asked {
    /// The file for reports that cannot go to the standard error, and its directory before it.
    pub fn reports(&self) -> Option<[CString; 2]> {
        let run_dir = self.config.run_dir.clone()?.into_os_string().into_encoded_bytes();
        Some([CString::new(run_dir).ok()?, CString::new(job::REPORTS_NAME).ok()?])
    }

    /// Says in the directory of the run that a process of it has begun, and that there is one as
    /// long as this has its memory. A program that is not of a job of this user's goes on without
    /// the directory: the sentence says why.
    pub fn enter_run(&mut self) -> Result<Option<Directory>, String> {
        let Some(path) = &self.config.run_dir else { return Ok(None) };
        match Directory::trusted(path.as_path()) {
            Ok(run_dir) => {
                run_dir.make_sign(job::BEGUN_NAME);
                JobTable::attend(&run_dir);
                Ok(Some(run_dir))
            }
            // The run has ended, or its directory is out of reach.
            Err(Unfit::Errno(_)) => Ok(None),
            Err(unfit) => {
                let path = path.display();
                let sentence = format!(
                    "the directory of the run '{path}' is not used ({unfit}): this program has a \
                     budget of its own"
                );
                self.config.run_dir = None;
                Err(sentence)
            }
        }
    }
}

/// Reads the configuration; None when no budget is given.
pub fn from_variables<'a>(
    variables: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> Result<Option<Asked>, String> {
    if variables.clone().any(is_off) {
        return Ok(None);
    }
    let mut config = Config::of_job();
    let (mut budget, mut no_swap, mut or_thread, mut strict) = (false, false, false, false);
    let mut window = seccomp::WINDOW.start;
    let mut simulated = Simulated::default();
    for (name, value) in settings(variables) {
        let bad = |error: &dyn Display| format!("{PREFIX}{name}: {error}");
        match name {
            "MEMORY" => {
                config.memory = value.parse().map_err(|error| bad(&error))?;
                budget = true;
            }
            "SWAP" => {
                let SwapList(specs) = value.parse().map_err(|error| bad(&error))?;
                config.swap = specs;
            }
            "NO_SWAP" => no_swap = true,
            "STRICT" => strict = true,
            "FAULT" => {
                (config.delivery, or_thread) = match value {
                    "thread" => (Delivery::Thread, false),
                    "signal" => (Delivery::Signal, false),
                    "auto" => (Delivery::Signal, true),
                    _ => {
                        return Err(bad(&format_args!(
                            "'{value}' is not a way to deliver faults: use auto, thread or signal"
                        )));
                    }
                }
            }
            "SET" => config.apply_settings(value).map_err(|error| bad(&error))?,
            "BASELINES" => {
                config.baselines.apply(value).map_err(|error| bad(&error))?;
            }
            "SIMULATE" => simulated = Simulated::parse(value).unwrap_or_default(),
            "WINDOW" => {
                let start = usize::from_str_radix(value, 16).ok();
                window = start.filter(|start| seccomp::is_place(*start)).ok_or_else(|| {
                    bad(&format_args!("'{value}' is no place for a window: unset it"))
                })?;
            }
            "RUN_DIR" => config.run_dir = Some(value.into()),
            _ => {}
        }
    }
    if no_swap {
        config.swap.clear();
    }
    probe::simulate(simulated);
    Ok(budget.then_some(Asked { config, window, or_thread, strict }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::units::Bytes;

    fn parse(variables: &[(&str, &str)]) -> Result<Option<Config>, String> {
        from_variables(variables.iter().copied()).map(|asked| asked.map(|asked| asked.config))
    }

    #[test]
    fn without_a_budget_there_is_no_configuration() {
        assert!(parse(&[("OVERSPILL_SWAP", "/x"), ("HOME", "/")]).unwrap().is_none());
    }

    #[test]
    fn all_variables_are_read() {
        let config = parse(&[
            ("OVERSPILL_SET", "folio=1,out=move"),
            ("OVERSPILL_BASELINES", "background=off"),
            ("OVERSPILL_MEMORY", "268435456"),
            ("OVERSPILL_SWAP", "/a:1G,,/b,prio=3"),
            ("OVERSPILL_FAULT", "signal"),
            ("OVERSPILL_RUN_DIR", "/run/x"),
        ]);
        let config = config.unwrap().unwrap();
        assert_eq!(
            (config.memory, config.folio, config.delivery),
            (Bytes(256 << 20), overspill::config::FolioMax::Pages(1), Delivery::Signal)
        );
        assert!(!config.baselines.background);
        let swap: Vec<_> = config.swap.iter().map(ToString::to_string).collect();
        assert_eq!(swap, ["/a:1073741824", "/b,prio=3"]);
        assert_eq!(config.run_dir.unwrap().to_str(), Some("/run/x"));
        let none = parse(&[
            ("OVERSPILL_NO_SWAP", "1"),
            ("OVERSPILL_MEMORY", "1G"),
            ("OVERSPILL_SWAP", "/a"),
        ]);
        assert!(none.unwrap().unwrap().swap.is_empty());
    }

    #[test]
    fn what_was_added_for_the_job_counts() {
        let config = parse(&[
            ("OVERSPILL_SET", "folio=1"),
            ("OVERSPILL_JOB_MEMORY", "64M"),
            ("OVERSPILL_MEMORY", "1G"),
            ("OVERSPILL_JOB_RUN_DIR", "/run/x"),
        ]);
        let config = config.unwrap().unwrap();
        assert_eq!(
            (config.memory, config.folio),
            (Bytes(64 << 20), overspill::config::FolioMax::default())
        );
        assert_eq!(config.run_dir.unwrap().to_str(), Some("/run/x"));
        assert!(parse(&[("OVERSPILL_MEMORY", "1G"), ("OVERSPILL", "off")]).unwrap().is_none());
    }

    #[test]
    fn a_thread_may_take_over_only_where_nothing_was_chosen() {
        let asked = |way| {
            let variables = [("OVERSPILL_MEMORY", "1G"), ("OVERSPILL_FAULT", way)];
            let asked = from_variables(variables.into_iter()).unwrap().unwrap();
            (asked.config.delivery, asked.or_thread)
        };
        assert_eq!(asked("auto"), (Delivery::Signal, true));
        assert_eq!(asked("signal"), (Delivery::Signal, false));
        assert_eq!(asked("thread"), (Delivery::Thread, false));
    }

    #[test]
    fn mistakes_are_named() {
        for (key, value) in [
            ("MEMORY", "12X"),
            ("SWAP", "/a:9Z"),
            ("FAULT", "mail"),
            ("WINDOW", "3f0000000000"),
            ("WINDOW", "at random"),
            ("SET", "folio=3"),
            ("BASELINES", "uring=no"),
        ] {
            let key = format!("OVERSPILL_{key}");
            let error = parse(&[(&key, value), ("OVERSPILL_MEMORY", "1G")]).unwrap_err();
            assert!(error.starts_with(&format!("{key}: ")) && error.contains('\''), "{error}");
        }
    }
}
