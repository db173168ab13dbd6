//! What is kept in memory of each page on a device, by which it is known again when it comes back.
//!
//! - **Seals.** The page lies on the device sealed ([`overspill_os::crypt`]): who reads the device
//!   learns nothing of it, and what somebody wrote there, moved, or put back from an earlier time
//!   does not open. Device and slot are the place that it is sealed for. The number of the page and
//!   its tag are kept, 24 bytes a slot. They never lie on the device, so an older page with its own
//!   tag is no better than any other.
//! - **Checksums**, where the user says so and for RAM devices: the CRC-32 of the page, which lies
//!   there as it is; 4 bytes a slot. That finds what a device loses, not what somebody forges.
//!
//! In a fork the child gets a copy of the table, and the key (see there).
//!
//! No locks: a slot's owner alone reads and writes it.

use super::error::ReadFailure;
use crate::units::PAGE_SIZE;
use overspill_os::Errno;
use overspill_os::crypt::Key;
use overspill_os::table::{AtomicTable, ZeroTable};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What is kept of the pages of a device, by slot.
#[derive(Debug)]
pub enum Marks {
    /// The CRC-32 of each.
    Checksums(AtomicTable),
    /// What opens each.
    Seals {
        /// The key of all.
        key: Arc<Key>,
        /// Tells the device from all others that have the key.
        device: u64,
        /// What opens each page.
        seals: ZeroTable<[AtomicU64; 3]>,
    },
}

impl Marks {
    /// For a device of `pages` pages, which are sealed if there is a key.
    pub fn new(pages: u64, key: Option<Arc<Key>>, device: u64) -> Result<Marks, Errno> {
        Ok(match key {
            Some(key) => Marks::Seals { key, device, seals: ZeroTable::new(pages as usize)? },
            None => Marks::Checksums(AtomicTable::new(pages as usize)?),
        })
    }

    /// The key, if pages are sealed.
    pub fn key(&self) -> Option<&Arc<Key>> {
        match self {
            Marks::Seals { key, .. } => Some(key),
            Marks::Checksums(_) => None,
        }
    }

    /// Bytes that a slot takes up here.
    pub fn slot_bytes(&self) -> u64 {
        match self {
            Marks::Seals { .. } => size_of::<[AtomicU64; 3]>() as u64,
            Marks::Checksums(_) => size_of::<AtomicU32>() as u64,
        }
    }

    /// Before pages are written to slots from `first` on: keeps what they are known by, and makes
    /// them what the device is to have.
    pub fn mark(&self, first: u64, pages: &mut [u8]) {
        let pages = (first as usize..).zip(pages.chunks_exact_mut(PAGE_SIZE));
        match self {
            Marks::Seals { key, device, seals } => pages.for_each(|(slot, page)| {
                let seal = key.seal([*device, slot as u64], page);
                seals[slot].iter().zip(seal).for_each(|(cell, word)| cell.store(word, Relaxed));
            }),
            Marks::Checksums(sums) => {
                pages.for_each(|(slot, page)| sums[slot].store(crc32fast::hash(page), Relaxed));
            }
        }
    }

    /// Makes what the device has in a slot the page again that was written there; `false` if it is
    /// another.
    pub fn restore(&self, slot: u64, page: &mut [u8]) -> bool {
        match self {
            Marks::Seals { key, device, seals } => {
                let seal = seals[slot as usize].each_ref().map(|cell| cell.load(Relaxed));
                key.open([*device, slot], seal, page)
            }
            Marks::Checksums(sums) => crc32fast::hash(page) == sums[slot as usize].load(Relaxed),
        }
    }

    /// What is wrong with a page that is another, or of which there is not `all`.
    pub fn failure(&self, all: bool) -> ReadFailure {
        match self {
            Marks::Seals { .. } => ReadFailure::NotAuthentic,
            Marks::Checksums(_) if all => ReadFailure::Checksum,
            Marks::Checksums(_) => ReadFailure::Io(Errno::IO),
        }
    }

    /// What a fork copies.
    #[cfg(test)]
    pub fn copied_by_fork(&self) -> Marks {
        match self {
            Marks::Seals { key, device, seals } => {
                let copy: ZeroTable<[AtomicU64; 3]> = ZeroTable::new(seals.len()).unwrap();
                let cells = copy.as_flattened().iter().zip(seals.as_flattened());
                cells.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
                Marks::Seals { key: key.clone(), device: *device, seals: copy }
            }
            Marks::Checksums(sums) => {
                let copy = AtomicTable::new(sums.len()).unwrap();
                copy.iter()
                    .zip(&**sums)
                    .for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
                Marks::Checksums(copy)
            }
        }
    }
}
