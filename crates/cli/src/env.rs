//! What the preload library is told: the settings in canonical form, in the program's environment.

use crate::args::FaultDelivery;
use crate::program::preload;
use overspill::config::{SwapList, SwapSpec};
use overspill::units::Bytes;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Everything the preload library needs, checked.
#[derive(Debug)]
pub struct Settings<'a> {
    /// The budget.
    pub memory: Bytes,
    /// Devices with absolute paths.
    pub swap: &'a [SwapSpec],
    /// How faults are served. [`FaultDelivery::Auto`] is by signal, or by a thread where a process
    /// finds that it cannot be by signal.
    pub fault: FaultDelivery,
    /// Settings of the engine, comma separated.
    pub set: &'a str,
    /// Where each process keeps its statistics.
    pub run_dir: &'a Path,
    /// Where managed memory begins in signal delivery.
    pub window: usize,
    /// The preload library.
    pub library: &'a Path,
    /// Whether nothing may be executed that the library does not get into.
    pub strict: bool,
}

impl Settings<'_> {
    /// Changes to the environment: a value to set, or `None` for a variable to be removed.
    /// `ld_preload` is the value that LD_PRELOAD has so far.
    pub fn changes(&self, ld_preload: Option<&OsStr>) -> Vec<(&'static str, Option<OsString>)> {
        let none = self.swap.is_empty();
        let fault = match self.fault {
            FaultDelivery::Auto => "auto",
            FaultDelivery::Thread => "thread",
            FaultDelivery::Signal => "signal",
        };
        vec![
            ("OVERSPILL_MEMORY", Some(self.memory.0.to_string().into())),
            ("OVERSPILL_SWAP", (!none).then(|| SwapList(self.swap.to_vec()).to_string().into())),
            ("OVERSPILL_NO_SWAP", none.then(|| "1".into())),
            ("OVERSPILL_FAULT", Some(fault.into())),
            ("OVERSPILL_SET", (!self.set.is_empty()).then(|| self.set.into())),
            ("OVERSPILL_RUN_DIR", Some(self.run_dir.into())),
            ("OVERSPILL_STRICT", self.strict.then(|| "1".into())),
            ("OVERSPILL_WINDOW", Some(format!("{:x}", self.window).into())),
            ("LD_PRELOAD", Some(preload::ld_preload(self.library, ld_preload))),
            // What is asked for here holds, whatever an outer run was left by.
            ("OVERSPILL", None),
            // The report is this run's: a run inside it would print a second one, and overwrite the
            // file.
            ("OVERSPILL_STATS", None),
            ("OVERSPILL_STATS_JSON", None),
            ("OVERSPILL_REPORT", None),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(swap: &[SwapSpec]) -> Settings<'_> {
        Settings {
            memory: Bytes(64 << 20),
            swap,
            fault: FaultDelivery::Auto,
            set: "",
            run_dir: Path::new("/run/x"),
            window: 0x4000_0020_0000,
            library: Path::new("/lib/l.so"),
            strict: false,
        }
    }

    fn value(changes: &[(&str, Option<OsString>)], name: &str) -> Option<String> {
        let (_, value) = changes.iter().find(|(n, _)| *n == name).expect("named");
        value.as_ref().map(|v| v.to_str().unwrap().to_owned())
    }

    #[test]
    fn settings_are_passed_in_canonical_form() {
        let swap = ["/a:1K".parse().unwrap(), "/b".parse().unwrap()];
        let changes = Settings { fault: FaultDelivery::Signal, set: "folio=1", ..settings(&swap) }
            .changes(Some(OsStr::new("/p.so")));
        assert_eq!(value(&changes, "OVERSPILL_MEMORY").unwrap(), "67108864");
        assert_eq!(value(&changes, "OVERSPILL_SWAP").unwrap(), "/a:1024,/b");
        assert_eq!(value(&changes, "OVERSPILL_NO_SWAP"), None);
        assert_eq!(value(&changes, "OVERSPILL_FAULT").unwrap(), "signal");
        assert_eq!(value(&changes, "OVERSPILL_SET").unwrap(), "folio=1");
        assert_eq!(value(&changes, "OVERSPILL_RUN_DIR").unwrap(), "/run/x");
        assert_eq!(value(&changes, "OVERSPILL_WINDOW").unwrap(), "400000200000");
        assert_eq!(value(&changes, "LD_PRELOAD").unwrap(), "/lib/l.so:/p.so");
    }

    #[test]
    fn what_is_not_in_force_is_removed() {
        let changes = settings(&[]).changes(None);
        assert_eq!(value(&changes, "OVERSPILL_SWAP"), None);
        assert_eq!(value(&changes, "OVERSPILL_NO_SWAP").unwrap(), "1");
        assert_eq!(value(&changes, "OVERSPILL_FAULT").unwrap(), "auto");
        assert_eq!(value(&changes, "OVERSPILL_SET"), None);
        assert_eq!(value(&changes, "OVERSPILL_STATS"), None);
        assert_eq!(value(&changes, "OVERSPILL_STRICT"), None);
    }
}
