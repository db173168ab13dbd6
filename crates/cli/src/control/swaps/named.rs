//! Which device is meant, and whether two names mean the same.

use crate::control::protocol::{SwapDevice, SwapName};
use overspill::config::SwapSpec;
use overspill::units::Uuid;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Refuses a device that the job uses already: of `used`, with whether it is being taken out of
/// use.
pub fn check_unused<'a>(
    spec: &SwapSpec,
    mut used: impl Iterator<Item = (&'a SwapSpec, bool)>,
) -> Result<(), String> {
    let same = |other: &SwapSpec| {
        spec.ram.is_none() && other.ram.is_none() && is_same(&spec.path, &other.path)
    };
    let path = spec.path.display();
    match used.find(|(other, _)| same(other)) {
        None => Ok(()),
        Some((_, false)) => {
            Err(format!("swap device '{path}' is in use by this job already: choose another"))
        }
        Some((_, true)) => Err(format!(
            "swap device '{path}' is being taken out of use by this job just now: wait for that, \
             or end it by running `overspill swapoff` again and interrupting it"
        )),
    }
}

/// Whether two paths lead to one file, directory or block device.
fn is_same(a: &Path, b: &Path) -> bool {
    let [Ok(one), Ok(other)] = [a, b].map(fs::metadata) else { return a == b };
    let blocks = one.file_type().is_block_device() && other.file_type().is_block_device();
    (one.dev(), one.ino()) == (other.dev(), other.ino()) || blocks && one.rdev() == other.rdev()
}

/// The number of the device that is meant, or a sentence.
pub fn find(name: &SwapName, devices: &[SwapDevice]) -> Result<u32, String> {
    let has_label = |device: &SwapDevice, label: &str| device.label.as_deref() == Some(label);
    let has_uuid = |device: &SwapDevice, uuid: &str| match (&device.uuid, uuid.parse::<Uuid>()) {
        (Some(own), Ok(uuid)) => own.parse() == Ok(uuid),
        _ => false,
    };
    let is_at = |device: &SwapDevice, path: &str| {
        device.kind != "ram" && is_same(path.as_ref(), device.path.as_ref())
    };
    let all = |what: &dyn Fn(&SwapDevice) -> bool| {
        devices.iter().filter(|device| what(device)).collect::<Vec<_>>()
    };
    let (named, found) = match name {
        SwapName::Id(id) => (id.to_string(), all(&|device| device.id == *id)),
        SwapName::Label(label) => {
            (format!("LABEL={label}"), all(&|device| has_label(device, label)))
        }
        SwapName::Uuid(uuid) => (format!("UUID={uuid}"), all(&|device| has_uuid(device, uuid))),
        SwapName::Any { text, path } => {
            let mut found = all(&|device| is_at(device, path));
            if let (true, Some(text)) = (found.is_empty(), text) {
                let ways: [&dyn Fn(&SwapDevice) -> bool; 3] = [
                    &|device| device.kind == "ram" && device.path == *text,
                    &|device| has_label(device, text),
                    &|device| has_uuid(device, text),
                ];
                found =
                    ways.map(all).into_iter().find(|found| !found.is_empty()).unwrap_or_default();
            }
            (text.clone().unwrap_or_else(|| path.clone()), found)
        }
    };
    match &found[..] {
        [device] => Ok(device.id),
        [] => Err(format!("'{named}' is no swap device of this job: {}", choices(devices))),
        several => Err(format!(
            "'{named}' is {} swap devices of this job: name one by its label or UUID, or all with \
             -a",
            several.len()
        )),
    }
}

/// What there is to name.
fn choices(devices: &[SwapDevice]) -> String {
    let name = |device: &SwapDevice| match &device.label {
        Some(label) => format!("'{}' ({label})", device.path),
        None => format!("'{}'", device.path),
    };
    let names: Vec<String> = devices.iter().map(name).collect();
    if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) }
}
