//! Metrics as text, in the two formats that Prometheus reads.

use super::families::{FAMILIES, Family, Figure, Kind, Labelled, Labels, Unit};
use crate::control::look::Look;
use overspill::stats::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeMetric as _, MetricEncoder, NoLabelSet,
    prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{self, Registry};
use std::fmt;

/// Bounds of the buckets of a histogram of times, in nanoseconds: powers of two, at which the
/// job's own buckets end as well. From a microsecond to seventeen seconds.
const BOUNDS: [u64; 13] = {
    let mut bounds = [1 << 10; 13];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = 1 << (10 + 2 * at);
        at += 1;
    }
    bounds
};

/// In which form metrics are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The format of Prometheus before that, which node_exporter and promtool read.
    Prometheus,
}

impl Format {
    /// How HTTP names it.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }
}

/// Jobs by number, with what those say that answer.
#[derive(Debug)]
pub struct Jobs(pub Vec<(u32, Option<Look>)>);

impl Jobs {
    /// All metrics.
    pub fn text(self, format: Format) -> String {
        let mut registry = Registry::with_prefix("overspill");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut text, &registry),
            Format::Prometheus => prometheus_text::encode(&mut text, &registry),
        }
        .expect("strings take everything");
        text
    }

    fn samples(&self, family: &Family) -> Vec<Labelled> {
        let of_job = |(job, look): &(u32, Option<Look>)| {
            let samples = look.as_ref().map_or_else(Vec::new, family.samples);
            let label = ("job", job.to_string());
            let with_job = move |(labels, figure): Labelled| -> Labelled {
                ([label.clone()].into_iter().chain(labels).collect(), figure)
            };
            samples.into_iter().map(with_job)
        };
        self.0.iter().flat_map(of_job).collect()
    }
}

impl Collector for Jobs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let jobs = ConstGauge::new(self.0.len() as u64);
        let help = "Jobs that run.";
        jobs.encode(encoder.encode_descriptor("jobs", help, None, MetricType::Gauge)?)?;
        let help = "Whether a job answers.";
        let mut up = encoder.encode_descriptor("job_up", help, None, MetricType::Gauge)?;
        for (job, look) in &self.0 {
            let labels: Labels = vec![("job", job.to_string())];
            up.encode_family(&labels)?.encode_gauge(&u64::from(look.is_some()))?;
        }
        for family in FAMILIES.iter().copied().flatten() {
            let samples = self.samples(family);
            if samples.is_empty() {
                continue;
            }
            let (kind, unit) = (metric_type(family.kind), unit(family.unit));
            let (name, help) = (family.name, family.help);
            let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (labels, figure) in &samples {
                encode(&mut metric, family.kind, labels, figure)?;
            }
        }
        Ok(())
    }
}

fn metric_type(kind: Kind) -> MetricType {
    match kind {
        Kind::Gauge => MetricType::Gauge,
        Kind::Total => MetricType::Counter,
        Kind::Info => MetricType::Info,
        Kind::Histogram => MetricType::Histogram,
    }
}

fn unit(unit: Unit) -> Option<registry::Unit> {
    match unit {
        Unit::None => None,
        Unit::Bytes => Some(registry::Unit::Bytes),
        Unit::Seconds => Some(registry::Unit::Seconds),
    }
}

fn encode(
    metric: &mut MetricEncoder<'_>,
    kind: Kind,
    labels: &Labels,
    figure: &Figure,
) -> fmt::Result {
    if let Figure::Labels = figure {
        return metric.encode_info(labels);
    }
    let mut one = metric.encode_family(labels)?;
    match (figure, kind) {
        (Figure::Whole(n), Kind::Total) => one.encode_counter::<NoLabelSet, _, u64>(n, None),
        (Figure::Fraction(n), Kind::Total) => one.encode_counter::<NoLabelSet, _, u64>(n, None),
        (Figure::Times(times), _) => {
            let (sum, buckets) = (times.total_ns() as f64 / 1e9, buckets(times));
            one.encode_histogram::<NoLabelSet>(sum, times.count(), &buckets, None)
        }
        (Figure::Whole(n), _) => gauge(&mut one, n),
        (Figure::Fraction(n), _) => gauge(&mut one, n),
        (Figure::Labels, _) => Ok(()),
    }
}

fn gauge(metric: &mut MetricEncoder<'_>, value: &impl EncodeGaugeValue) -> fmt::Result {
    metric.encode_gauge(value)
}

/// Upper bounds in seconds, with how many lie between each and the one before.
fn buckets(times: &Histogram) -> Vec<(f64, u64)> {
    let bounds = BOUNDS.iter().map(|ns| (*ns as f64 / 1e9, times.count_below(*ns)));
    let mut before = 0;
    let apart = |(bound, below): (f64, u64)| {
        let count = below - before;
        before = below;
        (bound, count)
    };
    bounds.chain([(f64::INFINITY, times.count())]).map(apart).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::{
        Budget, JobStats, Process, ProcessFigures, SwapDevice, Traffic, Waited,
    };
    use overspill::stats::{Counter, FaultSource};
    use std::collections::BTreeSet;

    fn device(id: u32, path: &str, used_bytes: u64) -> SwapDevice {
        SwapDevice {
            id,
            path: path.to_owned(),
            used_bytes,
            size_bytes: 100,
            ..SwapDevice::default()
        }
    }

    fn look() -> Look {
        let counters = [(Counter::PgFault, 7), (Counter::ResidentPages, 2), (Counter::PswpIn, 3)];
        let mut latency = vec![Vec::new(); FaultSource::ALL.len()];
        // 8 us and a bit; 80 us and a bit.
        latency[FaultSource::Compressed as usize] = vec![(88, 5)];
        latency[FaultSource::Device as usize] = vec![(114, 2)];
        let process = Process {
            pid: 8,
            name: "a \"b\"\\\n".to_owned(),
            used_bytes: 5,
            figures: ProcessFigures { faults: 6, ..ProcessFigures::default() },
            ..Process::default()
        };
        Look {
            command: "job".to_owned(),
            stats: JobStats {
                elapsed_us: 1_500_000,
                processes: 1,
                counters: counters.map(|(counter, n)| (counter.name().to_owned(), n)).into(),
                pressure: [Waited { total_us: 250_000, ..Waited::default() }, Waited::default()],
                latency,
                devices: [(0, Traffic { reads: 9, ..Traffic::default() })].into(),
            },
            budget: Budget { memory_bytes: 64, largest: vec![process], ..Budget::default() },
            swaps: vec![device(0, "/a", 1), device(1, "/b \"c\"", 2), device(2, "/a", 4)],
        }
    }

    fn text(format: Format) -> String {
        Jobs(vec![(384, Some(look())), (385, None)]).text(format)
    }

    #[test]
    fn figures_are_in_base_units_with_their_labels() {
        let text = text(Format::OpenMetrics);
        for line in [
            "# TYPE overspill_jobs gauge",
            "overspill_jobs 2",
            "overspill_job_up{job=\"384\"} 1",
            "overspill_job_up{job=\"385\"} 0",
            "overspill_job_info{job=\"384\",command=\"job\"} 1",
            "# UNIT overspill_job_elapsed_seconds seconds",
            "overspill_job_elapsed_seconds{job=\"384\"} 1.5",
            "# TYPE overspill_faults counter",
            "overspill_faults_total{job=\"384\"} 7",
            "overspill_pressure_waiting_seconds_total{job=\"384\"} 0.25",
            "overspill_budget_bytes{job=\"384\"} 64",
            "overspill_held_bytes{job=\"384\",tier=\"resident\"} 8192",
            "overspill_swapped_in_bytes_total{job=\"384\",tier=\"device\"} 12288",
            "overspill_swap_used_bytes{job=\"384\",device=\"/a\"} 5",
            "overspill_swap_used_bytes{job=\"384\",device=\"/b \\\"c\\\"\"} 2",
            "overspill_swap_reads_total{job=\"384\",device=\"/a\"} 9",
            "overspill_process_faults_total{job=\"384\",process=\"8\"} 6",
            "overspill_process_info{job=\"384\",process=\"8\",command=\"a \\\"b\\\"\\\\\\n\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn the_older_format_names_counters_whole_and_has_no_end() {
        let text = text(Format::Prometheus);
        for line in ["# TYPE overspill_faults_total counter", "# TYPE overspill_job_info gauge"] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    }

    #[test]
    fn buckets_add_up() {
        let times = look().stats.latency();
        let counts = |source| buckets(times.of(source)).iter().map(|(_, n)| *n).collect::<Vec<_>>();
        let [compressed, device] = [FaultSource::Compressed, FaultSource::Device].map(counts);
        assert_eq!(compressed, [0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(device.iter().sum::<u64>(), 2);
        let text = text(Format::OpenMetrics);
        for (bound, count) in [("0.000004096", 0), ("0.000016384", 5), ("+Inf", 5)] {
            let labels = format!("le=\"{bound}\",job=\"384\",tier=\"compressed\"");
            let line = format!("overspill_fault_duration_seconds_bucket{{{labels}}} {count}");
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn families_have_one_name_each_and_say_what_they_are() {
        let mut names = BTreeSet::new();
        for family in FAMILIES.iter().copied().flatten() {
            assert!(names.insert(family.name), "{}", family.name);
            assert!(family.help.ends_with('.'), "{}: {}", family.name, family.help);
            for suffix in ["total", "bytes", "seconds", "info"] {
                assert!(!family.name.ends_with(suffix), "{} has it twice", family.name);
            }
            let about = (family.samples)(&look());
            let kinds: BTreeSet<_> = about.iter().map(|(labels, _)| labels.len()).collect();
            assert!(kinds.len() <= 1, "{}: other labels", family.name);
        }
    }

    #[test]
    fn without_jobs_there_is_still_their_number() {
        let text = Jobs(Vec::new()).text(Format::OpenMetrics);
        assert!(text.contains("overspill_jobs 0\n") && text.ends_with("# EOF\n"), "{text}");
    }
}
