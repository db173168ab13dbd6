//! What a step of the size is judged in: parts of the budget, what is known of the past, and how
//! things stand.

use super::curve::Curve;

/// What sizes are counted in: parts of the budget.
pub const WHOLE: u32 = 1024;
/// How far the size goes at a time: 1/32 of the budget.
pub const STEP: u32 = WHOLE / 32;
/// Between these: pages that are used need frames, and so does what waits to be written.
pub const LEAST: u32 = WHOLE * 10 / 100;
pub const MOST: u32 = WHOLE * 85 / 100;
/// How many reads of devices a step's worth of frames must save for a step up, as a part of these
/// frames; and what is read of devices at all, for that to count.
pub const READS_LEAST: f64 = 1.0 / 8.0;
/// How much more must be saved than lost, so that chance does not move the size, or change the
/// codec, to and fro.
pub const MARGIN: f64 = 1.25;
/// What packing a page counts, of the time that unpacking one for a fault takes: it is mostly done
/// by another thread.
pub const PACKING: f64 = 0.5;
/// What a page is taken to cost that is read from a device, where none was lately.
pub const DEVICE_NS: f64 = 100_000.0;

/// What is known of the time that is remembered.
#[derive(Debug)]
pub struct Past {
    pub curve: Curve,
    pub copies: CopyFates,
    pub costs: Costs,
    /// Pages that came back from the tier.
    pub unpacked: f64,
    /// Pages that have left memory, in all.
    pub left: u64,
}

impl Past {
    /// Pages that came back from the compressed tier, and those that left and had to be packed.
    pub fn packing(&self) -> (f64, f64) {
        (self.unpacked, (self.curve.left - self.copies.kept).max(0.0))
    }

    /// What a page takes more that is read from a device than one that is compressed, with a `step`
    /// of frames to compare with, and whether so many are read that this was measured.
    pub fn read_ns(&self, step: f64) -> (f64, bool) {
        let Costs { compressed_ns, device_ns, device_reads } = self.costs;
        let reads = device_reads >= READS_LEAST * step;
        ((if reads { device_ns } else { DEVICE_NS } - compressed_ns).max(0.0), reads)
    }
}

/// How things stand.
#[derive(Clone, Copy, Debug)]
pub struct Tiers {
    /// Frames of the budget, and those of the compressed tier.
    pub budget: u64,
    pub frames: u64,
    /// What is compressed.
    pub pages: u64,
    /// Whether the tier takes what it may; and whether it was full, and takes no pages yet.
    pub is_full: bool,
    pub was_full: bool,
    /// Whether devices have room.
    pub has_devices: bool,
}

impl Tiers {
    /// How many frames the size goes at a time.
    pub fn step(&self) -> f64 {
        (self.budget * u64::from(STEP) / u64::from(WHOLE)) as f64
    }
}

/// What a page takes to bring in.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub compressed_ns: f64,
    pub device_ns: f64,
    /// Pages that were read from devices.
    pub device_reads: f64,
}

/// What became of the copies of pages that were in memory, in the time that is remembered.
#[derive(Clone, Copy, Debug)]
pub struct CopyFates {
    /// Pages that left by their copies.
    pub kept: f64,
    /// Those that came in, or lost their copies, when there was no room.
    pub unkept: f64,
}
