//! The program by itself in a memory cgroup, with the kernel's swap: set up, measured, and put back.

use super::case::Peer;
use super::figures;
use super::work::{self, Request};
use crate::failure::Failure;
use crate::kernel_swap::{Cgroup, Hierarchy, command, path, swap_on};
use crate::machine;
use crate::measure::Sample;
use crate::put_back::{Guard, PutBack};
use overspill::base::PAGE_SIZE;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// Above all swap space that the machine has.
const PRIORITY: u32 = 32_767;
/// How often the pool of compressed pages is looked at while the program runs.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Where zram devices are made and removed.
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
/// The settings of zswap.
const ZSWAP: &str = "/sys/module/zswap/parameters";
/// What both are to compress with.
const COMPRESSOR: &str = "lz4";

/// What this machine lacks for a peer, in a sentence.
pub fn missing(peer: Peer) -> Option<String> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let priority = |line: &str| line.split_whitespace().last().and_then(|field| field.parse().ok());
    if table.lines().skip(1).filter_map(priority).any(|other: i32| other >= PRIORITY as i32) {
        return Some(format!("swap space is in use at the highest priority, {PRIORITY}, which this needs for its own"));
    }
    let (needed, what) = match peer {
        Peer::Zram => (Path::new(ZRAM_CONTROL), "zram"),
        Peer::Zswap => (Path::new(ZSWAP), "zswap"),
        Peer::File => return None,
    };
    (!needed.exists()).then(|| format!("this kernel has no {what} ('{}' is not there)", needed.display()))
}

/// Measures.
///
/// # Errors
/// When the kernel refuses something, or the program fails.
pub fn measure(request: &Request, peer: Peer) -> Result<Sample, Failure> {
    let name = format!("overspill-bench-{}", std::process::id());
    let hierarchy = Hierarchy::find(Path::new("/sys/fs/cgroup")).map_err(Failure::new)?;
    let cgroup = hierarchy.group(&name);
    // 1. Whatever this changes is put back.
    let mut what = PutBack { cgroup: Some(cgroup.path().to_owned()), ..PutBack::default() };
    let swap = match peer {
        Peer::Zram => {
            let number = read("/sys/class/zram-control/hot_add")?;
            let device = PathBuf::from(format!("/dev/zram{number}"));
            what.device.push(device.clone());
            what.write.push(format!("{ZRAM_CONTROL}/hot_remove={number}"));
            device
        }
        Peer::Zswap | Peer::File => {
            let file = request.dir.join(format!(".{name}.swap"));
            what.file.push(file.clone());
            if Path::new(ZSWAP).exists() {
                what.keep(&Path::new(ZSWAP).join("enabled"))?;
                what.keep(&Path::new(ZSWAP).join("compressor"))?;
            }
            file
        }
    };
    let guard = Guard::start(&what)?;
    let measured = set_up(request, peer, &swap).and_then(|()| run(request, peer, &swap, &cgroup));
    let put_back = guard.finish();
    // What went wrong first is told first.
    let sample = measured?;
    put_back?;
    Ok(sample)
}

/// 2. Swap space, all of it that is needed.
fn set_up(request: &Request, peer: Peer, swap: &Path) -> Result<(), Failure> {
    let size = (request.pages + request.pages / 4) * PAGE_SIZE as u64;
    let zswap = |parameter: &str, value: &str| write(&Path::new(ZSWAP).join(parameter), value);
    match peer {
        Peer::Zram => {
            let device = Path::new("/sys/block").join(swap.file_name().unwrap_or_default());
            write(&device.join("comp_algorithm"), COMPRESSOR)?;
            write(&device.join("disksize"), &size.to_string())?;
            command("mkswap", &[path(swap)?])?;
            command("swapon", &["--priority", &PRIORITY.to_string(), path(swap)?])
        }
        Peer::Zswap => {
            // Enabled first: only then it says which compressors it has. Without this one it keeps its own, which is told.
            zswap("enabled", "Y")?;
            let _ = zswap("compressor", COMPRESSOR);
            swap_on(swap, size, PRIORITY)
        }
        Peer::File => {
            if Path::new(ZSWAP).exists() {
                zswap("enabled", "N")?;
            }
            swap_on(swap, size, PRIORITY)
        }
    }
}

/// 3. The program, in the cgroup.
fn run(request: &Request, peer: Peer, swap: &Path, cgroup: &Cgroup) -> Result<Sample, Failure> {
    let words = request.load()?;
    let mut program = Command::new(&words[0]);
    program.args(&words[1..]);
    let before = DeviceIo::now(peer);
    let same_codec = peer != Peer::Zswap || read(&format!("{ZSWAP}/compressor"))? == COMPRESSOR;
    cgroup.enter(request.memory)?;
    let mut pool = 0;
    let output = work::start(&mut program).and_then(|mut child| {
        let failure = |error| Failure::new(format!("the program cannot be waited for: {error}"));
        while child.try_wait().map_err(failure)?.is_none() {
            pool = pool.max(pool_bytes(peer, swap));
            sleep(LOOK_EVERY);
        }
        child.wait_with_output().map_err(failure)
    });
    let left = cgroup.leave();
    let outcome = work::outcome(&output?)?;
    left?;
    let after = DeviceIo::now(peer);
    let mut sample = figures::of(&outcome);
    let written = after.written - before.written;
    figures::add(
        &mut sample,
        [
            (figures::DEVICE, written + after.read - before.read),
            (figures::WRITTEN, written),
            (figures::POOL, pool),
            (figures::SAME_CODEC, same_codec.into()),
            (figures::LIMIT, request.memory),
            (figures::RAM, cgroup.peak_bytes().unwrap_or(request.memory) + pool),
        ],
    );
    Ok(sample)
}

/// RAM that compressed pages take outside of the cgroup, now or at most.
fn pool_bytes(peer: Peer, swap: &Path) -> u64 {
    match peer {
        // original, compressed, memory used, limit, most memory used, ...
        Peer::Zram => {
            let stat = Path::new("/sys/block").join(swap.file_name().unwrap_or_default()).join("mm_stat");
            let text = fs::read_to_string(stat).unwrap_or_default();
            text.split_whitespace().nth(4).and_then(|field| field.parse().ok()).unwrap_or(0)
        }
        Peer::Zswap => machine::zswap_bytes(),
        Peer::File => 0,
    }
}

/// What the machine has swapped to and from disks; memory is no disk.
#[derive(Clone, Copy, Default)]
struct DeviceIo {
    written: u64,
    read: u64,
}

impl DeviceIo {
    fn now(peer: Peer) -> DeviceIo {
        if peer == Peer::Zram {
            return DeviceIo::default();
        }
        let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let bytes = |name: &str| {
            let pages = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
            pages.unwrap_or(0) * PAGE_SIZE as u64
        };
        DeviceIo { written: bytes("pswpout "), read: bytes("pswpin ") }
    }
}

fn read(file: &str) -> Result<String, Failure> {
    let text = fs::read_to_string(file);
    text.map(|text| text.trim().to_owned()).map_err(|error| Failure::new(format!("'{file}' cannot be read: {error}")))
}

fn write(file: &Path, value: &str) -> Result<(), Failure> {
    fs::write(file, value)
        .map_err(|error| Failure::new(format!("'{value}' cannot be written to '{}': {error}", file.display())))
}
