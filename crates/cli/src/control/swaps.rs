//! The swap devices of a running job, and the changes of them that are under way.
//!
//! A change puts another list ([`JobSwaps`]) in the place of the last one and waits until each
//! process is done with that, or with a later one: of two changes at once each has its own device
//! in mind. A device that some process cannot take out of use, because nothing takes its pages, is
//! put on the list again under its old number, and those that had closed it open it once more; so
//! is one whose change is called off. A device that no process can open is taken off again.
//!
//! Nothing happens by itself: whoever asks has [`Swaps::follow`] look at the processes first.
//! [`table`] tells the devices, [`named`] which of them is meant.
//!
//! Locks: none. The job keeps it under one.

mod named;
mod seen;
mod table;
#[cfg(test)]
mod tests;

use super::protocol::{SwapChange, SwapDevice, SwapName, SwapOutcome};
use crate::swap;
use overspill::config::SwapSpec;
use overspill::device::job_file::JobFile;
use overspill::device::list::{JobSwaps, ListedSwap};
use overspill::job::JobTable;
use overspill::stats::Snapshot;
use overspill::units::SlotId;
use overspill_os::directory::Directory;
use seen::InUse;
pub use seen::Processes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Changes that have ended and are still known: a command asks for the end of its own within a
/// second.
const CHANGES_KEPT: usize = 64;

/// What a change is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChangeKind {
    On,
    Off,
}

/// Where a change is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Processes are at it.
    Doing,
    /// It is being undone, because of that.
    Undoing(SwapOutcome),
    /// It has ended.
    Over(SwapOutcome),
}

/// A change of the devices.
#[derive(Debug)]
struct Change {
    id: u32,
    kind: ChangeKind,
    device: ListedSwap,
    /// The device's priority when it was on the list last.
    priority: i32,
    /// The list with which processes have to be done for the next step.
    list: u32,
    step: Step,
    /// What processes had said of pages that they could not read when it began, and what they say
    /// since; also those that have ended since.
    lost: BTreeMap<u32, (u64, u64)>,
    /// Processes that could not open the device.
    not_opened: BTreeSet<u32>,
}

impl Change {
    fn is_leaving(&self) -> bool {
        self.kind == ChangeKind::Off && self.step == Step::Doing
    }
}

/// The swap devices of a running job.
#[derive(Debug)]
pub struct Swaps {
    run_dir: Directory,
    table: JobTable,
    list: JobSwaps,
    /// The number for the next device that is added.
    next_device: u32,
    /// Files in directories, by the numbers of their devices, that all processes use.
    files: BTreeMap<u32, JobFile>,
    changes: VecDeque<Change>,
    next_change: u32,
}

impl Swaps {
    /// Those with which a job begins. Their list will be in the directory of the run when it
    /// changes.
    pub fn new(specs: &[SwapSpec], table: JobTable, run_dir: Directory) -> Swaps {
        let list = JobSwaps::first(specs);
        let mut swaps = Swaps {
            run_dir,
            table,
            next_device: specs.len() as u32,
            list,
            files: BTreeMap::new(),
            changes: VecDeque::new(),
            next_change: 1,
        };
        for ListedSwap { id, spec } in &swaps.list.devices.clone() {
            swaps.make_file(*id, spec);
        }
        swaps
    }

    /// Makes the file of a directory. Where it cannot be made each process makes one, or says why
    /// it cannot.
    fn make_file(&mut self, id: u32, spec: &SwapSpec) {
        if spec.ram.is_none() && spec.path.is_dir() {
            let made = JobFile::make(&spec.path, &self.run_dir, id);
            self.files.extend(made.ok().map(|file| (id, file)));
        }
    }

    /// All devices that are in use, also those that are being taken out of use.
    pub fn devices(&self, processes: &Processes<'_>) -> Vec<SwapDevice> {
        table::devices(&self.in_use(), processes)
    }

    /// The numbers of these devices.
    pub fn numbers(&self) -> BTreeSet<u32> {
        self.in_use().iter().map(|used| used.device.id).collect()
    }

    /// Adds a device. Returns the number of the change, or a sentence that says why not.
    pub fn add(&mut self, text: &str) -> Result<u32, String> {
        // 1. May it be used?
        let spec: SwapSpec =
            text.parse().map_err(|bad: overspill::config::BadSwap| bad.to_string())?;
        named::check_unused(
            &spec,
            self.in_use().iter().map(|used| (&used.device.spec, used.leaving)),
        )?;
        if self.list.devices.len() >= SlotId::IN_MEMORY {
            return Err(format!(
                "a job has at most {} swap devices: take one out of use first",
                SlotId::IN_MEMORY
            ));
        }
        let spec = swap::check(&spec).map_err(|failure| failure.sentence)?;
        overspill::device::check(&spec).map_err(|error| error.to_string())?;
        // 2. Every process is told.
        let device = ListedSwap { id: self.next_device, spec };
        let mut list = self.list.clone();
        list.devices.push(device.clone());
        self.make_file(device.id, &device.spec);
        self.publish(list).inspect_err(|_| drop(self.files.remove(&device.id)))?;
        self.next_device += 1;
        Ok(self.begin(ChangeKind::On, device))
    }

    /// Takes a device out of use. Returns the number of the change, or a sentence that says why
    /// not.
    pub fn remove(&mut self, name: &SwapName, processes: &Processes<'_>) -> Result<u32, String> {
        let id = named::find(name, &self.devices(processes))?;
        // Who asks again waits for the same.
        let under_way =
            self.changes.iter().find(|change| change.is_leaving() && change.device.id == id);
        if let Some(change) = under_way {
            return Ok(change.id);
        }
        let at = self.position(id).map_err(|_| "the device has gone just now")?;
        let priority = self.list.with_priorities().nth(at).map_or(0, |(_, priority)| priority);
        let mut list = self.list.clone();
        let device = list.devices.remove(at);
        self.publish(list)?;
        let id = self.begin(ChangeKind::Off, device);
        let change = self.changes.back_mut().expect("it has just begun");
        change.priority = priority;
        let lost = |(pid, snapshot): &(u32, Snapshot)| (*pid, snapshot.swaps_done.1.lost_pages);
        change.lost =
            processes.snapshots.iter().map(lost).map(|(pid, lost)| (pid, (lost, lost))).collect();
        Ok(id)
    }

    /// Calls a change off: the device stays in use, if it is still.
    ///
    /// # Errors
    /// A sentence that says why that cannot be.
    pub fn cancel(&mut self, change: u32) -> Result<(), String> {
        match self.changes.iter().position(|other| other.id == change && other.is_leaving()) {
            Some(at) => self.undo(at, SwapOutcome::Cancelled),
            None => Ok(()),
        }
    }

    /// Looks how far the processes are, and does what follows from it.
    pub fn follow(&mut self, processes: &Processes<'_>) {
        for at in 0..self.changes.len() {
            if let Step::Over(_) = self.changes[at].step {
                continue;
            }
            if let Some(wrong) = self.look(at, processes) {
                // If the list cannot be written now, then perhaps the next time.
                let _ = self.undo(at, wrong);
            }
        }
        let used = self.numbers();
        self.files.retain(|id, _| used.contains(id));
        while self.changes.len() > CHANGES_KEPT && matches!(self.changes[0].step, Step::Over(_)) {
            self.changes.pop_front();
        }
    }

    /// How far a change is; nothing if it is not known.
    pub fn progress(&self, change: u32, processes: &Processes<'_>) -> Option<SwapChange> {
        let change = self.changes.iter().find(|other| other.id == change)?;
        let mut now = SwapChange {
            change: change.id,
            device: change.device.spec.path.display().to_string(),
            outcome: match change.step {
                Step::Doing => None,
                Step::Undoing(outcome) | Step::Over(outcome) => Some(outcome),
            },
            over: matches!(change.step, Step::Over(_)),
            lost_pages: change
                .lost
                .values()
                .fold(0, |sum, (before, now)| sum.saturating_add(now.saturating_sub(*before))),
            not_opened: change.not_opened.len() as u64,
            ..SwapChange::default()
        };
        for (_, snapshot, outcome) in processes.of_list(change.list) {
            let done = now.over || outcome.is_some() || self.is_ahead(change, snapshot);
            now.processes += 1;
            now.done += u64::from(done);
            now.silent += u64::from(!done && snapshot.swaps_left == 0);
            if change.is_leaving() {
                now.left_pages =
                    now.left_pages.saturating_add(table::used_pages(snapshot, change.device.id));
            }
        }
        Some(now)
    }

    /// Where a device is on the list, or would be: numbers go up.
    fn position(&self, id: u32) -> Result<usize, usize> {
        self.list.devices.binary_search_by_key(&id, |device| device.id)
    }

    fn in_use(&self) -> Vec<InUse> {
        let listed = self.list.with_priorities().map(|(device, priority)| InUse {
            device: device.clone(),
            priority,
            leaving: false,
        });
        let leaving = self.changes.iter().filter(|change| change.is_leaving());
        let leaving = leaving.map(|change| InUse {
            device: change.device.clone(),
            priority: change.priority,
            leaving: true,
        });
        let mut all: Vec<_> = listed.chain(leaving).collect();
        all.sort_by_key(|used| used.device.id);
        all
    }

    /// Puts another list in the place of the last one.
    fn publish(&mut self, list: JobSwaps) -> Result<(), String> {
        let list = JobSwaps { number: self.list.number + 1, ..list };
        list.write(&self.run_dir).map_err(|error| {
            format!(
                "the list of the job's swap devices cannot be written ({error}): make room for it"
            )
        })?;
        self.table.set_swaps(list.number);
        self.list = list;
        Ok(())
    }

    fn begin(&mut self, kind: ChangeKind, device: ListedSwap) -> u32 {
        let (id, list) = (self.next_change, self.list.number);
        self.next_change += 1;
        let (lost, not_opened) = (BTreeMap::new(), BTreeSet::new());
        self.changes.push_back(Change {
            id,
            kind,
            device,
            priority: 0,
            list,
            step: Step::Doing,
            lost,
            not_opened,
        });
        id
    }

    /// Whether a process that is not done with the list of a change has nothing more to do for it,
    /// but for another.
    fn is_ahead(&self, change: &Change, snapshot: &Snapshot) -> bool {
        let has = table::has(snapshot, change.device.id);
        match (change.step, change.kind) {
            (Step::Doing, ChangeKind::On) => has,
            (Step::Doing, ChangeKind::Off) => self.list.number > change.list && !has,
            _ => false,
        }
    }

    /// Takes note of what the processes say; returns why the change has to be undone, if it has to.
    fn look(&mut self, at: usize, processes: &Processes<'_>) -> Option<SwapOutcome> {
        let list = self.changes[at].list;
        let (mut all, mut stays, mut count) = (true, false, 0);
        for (pid, snapshot, outcome) in processes.of_list(list) {
            count += 1;
            let ahead = outcome.is_none() && self.is_ahead(&self.changes[at], snapshot);
            let change = &mut self.changes[at];
            let has = table::has(snapshot, change.device.id);
            if change.is_leaving() {
                let lost = snapshot.swaps_done.1.lost_pages;
                change.lost.entry(pid).or_insert((lost, lost)).1 = lost;
            }
            match outcome {
                None => all &= ahead,
                Some(outcome) if change.is_leaving() => stays |= outcome.no_room && has,
                Some(outcome) if outcome.not_opened && !has => drop(change.not_opened.insert(pid)),
                _ => {}
            }
        }
        let change = &mut self.changes[at];
        match change.step {
            Step::Doing if stays => return Some(SwapOutcome::NoRoom),
            Step::Doing
                if all
                    && change.kind == ChangeKind::On
                    && count > 0
                    && change.not_opened.len() == count =>
            {
                return Some(SwapOutcome::NotOpened);
            }
            Step::Doing if all => change.step = Step::Over(SwapOutcome::Done),
            Step::Undoing(outcome) if all => change.step = Step::Over(outcome),
            _ => {}
        }
        None
    }

    /// Puts the device back on the list, or takes it off again.
    fn undo(&mut self, at: usize, outcome: SwapOutcome) -> Result<(), String> {
        let change = &self.changes[at];
        let mut list = self.list.clone();
        match (change.kind, self.position(change.device.id)) {
            (ChangeKind::Off, Err(place)) => list.devices.insert(place, change.device.clone()),
            (ChangeKind::On, Ok(place)) => drop(list.devices.remove(place)),
            // Another change has done it.
            _ => {}
        }
        self.publish(list)?;
        let change = &mut self.changes[at];
        (change.step, change.list) = (Step::Undoing(outcome), self.list.number);
        Ok(())
    }
}
