//! The figures of each swap device: a section of the statistics table with an entry a device.
//!
//! An entry says what the device is, and counts; [`DeviceFigures`] writes it, [`DeviceSnapshot`] is
//! what others read. It is empty while its first cell is zero, which is written last.

use crate::units::{Bytes, SlotId, Uuid};
use overspill_os::table::SharedCells;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

/// What kind of device it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// An unlinked file in a directory.
    Directory,
    /// A named file.
    File,
    /// A block device.
    Block,
    /// Memory that simulates a device.
    Ram,
}

impl DeviceKind {
    const ALL: [DeviceKind; 4] =
        [DeviceKind::Directory, DeviceKind::File, DeviceKind::Block, DeviceKind::Ram];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Directory => "directory",
            DeviceKind::File => "file",
            DeviceKind::Block => "block",
            DeviceKind::Ram => "ram",
        }
    }
}

/// A gauge or counter of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum DeviceFigure {
    /// Its size in pages (gauge).
    Size,
    /// Pages in use (gauge).
    Used,
    /// Slots that cannot be used: they could not be written, or its header names them (gauge).
    Bad,
    /// Pages read.
    PagesRead,
    /// Read operations.
    Reads,
    /// Pages written.
    PagesWritten,
    /// Write operations.
    Writes,
    /// Reads that failed for good.
    ReadErrors,
    /// Pages that came back other than they were written.
    ChecksumErrors,
    /// Writes that failed.
    WriteErrors,
}

const FIGURES: usize = DeviceFigure::WriteErrors as usize + 1;
/// Bytes of a path that are kept; of a longer one the end.
const PATH_BYTES: usize = 128;
const LABEL_BYTES: usize = crate::units::LABEL_BYTES_MAX;

// Cells of an entry.
const KIND: usize = 0;
const PRIORITY: usize = 1;
const LABEL: usize = 2;
const UUID: usize = LABEL + LABEL_BYTES / 8;
const FIGURE: usize = UUID + 2;
const PATH: usize = FIGURE + FIGURES;
const ID: usize = PATH + PATH_BYTES / 8;
const LEAVING: usize = ID + 1;
const ENTRY: usize = LEAVING + 1;

/// Cells of the section.
pub(super) const CELLS: usize = SlotId::DEVICES_MAX * ENTRY;

/// What a device is.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIdentity<'a> {
    /// Its path, or what the user named it.
    pub path: &'a Path,
    /// Its kind.
    pub kind: DeviceKind,
    /// Its label, if it has one.
    pub label: &'a str,
    /// Its UUID, if it has one.
    pub uuid: Option<Uuid>,
    /// Its priority; none for a device that is only read and freed.
    pub priority: Option<i32>,
    /// Its size in pages.
    pub pages: u64,
    /// Which of the job's list of devices ([`crate::device::list`]) it is.
    pub id: u32,
}

/// The entry of one device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFigures {
    cells: SharedCells,
    first: usize,
}

impl DeviceFigures {
    /// That of device number `index`, in a section that begins at cell `section`.
    pub(super) fn new(cells: SharedCells, section: usize, index: usize) -> DeviceFigures {
        assert!(index < SlotId::DEVICES_MAX);
        DeviceFigures { cells, first: section + index * ENTRY }
    }

    fn cell(&self, index: usize) -> &AtomicU64 {
        &self.cells[self.first + index]
    }

    fn write_bytes(&self, from: usize, cells: usize, bytes: &[u8]) {
        for i in 0..cells {
            let mut word = [0; 8];
            let part = bytes.get(i * 8..).unwrap_or_default();
            let len = part.len().min(8);
            word[..len].copy_from_slice(&part[..len]);
            self.cell(from + i).store(u64::from_le_bytes(word), Relaxed);
        }
    }

    /// Begins the entry anew.
    pub fn describe(&self, device: DeviceIdentity<'_>) {
        self.clear();
        self.set_priority(device.priority);
        self.write_bytes(LABEL, LABEL_BYTES / 8, device.label.as_bytes());
        self.write_bytes(UUID, 2, &device.uuid.map_or([0; 16], |uuid| uuid.0));
        let path = device.path.as_os_str().as_encoded_bytes();
        self.write_bytes(PATH, PATH_BYTES / 8, &path[path.len().saturating_sub(PATH_BYTES)..]);
        self.cell(ID).store(device.id.into(), Relaxed);
        self.set(DeviceFigure::Size, device.pages);
        let kind = DeviceKind::ALL
            .iter()
            .position(|kind| *kind == device.kind)
            .map_or(0, |at| at as u64 + 1);
        self.cell(KIND).store(kind, Release);
    }

    /// Notes its priority.
    pub fn set_priority(&self, priority: Option<i32>) {
        // None is below all priorities.
        self.cell(PRIORITY)
            .store(priority.map_or(0, |priority| priority as u32 as u64 | 1 << 32), Relaxed);
    }

    /// Notes whether it is being taken out of use.
    pub fn set_leaving(&self, leaving: bool) {
        self.cell(LEAVING).store(leaving.into(), Relaxed);
    }

    /// Empties the entry: there is no such device any more.
    pub fn clear(&self) {
        (0..ENTRY).for_each(|index| self.cell(index).store(0, Relaxed));
    }

    /// Sets a gauge.
    pub fn set(&self, figure: DeviceFigure, n: u64) {
        self.cell(FIGURE + figure as usize).store(n, Relaxed);
    }

    /// Adds to a counter.
    pub fn add(&self, figure: DeviceFigure, n: u64) {
        self.cell(FIGURE + figure as usize).fetch_add(n, Relaxed);
    }
}

/// The figures of a device at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceSnapshot {
    /// Its path; of a long one the end.
    pub path: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// Its label; empty if it has none.
    pub label: String,
    /// Its UUID, if it has one.
    pub uuid: Option<Uuid>,
    /// Its priority; none for a device that is only read and freed, a parent's.
    pub priority: Option<i32>,
    /// Its size.
    pub size_bytes: u64,
    /// What of it is in use.
    pub used_bytes: u64,
    /// Slots that cannot be used.
    pub bad_slots: u64,
    /// Pages read.
    pub pages_read: u64,
    /// Read operations.
    pub reads: u64,
    /// Pages written.
    pub pages_written: u64,
    /// Write operations.
    pub writes: u64,
    /// Reads that failed for good.
    pub read_errors: u64,
    /// Pages that came back other than they were written.
    pub checksum_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Which of the job's list of devices ([`crate::device::list`]) it is.
    #[serde(skip)]
    pub id: u32,
    /// Whether it is being taken out of use.
    #[serde(skip)]
    pub leaving: bool,
}

impl DeviceSnapshot {
    /// The devices of a section. Whatever is in it, another process's file, is read as well as it
    /// can be.
    pub(super) fn read(section: &[u64]) -> Vec<DeviceSnapshot> {
        section.chunks_exact(ENTRY).filter_map(DeviceSnapshot::from_entry).collect()
    }

    fn from_entry(entry: &[u64]) -> Option<DeviceSnapshot> {
        let kind = *DeviceKind::ALL.get((entry[KIND] as usize).checked_sub(1)?)?;
        let bytes =
            |cells: &[u64]| cells.iter().flat_map(|cell| cell.to_le_bytes()).collect::<Vec<u8>>();
        let text = |cells: &[u64]| {
            String::from_utf8_lossy(&bytes(cells)).trim_end_matches('\0').to_owned()
        };
        let figure = |figure: DeviceFigure| entry[FIGURE + figure as usize];
        let in_bytes =
            |pages: u64| Bytes::from_pages(pages & (u64::MAX >> crate::units::PAGE_SHIFT)).0;
        let uuid = Uuid(bytes(&entry[UUID..UUID + 2]).try_into().expect("two cells are 16 bytes"));
        Some(DeviceSnapshot {
            path: text(&entry[PATH..ID]),
            kind,
            label: text(&entry[LABEL..UUID]),
            uuid: (uuid.0 != [0; 16]).then_some(uuid),
            priority: (entry[PRIORITY] != 0).then_some(entry[PRIORITY] as u32 as i32),
            size_bytes: in_bytes(figure(DeviceFigure::Size)),
            used_bytes: in_bytes(figure(DeviceFigure::Used)),
            bad_slots: figure(DeviceFigure::Bad),
            pages_read: figure(DeviceFigure::PagesRead),
            reads: figure(DeviceFigure::Reads),
            pages_written: figure(DeviceFigure::PagesWritten),
            writes: figure(DeviceFigure::Writes),
            read_errors: figure(DeviceFigure::ReadErrors),
            checksum_errors: figure(DeviceFigure::ChecksumErrors),
            write_errors: figure(DeviceFigure::WriteErrors),
            id: entry[ID] as u32,
            leaving: entry[LEAVING] != 0,
        })
    }

    /// Whether both are what one `--swap` names, in two processes.
    fn is_named_as(&self, other: &DeviceSnapshot) -> bool {
        let name = |device: &DeviceSnapshot| (device.kind, device.uuid);
        // What a child inherited has no priority any more.
        let prios = self.priority.zip(other.priority).is_none_or(|(own, others)| own == others);
        prios && name(self) == name(other) && self.path == other.path && self.label == other.label
    }

    fn merge(&mut self, other: &DeviceSnapshot) {
        // Memory of each process, or a place that they share.
        let apart =
            self.kind == DeviceKind::Ram && self.priority.is_some() && other.priority.is_some();
        self.size_bytes = match apart {
            true => self.size_bytes.saturating_add(other.size_bytes),
            false => self.size_bytes.max(other.size_bytes),
        };
        self.priority = self.priority.max(other.priority);
        self.bad_slots = self.bad_slots.max(other.bad_slots);
        let mut sum = |field: fn(&mut DeviceSnapshot) -> &mut u64| {
            let more = *field(&mut other.clone());
            let field = field(self);
            *field = field.saturating_add(more);
        };
        sum(|device| &mut device.used_bytes);
        sum(|device| &mut device.pages_read);
        sum(|device| &mut device.reads);
        sum(|device| &mut device.pages_written);
        sum(|device| &mut device.writes);
        sum(|device| &mut device.read_errors);
        sum(|device| &mut device.checksum_errors);
        sum(|device| &mut device.write_errors);
    }

    /// Adds another process's devices to those of `all`.
    pub(super) fn merge_all(all: &mut Vec<DeviceSnapshot>, others: &[DeviceSnapshot]) {
        let mut taken = vec![false; all.len()];
        for other in others {
            // Several of one name stay several. What a child inherited is one that is there
            // already.
            let inherited = other.priority.is_none();
            let same =
                (0..all.len()).find(|at| (inherited || !taken[*at]) && all[*at].is_named_as(other));
            match same {
                Some(at) => {
                    all[at].merge(other);
                    taken[at] |= !inherited;
                }
                None => {
                    all.push(other.clone());
                    taken.push(!inherited);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Snapshot, Stats};

    fn identity(path: &str, kind: DeviceKind) -> DeviceIdentity<'_> {
        DeviceIdentity {
            path: path.as_ref(),
            kind,
            label: "",
            uuid: None,
            priority: Some(-2),
            pages: 256,
            id: 4,
        }
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let stats = Stats::anonymous().unwrap();
        let uuid = Uuid([7; 16]);
        let long = format!("/{}/swap", "x".repeat(200));
        stats.device(0).describe(DeviceIdentity {
            label: "sixteen letters.",
            uuid: Some(uuid),
            ..identity("/dev/sdb", DeviceKind::Block)
        });
        stats
            .device(63)
            .describe(DeviceIdentity { priority: None, ..identity(&long, DeviceKind::File) });
        stats.device(5).describe(identity("ram", DeviceKind::Ram));
        stats.device(5).clear();
        stats.device(0).set(DeviceFigure::Used, 3);
        stats.device(0).set_leaving(true);
        stats.device(0).add(DeviceFigure::WriteErrors, 2);
        let devices = stats.snapshot().devices;
        let [block, file] = &devices[..] else { panic!("{devices:?}") };
        assert_eq!(
            (block.path.as_str(), block.label.as_str(), block.uuid),
            ("/dev/sdb", "sixteen letters.", Some(uuid))
        );
        assert_eq!((block.id, block.leaving, file.leaving), (4, true, false));
        assert_eq!(
            (block.kind, block.priority, block.size_bytes),
            (DeviceKind::Block, Some(-2), 1 << 20)
        );
        assert_eq!((block.used_bytes, block.write_errors, block.reads), (3 << 12, 2, 0));
        assert!(long.ends_with(&file.path) && file.path.len() == PATH_BYTES, "{}", file.path);
        assert_eq!((file.label.as_str(), file.uuid, file.priority), ("", None, None));
        // A child begins with none.
        stats.restart(None, &stats.gauges()).unwrap();
        assert_eq!(stats.snapshot().devices, []);
    }

    #[test]
    fn the_devices_of_a_tree_are_added_up_by_name() {
        let process = |used: u64| {
            let stats = Stats::anonymous().unwrap();
            stats.device(0).describe(identity("/swap", DeviceKind::File));
            (1..3).for_each(|index| stats.device(index).describe(identity("ram", DeviceKind::Ram)));
            // What is a parent's.
            stats
                .device(3)
                .describe(DeviceIdentity { priority: None, ..identity("ram", DeviceKind::Ram) });
            stats.device(3).set(DeviceFigure::Reads, 100);
            (0..2).for_each(|index| stats.device(index).set(DeviceFigure::Used, used));
            stats.device(1).add(DeviceFigure::Reads, used);
            stats.snapshot()
        };
        let mut total = Snapshot::default();
        [1, 10].iter().for_each(|used| total.merge(&process(*used)));
        let [file, ram, other] = &total.devices[..] else { panic!("{:?}", total.devices) };
        assert_eq!((file.size_bytes, file.used_bytes, file.reads), (1 << 20, 11 << 12, 0));
        assert_eq!((ram.size_bytes, ram.used_bytes, ram.reads), (2 << 20, 11 << 12, 211));
        assert_eq!((other.size_bytes, other.used_bytes), (2 << 20, 0));
    }
}
