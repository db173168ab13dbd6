//! How the slots of a device divide into clusters and allotments: arithmetic only.

use super::cluster::CLUSTER_SLOTS;
use crate::units::PAGE_SIZE;
use std::ops::Range;

/// Clusters of an allotment: 32 x 2 MiB = 64 MiB, so that acquisition and growth are rare (two
/// system calls for 16384 pages).
const ALLOTMENT_CLUSTERS: u32 = 32;
/// Allotments that a device has at least, as far as its clusters go: so many processes can share
/// it. A device of 4 GiB and more has allotments of 64 MiB. Processes need not agree on the size:
/// what owns one is a lock on its range of bytes.
const ALLOTMENTS_MIN: u32 = 64;
/// Allotments that a device is to have at most, since each takes 8 bytes: larger ones for 128 GiB
/// and more, as far as a number of clusters fits in a byte.
const ALLOTMENTS_MANY: u32 = 2048;

/// The layout of a device.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Pages of the device, usable or not.
    pub pages: u64,
    /// Pages at the start that are never handed out (a header).
    pub reserved: u64,
    /// Clusters; the last may be cut short.
    pub clusters: u32,
    /// Clusters an allotment.
    allotment_clusters: u32,
}

impl Layout {
    /// That of a device of `pages` pages, the first `reserved` of which are not for slots.
    pub fn new(pages: u64, reserved: u64) -> Layout {
        let clusters = pages.div_ceil(CLUSTER_SLOTS as u64) as u32;
        let usual = (clusters / ALLOTMENTS_MIN).clamp(1, ALLOTMENT_CLUSTERS);
        let allotment_clusters = usual.max(clusters / ALLOTMENTS_MANY).min(u8::MAX.into());
        Layout { pages, reserved, clusters, allotment_clusters }
    }

    /// Number of allotments.
    pub fn allotments(&self) -> u32 {
        self.clusters.div_ceil(self.allotment_clusters)
    }

    /// The allotment of a cluster.
    pub fn allotment_of(&self, cluster: u32) -> u32 {
        cluster / self.allotment_clusters
    }

    /// The clusters of an allotment; the last allotment may have fewer.
    pub fn clusters_of(&self, allotment: u32) -> Range<u32> {
        let first = allotment * self.allotment_clusters;
        first..(first + self.allotment_clusters).min(self.clusters)
    }

    fn pages_of(&self, clusters: Range<u32>) -> Range<u64> {
        let page = |cluster: u32| (cluster as u64 * CLUSTER_SLOTS as u64).min(self.pages);
        page(clusters.start)..page(clusters.end)
    }

    /// Slots of an allotment, bad ones included.
    pub fn slots_of(&self, allotment: u32) -> u64 {
        let pages = self.pages_of(self.clusters_of(allotment));
        pages.end - pages.start.max(self.reserved)
    }

    /// Where clusters lie on the device, in bytes.
    pub fn bytes_of(&self, clusters: Range<u32>) -> Range<u64> {
        let pages = self.pages_of(clusters);
        pages.start * PAGE_SIZE as u64..pages.end * PAGE_SIZE as u64
    }

    /// Where an allotment lies on the device, in bytes: the range that its owner locks.
    pub fn allotment_bytes(&self, allotment: u32) -> Range<u64> {
        self.bytes_of(self.clusters_of(allotment))
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
