//! How long a job would have taken with another budget: what it took without its faults, and for
//! each page that would have come back what those took that did.

use super::around::{self, BUCKET_PART};
use super::curve::{Observed, RefaultCurve, Refaults, pages, usable};
use crate::rundir::Tree;
use overspill::stats::{Counter, FaultSource, Snapshot};
use overspill::units::{Bytes, PAGE_SIZE};
use std::time::Duration;

/// How much denser a denser codec packs, and how much longer it takes to unpack: Zstandard beside
/// LZ4 on the heap of a program (docs/measurements.md).
const DENSER: f64 = 1.4;
const DENSER_TAKES: f64 = 2.5;
/// How much faster a faster device is.
const FASTER: f64 = 2.0;
/// Of the time of a run at least this part is the program's own, whatever faults are said to take.
const OWN_PART: f64 = 0.02;

/// What was seen of a job from outside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub elapsed: Duration,
    /// Processor time of the program and what it waited for.
    pub program: Duration,
    /// The budget at the end.
    pub budget: Bytes,
    /// The most that was managed, wherever it was, and that was not.
    pub managed: Bytes,
    pub unmanaged: Bytes,
    /// What a fault takes beside what the engine sees of it, if it was measured ([`around`]).
    pub around: Option<Duration>,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum With {
    /// What there was.
    Same,
    DenserCodec,
    FasterDevice,
}

/// A job with some budget.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Pages that come back.
    pub refaults: f64,
    /// Those of them that come from devices.
    pub device: f64,
    pub elapsed_s: f64,
}

/// What faults took in all, as the engine saw it, and with what is around each; and how many there
/// were.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    seconds: f64,
    all: f64,
    faults: f64,
}

impl Took {
    fn of(total: &Snapshot, source: FaultSource, around: Duration) -> Took {
        let histogram = total.latency.of(source);
        let seconds = histogram.total_ns() as f64 / 1e9 * BUCKET_PART;
        let faults = histogram.count() as f64;
        Took { seconds, all: seconds + faults * around.as_secs_f64(), faults }
    }
}

/// Of one job, what is known of it after a run.
#[derive(Clone, Debug)]
pub struct Model {
    pub measured: Measured,
    processes: Vec<RefaultCurve>,
    /// Seconds of the program alone.
    pub own_s: f64,
    /// Seconds of a page that comes from the tier, from a device, and of one that leaves, as far as
    /// the program waits for it.
    pub compressed_s: f64,
    pub device_s: f64,
    evicted_s: f64,
}

impl Model {
    pub fn new(tree: &Tree, measured: Measured) -> Model {
        let all = usable(pages(measured.budget.0.saturating_sub(measured.unmanaged.0)));
        let footprint = pages(measured.managed.0);
        let seen = tree.processes.iter().filter(|process| process.get(Counter::RefaultSeen) > 0);
        let processes: Vec<RefaultCurve> = seen
            .map(|process| {
                let share = RefaultCurve::new(&Observed::of(process, footprint)).share(all);
                let own = if tree.processes.len() == 1 { 1.0 } else { share };
                RefaultCurve::new(&Observed::of(process, footprint * own))
            })
            .collect();
        let mut model = Model {
            measured,
            processes,
            own_s: measured.elapsed.as_secs_f64(),
            compressed_s: 0.0,
            device_s: 0.0,
            evicted_s: 0.0,
        };
        model.fit(&tree.total);
        model
    }

    /// Finds what pages cost, so that the budget that was there takes the time that it took.
    fn fit(&mut self, total: &Snapshot) {
        let get = |counter| total.get(counter) as f64;
        let around = self.measured.around.unwrap_or(around::USUAL);
        let [zero, cache, compressed, device, place] = [
            FaultSource::Zero,
            FaultSource::Cache,
            FaultSource::Compressed,
            FaultSource::Device,
            FaultSource::Place,
        ]
        .map(|source| Took::of(total, source, around));
        // Threads that fault at once wait at once.
        let elapsed = self.measured.elapsed.as_secs_f64();
        let busy = self.measured.program.as_secs_f64() + device.seconds;
        let at_once = (busy / elapsed.max(1e-6)).max(1.0);
        self.compressed_s = compressed.all / get(Counter::ZswpIn).max(1.0) / at_once;
        self.device_s = device.all / get(Counter::PswpIn).max(1.0) / at_once;
        // New pages that had to wait until others had left, pages that came back on the way, and
        // those that were written to then, or as they had a copy.
        let quick = total.latency.of(FaultSource::Zero).within_ns(250) as f64 / 1e9;
        let waited = (zero.seconds - zero.faults * quick).max(0.0) + cache.all + place.all;
        let left: f64 = self.processes.iter().map(|one| one.evictions(0.0, 1.0)).sum();
        let evicted = get(Counter::WorkingsetEvict).max(left).max(1.0);
        self.evicted_s = waited / evicted / at_once;
        // What the model says of the run itself is made what the run took.
        let seconds = (compressed.all + device.all) / at_once;
        let said = self.waits(self.seen_pages(), With::Same);
        let cost = said.1 - said.2;
        if cost > 0.0 {
            let scale = (seconds / cost).clamp(0.2, 5.0);
            self.compressed_s *= scale;
            self.device_s *= scale;
        }
        let said = self.waits(self.seen_pages(), With::Same);
        self.own_s = (elapsed - said.1).max(OWN_PART * elapsed);
    }

    /// The pages that a budget has for what is managed.
    fn all_pages(&self, budget: Bytes) -> f64 {
        usable(pages(budget.0.saturating_sub(self.measured.unmanaged.0)))
    }

    /// The pages that there were when pages came back: of a budget that grew meanwhile fewer than
    /// in the end. What was not managed was less, mostly, than it was at most.
    fn seen_pages(&self) -> f64 {
        let last = self.all_pages(self.measured.budget);
        match self.processes.as_slice() {
            [process] => process.limit.min(last),
            _ => last,
        }
    }

    /// Pages that come back with so many pages for all, the time that they and those that leave
    /// take, and the part of that of those that leave.
    fn waits(&self, all: f64, with: With) -> (Refaults, f64, f64) {
        let (denser, compressed, device) = match with {
            With::Same => (1.0, 1.0, 1.0),
            With::DenserCodec => (DENSER, DENSER_TAKES, 1.0),
            With::FasterDevice => (1.0, 1.0, 1.0 / FASTER),
        };
        let measured = self.all_pages(self.measured.budget);
        let (mut refaults, mut evicted) = (Refaults::default(), 0.0);
        for process in &self.processes {
            let limit = all * if self.processes.len() == 1 { 1.0 } else { process.share(measured) };
            let more = process.refaults(limit, denser);
            refaults.compressed += more.compressed;
            refaults.device += more.device;
            evicted += process.evictions(limit, denser);
        }
        let leaving = evicted * self.evicted_s;
        let coming = refaults.compressed * self.compressed_s * compressed
            + refaults.device * self.device_s * device;
        (refaults, coming + leaving, leaving)
    }

    /// The job with a budget.
    pub fn at(&self, budget: Bytes, with: With) -> Outcome {
        let (refaults, waits, _) = self.waits(self.all_pages(budget), with);
        Outcome { refaults: refaults.all(), device: refaults.device, elapsed_s: self.own_s + waits }
    }

    /// All that the job had: with more nothing leaves.
    pub fn most(&self) -> Bytes {
        Bytes(self.measured.managed.0 + self.measured.unmanaged.0)
    }

    /// Whether anything came back, so that there is a curve.
    pub fn has_curve(&self) -> bool {
        self.processes.iter().any(|process| process.refaults > 0.0)
    }

    /// Budgets from that of the run to a little more than all, near to one another.
    pub fn budgets(&self) -> Vec<Bytes> {
        const STEPS: u64 = 256;
        let (low, high) = (self.measured.budget.0, self.most().0.max(self.measured.budget.0));
        let high = high + high / 8;
        let step = ((high - low) / STEPS).max(PAGE_SIZE as u64);
        (0..=STEPS).map(|at| Bytes(low + at * step)).collect()
    }

    /// The least budget with which it takes at most so many percent longer than with all that it
    /// had.
    pub fn at_most(&self, percent: u32) -> Bytes {
        let limit = self.own_s * (1.0 + f64::from(percent) / 100.0);
        let fits = |budget: &Bytes| self.at(*budget, With::Same).elapsed_s <= limit;
        // Never less than a budget with which it takes longer.
        let budgets = self.budgets();
        let beyond = budgets.iter().rposition(|budget| !fits(budget)).map_or(0, |at| at + 1);
        budgets.get(beyond).copied().unwrap_or(self.most())
    }

    /// Where the curve bends: farthest below the straight line between its ends (Satopaa et al.,
    /// Finding a "Kneedle" in a Haystack, 2011). None where more memory gains nothing.
    pub fn knee(&self) -> Option<Bytes> {
        let budgets = self.budgets();
        let times: Vec<f64> =
            budgets.iter().map(|budget| self.at(*budget, With::Same).elapsed_s).collect();
        let (first, last) = (*times.first()?, *times.last()?);
        if first - last < 0.01 * last {
            return None;
        }
        let below = |at: usize| {
            let along = at as f64 / (times.len() - 1) as f64;
            (1.0 - along) - (times[at] - last) / (first - last)
        };
        let knee = (0..times.len()).max_by(|a, b| below(*a).total_cmp(&below(*b)))?;
        Some(budgets[knee])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::stats::Stats;

    const MIB: u64 = 1 << 20;

    /// A process that went through `size` in a loop, with a budget for `budget` of them: each page
    /// came back, in 10 us.
    fn looped(size: Bytes, budget: Bytes, turns: u64) -> Tree {
        let stats = Stats::anonymous().unwrap();
        let (all, fit) = (size.pages(), budget.pages());
        let refaults = all * turns;
        (0..refaults).for_each(|_| {
            stats.refault(all);
            stats.fault_ns(FaultSource::Compressed, 10_000);
        });
        for (counter, value) in [
            (Counter::WorkingsetEvict, refaults + all - fit),
            (Counter::RefaultSeen, refaults),
            (Counter::RefaultLimitPages, refaults * fit),
            (Counter::ZswpIn, refaults),
            (Counter::PgFault, refaults),
        ] {
            stats.add(counter, value);
        }
        let process = stats.snapshot();
        Tree { total: process.clone(), processes: vec![process], begun: true, ..Tree::default() }
    }

    fn model(elapsed: f64) -> Model {
        let (size, budget) = (Bytes(64 * MIB), Bytes(16 * MIB));
        let elapsed = Duration::from_secs_f64(elapsed);
        let tree = looped(size, budget, 5);
        Model::new(
            &tree,
            Measured {
                elapsed,
                program: elapsed,
                budget: Bytes(budget.0 + 4 * MIB),
                managed: size,
                unmanaged: Bytes(4 * MIB),
                around: Some(Duration::from_micros(2)),
            },
        )
    }

    #[test]
    fn a_loop_has_its_knee_where_it_fits() {
        // 81,920 pages of 12 us.
        let model = model(2.0);
        assert!((model.own_s - 1.0).abs() < 0.15, "{}", model.own_s);
        let knee = model.knee().unwrap();
        assert!((62 * MIB..=72 * MIB).contains(&knee.0), "{knee}");
        for percent in [5, 10, 25] {
            let least = model.at_most(percent);
            assert!((62 * MIB..=70 * MIB).contains(&least.0), "{percent}: {least}");
        }
        let at = |mib: u64| model.at(Bytes(mib * MIB), With::Same);
        assert!((at(20).elapsed_s - 2.0).abs() < 1e-6, "the run itself");
        assert!((at(40).elapsed_s - 2.0).abs() < 0.1 && at(40).refaults > 81_000.0);
        assert_eq!((at(80).refaults, at(80).elapsed_s), (0.0, model.own_s));
        assert_eq!(at(40).device, 0.0);
        assert!(model.has_curve() && model.most() == Bytes(68 * MIB));
    }

    #[test]
    fn a_job_that_fits_needs_no_more() {
        let stats = Stats::anonymous().unwrap();
        let process = stats.snapshot();
        let tree = Tree { total: process.clone(), processes: vec![process], ..Tree::default() };
        let measured = Measured {
            elapsed: Duration::from_secs(3),
            budget: Bytes(64 * MIB),
            managed: Bytes(10 * MIB),
            ..Measured::default()
        };
        let model = Model::new(&tree, measured);
        assert_eq!((model.has_curve(), model.knee()), (false, None));
        assert_eq!((model.own_s, model.at_most(5)), (3.0, Bytes(64 * MIB)));
    }
}
