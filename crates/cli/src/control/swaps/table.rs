//! The devices that a job has, told by its list and by what its processes keep in their tables.

use super::seen::{InUse, Processes};
use crate::control::protocol::SwapDevice;
use overspill::config::SwapSpec;
use overspill::stats::{DeviceKind, DeviceSnapshot, Snapshot};
use std::fs;
use std::os::unix::fs::FileTypeExt;

/// All devices in use with their figures.
pub fn devices(used: &[InUse], processes: &Processes<'_>) -> Vec<SwapDevice> {
    let of_each = |used: &InUse| {
        let figures =
            processes.snapshots.iter().map(|(_, snapshot)| of(snapshot, used.device.id).collect());
        device(used, &figures.collect::<Vec<Vec<&DeviceSnapshot>>>())
    };
    used.iter().map(of_each).collect()
}

/// What a process has of a device: besides what is its own, what it has from its parent and only
/// reads and frees.
fn of(snapshot: &Snapshot, id: u32) -> impl Iterator<Item = &DeviceSnapshot> {
    snapshot.devices.iter().filter(move |device| device.id == id)
}

/// Whether a process has the device open.
pub fn has(snapshot: &Snapshot, id: u32) -> bool {
    of(snapshot, id).next().is_some()
}

/// Pages that a process still has on a device.
pub fn used_pages(snapshot: &Snapshot, id: u32) -> u64 {
    overspill::units::Bytes(
        of(snapshot, id).fold(0, |sum, device| sum.saturating_add(device.used_bytes)),
    )
    .pages()
}

/// A device with what each process has of it.
fn device(used: &InUse, figures: &[Vec<&DeviceSnapshot>]) -> SwapDevice {
    let spec = &used.device.spec;
    let all = || figures.iter().flatten();
    let label = all().map(|device| device.label.clone()).find(|label| !label.is_empty());
    let kind = all().next().map_or_else(|| kind(spec), |device| device.kind);
    let sizes = figures.iter().filter_map(|own| own.iter().map(|device| device.size_bytes).max());
    let size = match kind {
        // Memory of each process, or a place that they share.
        DeviceKind::Ram => sizes.reduce(u64::saturating_add),
        _ => sizes.max(),
    };
    SwapDevice {
        id: used.device.id,
        path: spec.path.display().to_string(),
        kind: kind.name().to_owned(),
        size_bytes: size.unwrap_or(spec.size.unwrap_or_default().0),
        used_bytes: all().fold(0, |sum, device| sum.saturating_add(device.used_bytes)),
        priority: used.priority,
        uuid: all().find_map(|device| device.uuid).map(|uuid| uuid.to_string()),
        label: spec.label.as_ref().map(ToString::to_string).or(label),
        leaving: used.leaving,
    }
}

/// The kind of a device that no process has open.
fn kind(spec: &SwapSpec) -> DeviceKind {
    match fs::metadata(&spec.path) {
        _ if spec.ram.is_some() => DeviceKind::Ram,
        Ok(place) if place.is_dir() => DeviceKind::Directory,
        Ok(place) if place.file_type().is_block_device() => DeviceKind::Block,
        _ => DeviceKind::File,
    }
}
