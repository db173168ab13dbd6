//! What `overspill run --stats-json` wrote, and what holds for every run.

use serde_json::Value;
use std::fs;
use std::path::Path;

/// The statistics of one run.
#[derive(Clone, Debug)]
pub struct Report(Value);

impl Report {
    /// Reads the file; panics if it is missing or no report.
    pub fn read(file: &Path) -> Report {
        let text = fs::read_to_string(file)
            .unwrap_or_else(|error| panic!("no statistics in {}: {error}", file.display()));
        let report =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        Report(report)
    }

    /// A counter of all processes together.
    pub fn total(&self, name: &str) -> u64 {
        counter(&self.0["total"], name)
    }

    /// How many processes had an engine.
    pub fn processes(&self) -> usize {
        self.0["processes"].as_array().map_or(0, Vec::len)
    }

    /// The swap devices of all processes together.
    pub fn devices(&self) -> &[Value] {
        let devices = self.0["total"]["devices"].as_array();
        devices.unwrap_or_else(|| panic!("no devices in {}", self.0))
    }

    /// Bytes that were not managed, at most, of all processes together.
    pub fn unmanaged_peak(&self) -> u64 {
        let peak = &self.0["unmanaged"]["peak_bytes"];
        peak.as_u64().unwrap_or_else(|| panic!("no peak in {}", self.0))
    }

    /// Pages that were taken out of memory, in either way.
    pub fn evicted(&self) -> u64 {
        self.total("out_moved") + self.total("out_dropped")
    }

    /// Checks that no process went over its budget, that no gauge is negative, and that there is a
    /// process at all.
    pub fn check_budgets(&self) {
        let processes =
            self.0["processes"].as_array().unwrap_or_else(|| panic!("no processes in {}", self.0));
        assert!(!processes.is_empty(), "no process is in the statistics: {}", self.0);
        for process in processes {
            let (peak, budget) =
                (counter(process, "charged_peak_bytes"), counter(process, "budget_bytes"));
            assert!(
                budget > 0 && peak <= budget,
                "{peak} bytes charged in a budget of {budget}: {process}"
            );
            // A gauge that went below zero is a huge number.
            let counters = process["counters"].as_object().into_iter().flatten();
            let negative: Vec<_> =
                counters.filter(|(_, value)| value.as_u64().is_none_or(|n| n >= 1 << 63)).collect();
            assert!(negative.is_empty(), "{negative:?} in {process}");
        }
    }

    /// Checks what holds for a program that ran to its end: budgets, no failed fault, and pages
    /// evicted where it `evicts`.
    pub fn check(&self, evicts: bool) {
        self.check_budgets();
        assert_eq!(self.total("fault_errors"), 0, "faults failed: {}", self.0);
        assert!(
            !evicts || self.evicted() > 0,
            "nothing was evicted, so nothing was tested: {}",
            self.0
        );
    }
}

fn counter(of: &Value, name: &str) -> u64 {
    of["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {of}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::panic::catch_unwind;

    fn report(peak: u64, errors: u64, out: u64) -> Report {
        let counters = json!({"counters": {
            "charged_peak_bytes": peak, "budget_bytes": 100, "fault_errors": errors,
            "out_moved": out, "out_dropped": 0,
        }});
        Report(json!({"processes": [counters], "total": counters}))
    }

    #[test]
    fn each_broken_promise_is_noticed() {
        report(100, 0, 1).check(true);
        report(100, 0, 0).check(false);
        for (broken, evicts) in
            [(report(101, 0, 1), true), (report(100, 1, 1), true), (report(100, 0, 0), true)]
        {
            assert!(catch_unwind(|| broken.check(evicts)).is_err(), "{broken:?}");
        }
        assert!(
            catch_unwind(|| Report(json!({"processes": [], "total": {}})).check_budgets()).is_err()
        );
        let mut negative = report(100, 0, 1);
        negative.0["processes"][0]["counters"]["nr_resident"] = json!(u64::MAX - 5);
        assert!(catch_unwind(|| negative.check_budgets()).is_err());
    }
}
