//! What is known of the allotments of a device: whose each is, and what of it is in use.
//!
//! The books of a device hold them ([`super::table::Books`]); [`super::growth`] changes them.

use std::ops::{Index, IndexMut};

/// Whose an allotment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AllotmentOwner {
    /// Nobody's, as far as is known.
    #[default]
    Nobody,
    /// Being asked for by this process.
    Asking,
    /// Owned by this process.
    Us,
    /// Owned by another process when last asked.
    Another,
    /// Owned by this process, and about to be given back.
    Leaving,
}

/// What is known of an allotment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allotment {
    /// Whose it is.
    pub owner: AllotmentOwner,
    /// Clusters that have disk space, from the first.
    pub grown: u8,
    /// Clusters in the free list.
    pub free_clusters: u8,
    /// Slots that could not be written.
    pub bad: u32,
}

/// What is known of each allotment. Those that were never acquired take no memory: a device may
/// have thousands, and most processes use one. There is room for all from the beginning.
#[derive(Debug)]
pub struct Allotments(Vec<Allotment>);

impl Allotments {
    /// Of so many allotments.
    pub fn new(count: u32) -> Allotments {
        Allotments(Vec::with_capacity(count as usize))
    }

    /// Those that were ever acquired, and some between them.
    pub fn known(&self) -> &[Allotment] {
        &self.0
    }

    /// The same, to be changed.
    pub fn known_mut(&mut self) -> &mut [Allotment] {
        &mut self.0
    }
}

impl Clone for Allotments {
    fn clone(&self) -> Allotments {
        let mut copy = Vec::with_capacity(self.0.capacity());
        copy.extend_from_slice(&self.0);
        Allotments(copy)
    }
}

impl Index<u32> for Allotments {
    type Output = Allotment;
    fn index(&self, index: u32) -> &Allotment {
        const NEVER: &Allotment =
            &Allotment { owner: AllotmentOwner::Nobody, grown: 0, free_clusters: 0, bad: 0 };
        self.0.get(index as usize).unwrap_or(NEVER)
    }
}

impl IndexMut<u32> for Allotments {
    fn index_mut(&mut self, index: u32) -> &mut Allotment {
        let index = index as usize;
        if self.0.len() <= index {
            assert!(index < self.0.capacity(), "there is no allotment {index}");
            self.0.resize(index + 1, Allotment::default());
        }
        &mut self.0[index]
    }
}

impl Allotment {
    /// Whether this process owns it.
    pub fn is_ours(&self) -> bool {
        self.owner == AllotmentOwner::Us
    }

    /// Whether another process owns it.
    pub fn is_anothers(&self) -> bool {
        self.owner == AllotmentOwner::Another
    }
}
