//! How the slots of a device divide into clusters and extents: arithmetic only.

use super::cluster::CLUSTER_SLOTS;
use crate::units::PAGE_SIZE;
use std::ops::Range;

/// Clusters of an extent: 32 x 2 MiB = 64 MiB, so that leases and growth are rare (two system calls
/// for 16384 pages).
const EXTENT_CLUSTERS: u32 = 32;
/// Extents that a device has at least, as far as its clusters go: so many processes can share it. A
/// device of 4 GiB and more has extents of 64 MiB. Processes need not agree on the size: leases are
/// locks on ranges of bytes.
const EXTENTS_MIN: u32 = 64;
/// Extents that a device is to have at most, since each takes 8 bytes: larger ones for 128 GiB and
/// more, as far as a number of clusters fits in a byte.
const EXTENTS_MANY: u32 = 2048;

/// The layout of a device.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Pages of the device, usable or not.
    pub pages: u64,
    /// Pages at the start that are never handed out (a header).
    pub reserved: u64,
    /// Clusters; the last may be cut short.
    pub clusters: u32,
    /// Clusters an extent.
    extent_clusters: u32,
}

impl Layout {
    /// That of a device of `pages` pages, the first `reserved` of which are not for slots.
    pub fn new(pages: u64, reserved: u64) -> Layout {
        let clusters = pages.div_ceil(CLUSTER_SLOTS as u64) as u32;
        let usual = (clusters / EXTENTS_MIN).clamp(1, EXTENT_CLUSTERS);
        let extent_clusters = usual.max(clusters / EXTENTS_MANY).min(u8::MAX.into());
        Layout { pages, reserved, clusters, extent_clusters }
    }

    /// Number of extents.
    pub fn extents(&self) -> u32 {
        self.clusters.div_ceil(self.extent_clusters)
    }

    /// The extent of a cluster.
    pub fn extent_of(&self, cluster: u32) -> u32 {
        cluster / self.extent_clusters
    }

    /// The clusters of an extent; the last extent may have fewer.
    pub fn clusters_of(&self, extent: u32) -> Range<u32> {
        let first = extent * self.extent_clusters;
        first..(first + self.extent_clusters).min(self.clusters)
    }

    fn pages_of(&self, clusters: Range<u32>) -> Range<u64> {
        let page = |cluster: u32| (cluster as u64 * CLUSTER_SLOTS as u64).min(self.pages);
        page(clusters.start)..page(clusters.end)
    }

    /// Slots of an extent, bad ones included.
    pub fn slots_of(&self, extent: u32) -> u64 {
        let pages = self.pages_of(self.clusters_of(extent));
        pages.end - pages.start.max(self.reserved)
    }

    /// Where clusters lie on the device, in bytes.
    pub fn bytes_of(&self, clusters: Range<u32>) -> Range<u64> {
        let pages = self.pages_of(clusters);
        pages.start * PAGE_SIZE as u64..pages.end * PAGE_SIZE as u64
    }

    /// Where an extent lies on the device, in bytes: the range that a lease locks.
    pub fn extent_bytes(&self, extent: u32) -> Range<u64> {
        self.bytes_of(self.clusters_of(extent))
    }
}

/// A run of slots cut at the ends of clusters: cluster, first slot in it, number of slots.
pub fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u32, usize, usize)> {
    let end = offset + len as u64;
    let slots = CLUSTER_SLOTS as u64;
    (offset / slots..end.div_ceil(slots)).map(move |cluster| {
        let from = offset.max(cluster * slots);
        let to = end.min((cluster + 1) * slots);
        (cluster as u32, (from - cluster * slots) as usize, (to - from) as usize)
    })
}
