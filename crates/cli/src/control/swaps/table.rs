//! The devices that a job has, told by its list and by what its processes keep in their tables.

use super::{InUse, Processes};
use crate::control::protocol::SwapDevice;
use overspill::config::SwapSpec;
use overspill::job::swaps::ListedSwap;
use overspill::stats::{DeviceKind, DeviceSnapshot, Snapshot};
use std::fs;
use std::os::unix::fs::FileTypeExt;

/// All devices in use with their figures.
pub fn devices(used: &[InUse], processes: &Processes<'_>) -> Vec<SwapDevice> {
    let mut total = Snapshot::default();
    processes.snapshots.iter().for_each(|(_, snapshot)| total.merge(snapshot));
    // 1. Of several of one name each has a priority of its own.
    let mut left = total.devices;
    let mut of_each: Vec<Vec<DeviceSnapshot>> = used
        .iter()
        .map(|used| {
            let same = |d: &DeviceSnapshot| is_same(&used.device.spec, d) && d.priority == Some(used.priority);
            left.iter().position(same).map(|at| left.remove(at)).into_iter().collect()
        })
        .collect();
    // 2. What a child has from its parent has none, nor what some process has not come to yet.
    for other in left {
        let same = |at: &usize| is_same(&used[*at].device.spec, &other);
        let fewest = (0..used.len()).filter(same).min_by_key(|at| of_each[*at].len());
        if let Some(at) = fewest {
            of_each[at].push(other);
        }
    }
    used.iter().zip(of_each).map(|(used, figures)| device(used, &figures)).collect()
}

fn device(used: &InUse, figures: &[DeviceSnapshot]) -> SwapDevice {
    let spec = &used.device.spec;
    let label = figures.iter().map(|device| device.label.clone()).find(|label| !label.is_empty());
    let kind = figures.first().map_or_else(|| kind(spec), |device| device.kind);
    let size = figures.iter().map(|device| device.size_bytes).max();
    SwapDevice {
        id: used.device.id,
        path: spec.path.display().to_string(),
        kind: kind.name().to_owned(),
        size_bytes: size.unwrap_or(spec.size.unwrap_or_default().0),
        used_bytes: figures.iter().fold(0, |sum, device| sum.saturating_add(device.used_bytes)),
        priority: used.priority,
        uuid: figures.iter().find_map(|device| device.uuid).map(|uuid| uuid.to_string()),
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

/// Whether a process has the device open, if `listed` are those that it is to have.
pub fn has(snapshot: &Snapshot, device: &ListedSwap, listed: &[ListedSwap]) -> bool {
    let own = snapshot.devices.iter().filter(|own| is_same(&device.spec, own)).count();
    // Several may have one name, as RAM devices.
    let same_name = |other: &ListedSwap| {
        (&other.spec.path, &other.spec.label, other.spec.ram.is_some())
            == (&device.spec.path, &device.spec.label, device.spec.ram.is_some())
    };
    own > listed.iter().filter(|other| other.id != device.id && same_name(other)).count()
}

fn is_same(spec: &SwapSpec, device: &DeviceSnapshot) -> bool {
    let label = spec.label.as_ref().is_none_or(|label| label.as_str() == device.label);
    device.is_at(&spec.path) && (device.kind == DeviceKind::Ram) == spec.ram.is_some() && label
}
