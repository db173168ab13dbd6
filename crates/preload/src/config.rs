//! What the environment asks for.
//!
//! `overspill run` sets these variables, and children of the program inherit them:
//!
//! | variable | meaning |
//! |---|---|
//! | OVERSPILL_MEMORY | the budget; without it this library changes nothing but the allocator |
//! | OVERSPILL_SWAP | swap devices as in `--swap`, separated by commas ([`SwapList`]) |
//! | OVERSPILL_NO_SWAP | present: no swap devices, whatever OVERSPILL_SWAP says |
//! | OVERSPILL_FAULT | `thread`, `signal`, or `auto`: by a thread where signals cannot be had |
//! | OVERSPILL_SET | settings, `KEY=VALUE` separated by commas |
//! | OVERSPILL_SIMULATE | features to do without, for tests |
//! | OVERSPILL_BASELINES | mechanisms that run as their baselines do, for tests |
//! | OVERSPILL_RUN_DIR | directory of the statistics file, `stats.PID`, and of the table `job` |

use overspill::config::{Config, Delivery, SwapList};
use overspill::job;
use overspill_os::probe::{self, Simulated};
use rustix::fs::Mode;
use std::ffi::CString;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// What the variables ask for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The pool's configuration.
    pub config: Config,
    /// Whether a thread may serve faults where that cannot be done by signal.
    pub or_thread: bool,
}

impl Asked {
    /// The file for reports that cannot go to the standard error.
    pub fn reports(&self) -> Option<CString> {
        let file = self.config.job_file.as_ref()?.with_file_name(job::REPORTS_NAME);
        CString::new(file.into_os_string().into_encoded_bytes()).ok()
    }

    /// Has the statistics kept in the file of a process.
    pub fn name_statistics(&mut self, pid: i32) {
        let named = |file: PathBuf| file.with_file_name(format!("stats.{pid}"));
        self.config.stats_file = self.config.stats_file.take().map(named);
    }

    /// Leaves a sign in the directory of the run that a process of it has begun.
    pub fn note_beginning(&self) {
        if let Some(file) = &self.config.job_file {
            let sign = file.with_file_name(job::BEGUN_NAME);
            let _ = rustix::fs::mkdir(sign, Mode::RWXU);
        }
    }
}

/// Reads the configuration; None when no budget is given.
pub fn from_variables<'a>(
    variables: impl Iterator<Item = (&'a str, &'a str)>,
    pid: i32,
) -> Result<Option<Asked>, String> {
    let mut config = Config::default();
    let (mut budget, mut no_swap, mut or_thread) = (false, false, false);
    for (key, value) in variables {
        let bad = |error: &dyn Display| format!("{key}: {error}");
        match key {
            "OVERSPILL_MEMORY" => {
                config.memory = value.parse().map_err(|error| bad(&error))?;
                budget = true;
            }
            "OVERSPILL_SWAP" => {
                let SwapList(specs) = value.parse().map_err(|error| bad(&error))?;
                config.swap = specs;
            }
            "OVERSPILL_NO_SWAP" => no_swap = true,
            "OVERSPILL_FAULT" => {
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
            "OVERSPILL_SET" => config.apply_settings(value).map_err(|error| bad(&error))?,
            "OVERSPILL_BASELINES" => {
                config.baselines.apply(value).map_err(|error| bad(&error))?;
            }
            "OVERSPILL_SIMULATE" => probe::simulate(Simulated::parse(value).unwrap_or_default()),
            "OVERSPILL_RUN_DIR" => {
                config.stats_file = Some(Path::new(value).join(format!("stats.{pid}")));
                config.job_file = Some(Path::new(value).join(job::FILE_NAME));
            }
            _ => {}
        }
    }
    if no_swap {
        config.swap.clear();
    }
    Ok(budget.then_some(Asked { config, or_thread }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::units::Bytes;

    fn parse(variables: &[(&str, &str)]) -> Result<Option<Config>, String> {
        from_variables(variables.iter().copied(), 42).map(|asked| asked.map(|asked| asked.config))
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
        assert_eq!(config.stats_file.unwrap().to_str(), Some("/run/x/stats.42"));
        assert_eq!(config.job_file.unwrap().to_str(), Some("/run/x/job"));
        let none = parse(&[
            ("OVERSPILL_NO_SWAP", "1"),
            ("OVERSPILL_MEMORY", "1G"),
            ("OVERSPILL_SWAP", "/a"),
        ]);
        assert!(none.unwrap().unwrap().swap.is_empty());
    }

    #[test]
    fn a_thread_may_take_over_only_where_nothing_was_chosen() {
        let asked = |way| {
            let variables = [("OVERSPILL_MEMORY", "1G"), ("OVERSPILL_FAULT", way)];
            let asked = from_variables(variables.into_iter(), 1).unwrap().unwrap();
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
            ("SET", "folio=3"),
            ("BASELINES", "uring=no"),
        ] {
            let key = format!("OVERSPILL_{key}");
            let error = parse(&[(&key, value), ("OVERSPILL_MEMORY", "1G")]).unwrap_err();
            assert!(error.starts_with(&format!("{key}: ")) && error.contains('\''), "{error}");
        }
    }
}
