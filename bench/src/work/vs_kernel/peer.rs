//! The program by itself in a memory cgroup, with the kernel's swap: set up, measured, and put
//! back.

use super::case::Peer;
use super::launch;
use super::request::{Measurement, count};
use crate::machine::*;
use crate::measure::*;
use overspill::units::PAGE_SIZE;
use std::fs;
use std::path::{Path, PathBuf};

/// Above all swap space that the machine has.
const PRIORITY: u32 = 32_767;
/// Where zram devices are made and removed.
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
/// The settings of zswap.
const ZSWAP: &str = "/sys/module/zswap/parameters";
/// What both are to compress with.
const COMPRESSOR: &str = "lz4";

/// What this machine lacks for a peer, in a sentence.
pub fn missing(peer: Peer) -> Option<String> {
    let (needed, what) = match peer {
        Peer::Zram => (Path::new(ZRAM_CONTROL), "zram"),
        Peer::Zswap => (Path::new(ZSWAP), "zswap"),
        Peer::File => return None,
    };
    (!needed.exists())
        .then(|| format!("this kernel has no {what} ('{}' is not there)", needed.display()))
}

/// Fails where other swap space would be used as well.
fn first_in_line() -> Result<(), Failure> {
    if kernel_swap::swaps().iter().any(|(.., priority)| *priority >= PRIORITY.into()) {
        fail!(
            "swap space is in use at the highest priority, {PRIORITY}, which this needs for its own"
        );
    }
    Ok(())
}

/// Measures the program with all the RAM that it takes.
pub fn alone(request: &Measurement) -> Result<Sample, Failure> {
    launch::counted(request, &[], Vec::new(), |_| Ok(()))
}

pub fn measure(request: &Measurement, peer: Peer) -> Result<Sample, Failure> {
    let name = kernel_swap::name();
    let cgroup = kernel_swap::cgroup()?;
    // 1. Whatever this changes is put back.
    let mut what = PutBack { alone: true, ..PutBack::cgroup(Some(&cgroup)) };
    let swap = match peer {
        Peer::Zram => {
            let number = read_file(&Path::new(ZRAM_CONTROL).join("hot_add"))?;
            let device = PathBuf::from(format!("/dev/zram{number}"));
            what.devices.push(device.clone());
            what.writes.push((Path::new(ZRAM_CONTROL).join("hot_remove"), number));
            device
        }
        Peer::Zswap | Peer::File => {
            let file = request.dir.join(format!(".{name}.swap"));
            what.files.push(file.clone());
            file
        }
    };
    if Path::new(ZSWAP).exists() {
        what.keep = ["enabled", "compressor"].map(|name| Path::new(ZSWAP).join(name)).into();
    }
    put_back::around(&what, |guard| {
        first_in_line()?;
        set_up(request, peer, &swap)?;
        run(request, peer, &swap, &cgroup, guard)
    })
}

/// 2. Swap space, all of it that is needed.
fn set_up(request: &Measurement, peer: Peer, swap: &Path) -> Result<(), Failure> {
    let pages = request.needs.div_ceil(PAGE_SIZE as u64);
    let size = (pages + pages / 4) * PAGE_SIZE as u64;
    let zswap = |parameter: &str, value: &str| write(&Path::new(ZSWAP).join(parameter), value);
    // Where it is on it stands in front of all swap.
    if peer != Peer::Zswap && Path::new(ZSWAP).exists() {
        zswap("enabled", "N")?;
    }
    match peer {
        Peer::Zram => {
            write(&block(swap, "comp_algorithm"), COMPRESSOR)?;
            write(&block(swap, "disksize"), &size.to_string())?;
            use_as_swap(swap, PRIORITY)
        }
        Peer::Zswap => {
            // Enabled first: only then it says which compressors it has. Without this one it keeps
            // its own, which is told.
            zswap("enabled", "Y")?;
            let _ = zswap("compressor", COMPRESSOR);
            swap_on(swap, size, PRIORITY)
        }
        Peer::File => swap_on(swap, size, PRIORITY),
    }
}

/// A file of the kernel about a block device.
fn block(device: &Path, name: &str) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default()).join(name)
}

/// 3. The program, in the cgroup.
fn run(
    request: &Measurement,
    peer: Peer,
    swap: &Path,
    cgroup: &Cgroup,
    guard: &mut Guard,
) -> Result<Sample, Failure> {
    let before = swapped(peer);
    let same_codec =
        peer != Peer::Zswap || read_file(&Path::new(ZSWAP).join("compressor"))? == COMPRESSOR;
    cgroup.make(request.memory)?;
    let mut pool = CompressedPool::default();
    let mut sample = launch::run(request, &[], Some(cgroup), guard, || pool.look(peer, swap))?;
    let after = swapped(peer);
    let [written, read, pages_in] = [0, 1, 2].map(|at| after[at] - before[at]);
    let counts = [
        ("device_bytes", written + read),
        ("device_bytes_written", written),
        ("pages_in", pages_in),
        // A compressed pool outside of the cgroup, a part of the RAM.
        ("pool_bytes_peak", pool.bytes),
        // 1 where the peer compresses with LZ4 as overspill does, or not at all; 0 where the kernel
        // has none for it.
        ("same_codec", same_codec.into()),
        ("limit_bytes", request.memory),
        ("ram_bytes_peak", cgroup.peak_bytes().unwrap_or(request.memory) + pool.bytes),
    ];
    count(&mut sample, counts);
    if pool.packed > 0.0 {
        add(&mut sample, [("packed", pool.packed)]);
    }
    Ok(sample)
}

/// RAM that compressed pages take outside of the cgroup.
#[derive(Default)]
struct CompressedPool {
    /// At most, so far.
    bytes: u64,
    /// The most that was in it, unpacked, where the kernel says, and how far it was packed then.
    original: u64,
    packed: f64,
}

impl CompressedPool {
    fn look(&mut self, peer: Peer, swap: &Path) {
        match peer {
            // original, compressed, memory used, limit, most memory used, ...
            Peer::Zram => {
                let text = fs::read_to_string(block(swap, "mm_stat")).unwrap_or_default();
                let fields: Vec<u64> =
                    text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
                let &[original, compressed, _, _, most, ..] = fields.as_slice() else { return };
                self.bytes = self.bytes.max(most);
                if original > self.original {
                    (self.original, self.packed) =
                        (original, original as f64 / compressed.max(1) as f64);
                }
            }
            Peer::Zswap => self.bytes = self.bytes.max(host::zswap_bytes()),
            Peer::File => (),
        }
    }
}

/// What the machine has swapped so far: bytes to disks and from them, where memory is no disk; and
/// pages brought in, from wherever they were.
fn swapped(peer: Peer) -> [u64; 3] {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pages = |name: &str| entry::<u64>(&text, name).unwrap_or(0);
    let disk = |name: &str| if peer == Peer::Zram { 0 } else { pages(name) * PAGE_SIZE as u64 };
    // The kernel counts pages of its zswap apart from those of devices, and zram is a device.
    [disk("pswpout "), disk("pswpin "), pages("pswpin ") + pages("zswpin ")]
}

fn write(file: &Path, value: &str) -> Result<(), Failure> {
    fs::write(file, value)
        .failing(format_args!("'{value}' cannot be written to '{}'", file.display()))
}
