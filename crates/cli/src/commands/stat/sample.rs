//! What a job did between two moments, and what it holds at the second.

use crate::control::protocol::JobStats;
use overspill::stats::{Counter, Latencies, Pressure};
use overspill::units::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Counters whose rates are told, in JSON.
const RATES: [Counter; 16] = [
    Counter::PgFault,
    Counter::PgMajFault,
    Counter::PswpIn,
    Counter::PswpOut,
    Counter::PswpInOps,
    Counter::PswpOutOps,
    Counter::ZswpIn,
    Counter::ZswpOut,
    Counter::ZswpWb,
    Counter::CacheIn,
    Counter::ZeroFill,
    Counter::PgScanKswapd,
    Counter::PgScanDirect,
    Counter::PgStealKswapd,
    Counter::PgStealDirect,
    Counter::WorkingsetRefault,
];

/// A time in the life of a job: its whole life so far, for the first sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The process of its `overspill run`.
    job: u32,
    /// Since the job began, and since the moment before.
    elapsed: Duration,
    interval: Duration,
    /// Living processes.
    pub processes: u64,
    before: BTreeMap<String, u64>,
    now: BTreeMap<String, u64>,
    /// How much it waits for memory; and the microseconds of the interval in which it did.
    pub pressure: Pressure,
    some_us: u64,
    full_us: u64,
    /// Times of the faults of the interval.
    pub latency: Latencies,
}

impl Sample {
    /// From what job said at two moments; at the beginning, when it had said nothing, all is zero.
    pub fn new(job: u32, before: &JobStats, now: &JobStats) -> Sample {
        let (pressure, pressure_before) = (now.pressure(), before.pressure());
        Sample {
            job,
            elapsed: Duration::from_micros(now.elapsed_us),
            interval: Duration::from_micros(now.elapsed_us.saturating_sub(before.elapsed_us)),
            processes: now.processes,
            before: before.counters.clone(),
            now: now.counters.clone(),
            pressure,
            // Another process may be the one that waits most.
            some_us: pressure.some.total_us.saturating_sub(pressure_before.some.total_us),
            full_us: pressure.full.total_us.saturating_sub(pressure_before.full.total_us),
            latency: now.latency().since(&before.latency()),
        }
    }

    /// A gauge, or a counter since the job began.
    pub fn get(&self, counter: Counter) -> u64 {
        self.now.get(counter.name()).copied().unwrap_or(0)
    }

    /// A gauge of pages, in bytes.
    pub fn pages(&self, counter: Counter) -> Bytes {
        Bytes(self.get(counter).saturating_mul(Bytes::from_pages(1).0))
    }

    /// By how much a counter grew a second. A program that executes another begins to count anew,
    /// which is no growth.
    pub fn rate(&self, counter: Counter) -> f64 {
        let before = self.before.get(counter.name()).copied().unwrap_or(0);
        self.get(counter).saturating_sub(before) as f64 / self.seconds()
    }

    /// Faults a second that read no device.
    pub fn minor_rate(&self) -> f64 {
        (self.rate(Counter::PgFault) - self.rate(Counter::PgMajFault)).max(0.0)
    }

    /// Budget that is not in use.
    pub fn free(&self) -> Bytes {
        Bytes(self.get(Counter::LimitBytes).saturating_sub(self.get(Counter::ChargedBytes)))
    }

    /// What compressed pages are by themselves, for each byte of the frames that they are kept in;
    /// 1 without any.
    pub fn ratio(&self) -> f64 {
        match self.get(Counter::CompressedPoolBytes) {
            0 => 1.0,
            pool => self.pages(Counter::CompressedPages).0 as f64 / pool as f64,
        }
    }

    /// Percent of the interval in which something waited for memory, and all did.
    pub fn stalled_percent(&self) -> [f64; 2] {
        [self.some_us, self.full_us].map(|us| (us as f64 / 1e4 / self.seconds()).min(100.0))
    }

    /// How long it was.
    pub fn seconds(&self) -> f64 {
        self.interval.as_secs_f64().max(1e-3)
    }

    /// All of it, with the time of day.
    pub fn json(&self, time: Duration) -> Value {
        let rates: BTreeMap<_, _> =
            RATES.map(|counter| (counter.name(), rounded(self.rate(counter)))).into();
        let [some, full] = self.stalled_percent().map(rounded);
        json!({
            "time_s": rounded(time.as_secs_f64()),
            "job": self.job,
            "elapsed_s": rounded(self.elapsed.as_secs_f64()),
            "interval_s": rounded(self.interval.as_secs_f64()),
            "processes": self.processes,
            "memory": {
                "limit_bytes": self.get(Counter::LimitBytes),
                "charged_bytes": self.get(Counter::ChargedBytes),
                "free_bytes": self.free().0,
                "resident_bytes": self.pages(Counter::ResidentPages).0,
                "unmanaged_bytes": self.get(Counter::UnmanagedBytes),
                "swap_cache_bytes": self.pages(Counter::SwapCachePages).0,
                "swap_used_bytes": self.pages(Counter::DevicePages).0,
                "zswap_stored_bytes": self.pages(Counter::CompressedPages).0,
                "zswap_pool_bytes": self.get(Counter::CompressedPoolBytes),
                "zswap_ratio": rounded(self.ratio()),
                "same_filled_bytes": self.pages(Counter::SameFilledPages).0,
            },
            "per_s": rates,
            "stalled_percent": {"some": some, "full": full},
            "psi": self.pressure,
            "latency": self.latency,
            "counters": self.now,
        })
    }
}

/// Three digits after the point.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::commands::stat::table;
    use crate::control::protocol::Waited;
    use proptest::prelude::*;

    pub fn stats(elapsed_ms: u64, counters: &[(Counter, u64)]) -> JobStats {
        let counters =
            counters.iter().map(|(counter, value)| (counter.name().to_owned(), *value)).collect();
        JobStats { elapsed_us: elapsed_ms * 1000, processes: 1, counters, ..JobStats::default() }
    }

    #[test]
    fn the_first_sample_is_since_the_beginning_and_the_next_since_the_first() {
        let first = stats(4_000, &[(Counter::PgFault, 800), (Counter::PgMajFault, 200)]);
        let mut second = stats(6_000, &[(Counter::PgFault, 1_800), (Counter::PgMajFault, 100)]);
        second.pressure = [Waited { total_us: 500_000, ..Waited::default() }, Waited::default()];
        second.latency = vec![Vec::new(), vec![(30, 5)]];
        let sample = Sample::new(1, &JobStats::default(), &first);
        assert_eq!(
            (sample.rate(Counter::PgFault), sample.minor_rate(), sample.elapsed.as_secs()),
            (200.0, 150.0, 4)
        );
        let sample = Sample::new(1, &first, &second);
        assert_eq!(
            (sample.rate(Counter::PgFault), sample.interval),
            (500.0, Duration::from_secs(2))
        );
        assert_eq!(sample.rate(Counter::PgMajFault), 0.0, "what begins anew has not shrunk");
        assert_eq!((sample.stalled_percent(), sample.latency.all().count()), ([25.0, 0.0], 5));
        assert_eq!(
            Sample::new(1, &second, &second).rate(Counter::PgFault),
            0.0,
            "no time is no reason to divide by it"
        );
    }

    proptest! {
        /// What a job says of itself may be anything: it is shown.
        #[test]
        fn whatever_a_job_says_is_shown(
            before in prop::collection::vec(any::<u64>(), Counter::ALL.len() + 10),
            now in prop::collection::vec(any::<u64>(), Counter::ALL.len() + 10),
        ) {
            let said = |figures: &[u64]| {
                let (counters, rest) = figures.split_at(Counter::ALL.len());
                let names = Counter::ALL.iter().copied().zip(counters.iter().copied());
                let mut stats = stats(0, &names.collect::<Vec<_>>());
                stats.elapsed_us = rest[0];
                stats.pressure = [1, 5].map(|n| Waited {
                    avg: [rest[n], rest[n + 1], rest[n + 2]],
                    total_us: rest[n + 3],
                });
                stats.latency = vec![vec![(rest[9] as u16, rest[9]); 3]; 5];
                stats
            };
            let sample = Sample::new(1, &said(&before), &said(&now));
            let pressure = sample.pressure.to_string();
            let shown = [table::line(&sample), table::latency(&sample), pressure];
            prop_assert!(shown.iter().all(|text| !text.is_empty()));
            prop_assert!(!sample.json(Duration::from_secs(1)).to_string().contains('\n'));
        }
    }

    #[test]
    fn json_has_what_the_lines_have_and_all_counters() {
        let counters = [
            (Counter::LimitBytes, 64 << 20),
            (Counter::ChargedBytes, 60 << 20),
            (Counter::CompressedPages, 1024),
            (Counter::CompressedPoolBytes, 1 << 20),
            (Counter::PswpOut, 300),
        ];
        let json = Sample::new(7, &JobStats::default(), &stats(2_000, &counters))
            .json(Duration::from_millis(1_500));
        assert_eq!(
            (&json["job"], &json["time_s"], &json["interval_s"]),
            (&json!(7), &json!(1.5), &json!(2.0))
        );
        assert_eq!(json["memory"]["free_bytes"], 4 << 20);
        assert_eq!(json["memory"]["zswap_ratio"], 4.0);
        assert_eq!(
            (&json["per_s"]["pswpout"], &json["counters"]["pswpout"]),
            (&json!(150.0), &json!(300))
        );
        assert_eq!(
            (&json["psi"]["full"]["avg10"], &json["latency"]["major"]["count"]),
            (&json!(0.0), &json!(0))
        );
        assert!(!json.to_string().contains('\n'));
    }
}
