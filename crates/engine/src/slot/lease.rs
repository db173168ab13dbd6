//! How a slot map takes more of a device into use, extent by extent, and gives it back: leases and growth.
//!
//! The map only keeps the books. Its device asks for the lease of [`SlotMap::next_lease`] and for the disk space of
//! [`SlotMap::growth`], and records the answers.

use super::{Extent, Growth, IDLE_EXTENTS_KEPT, Owner, SlotMap};
use crate::base::PAGE_SIZE;
use crate::slot::CLUSTER_SLOTS;
use crate::slot::cluster::State;
use std::ops::Range;

impl SlotMap {
    /// The next extent to ask a lease for; none if each is leased by us or was by another when asked.
    pub fn next_lease(&mut self) -> Option<u32> {
        let rest = &self.extents[self.lease_hint as usize..];
        let skipped = rest.iter().position(|extent| extent.owner == Owner::Nobody).unwrap_or(rest.len());
        self.lease_hint += skipped as u32;
        (self.lease_hint < self.extents.len() as u32).then_some(self.lease_hint)
    }

    /// Records that the lease asked for is ours: the extent can be grown.
    pub fn leased(&mut self, extent: u32) {
        assert!(self.growing.is_none() && self.extents[extent as usize].owner == Owner::Nobody);
        self.extents[extent as usize].owner = Owner::Us;
        self.growing = Some(extent);
    }

    /// Records that another process has the lease asked for.
    pub fn refused(&mut self, extent: u32) {
        assert_eq!(self.extents[extent as usize].owner, Owner::Nobody);
        self.extents[extent as usize].owner = Owner::Another;
        self.counts.another += self.slots_of(extent);
        self.counts.ungrown -= self.slots_of(extent);
    }

    /// Forgets which extents other processes had, so that they are asked for again.
    pub fn forget_refused(&mut self) {
        if self.counts.another > 0 {
            self.extents.iter_mut().filter(|e| e.owner == Owner::Another).for_each(|e| e.owner = Owner::Nobody);
            self.counts.ungrown += std::mem::take(&mut self.counts.another);
            self.lease_hint = 0;
        }
    }

    /// What is to be grown next; none if a lease is needed first.
    pub fn growth(&self) -> Option<Growth> {
        let extent = self.growing?;
        let clusters = self.clusters_of(extent).len() as u32 - self.extents[extent as usize].grown as u32;
        Some(Growth { extent, clusters })
    }

    /// Where the next `clusters` clusters of a growth lie on the device, in bytes.
    pub fn growth_bytes(&self, growth: Growth, clusters: u32) -> Range<u64> {
        let cluster_bytes = (CLUSTER_SLOTS * PAGE_SIZE) as u64;
        let extent = self.extent_bytes(growth.extent);
        let start = extent.start + self.extents[growth.extent as usize].grown as u64 * cluster_bytes;
        start..(start + clusters as u64 * cluster_bytes).min(extent.end)
    }

    /// Records that the next `clusters` clusters of the extent have disk space: their slots can be handed out.
    pub fn grown(&mut self, growth: Growth, clusters: u32) {
        assert!(clusters <= growth.clusters && self.growth() == Some(growth));
        let first = self.clusters_of(growth.extent).start + self.extents[growth.extent as usize].grown as u32;
        for cluster in first..first + clusters {
            let free = self.table.free_slots(cluster);
            self.counts.free += free;
            self.counts.ungrown -= free;
            self.place(cluster);
        }
        self.extents[growth.extent as usize].grown += clusters as u8;
        if clusters == growth.clusters {
            self.growing = None;
        }
    }

    /// The extent of a slot just freed, if its lease should go back: it has no used slot, and there are others like
    /// it. Of a closed map, if it has no used slot.
    pub fn release_idle(&mut self, offset: u64) -> Option<u32> {
        let index = self.extent_of((offset / CLUSTER_SLOTS as u64) as u32);
        if self.extents[index].owner != Owner::Us {
            return None;
        }
        if self.closed {
            if self.extents[index].used > 0 {
                return None;
            }
        } else {
            if !self.is_idle(index) || self.idle_extents <= IDLE_EXTENTS_KEPT {
                return None;
            }
            for cluster in self.clusters_of(index as u32) {
                self.set_state(cluster, State::Absent);
            }
            self.counts.free -= self.slots_of(index as u32);
            self.counts.ungrown += self.slots_of(index as u32);
        }
        self.extents[index].owner = Owner::Nobody;
        self.extents[index].grown = 0;
        self.lease_hint = self.lease_hint.min(index as u32);
        Some(index as u32)
    }

    /// The leased extents that hold used slots.
    pub fn extents_in_use(&self) -> impl Iterator<Item = u32> {
        let held = |extent: &Extent| extent.owner == Owner::Us && extent.used > 0;
        (0..).zip(&self.extents).filter(move |(_, extent)| held(extent)).map(|(i, _)| i)
    }
}
