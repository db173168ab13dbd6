//! The lists that clusters stand in, linked through their records. Under the device's lock.

use super::cluster::{ClusterTable, LISTS};

/// No cluster: the end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

/// Ends of the lists.
#[derive(Clone, Debug)]
pub struct ClusterLists([Ends; LISTS]);

impl ClusterLists {
    /// Empty ones.
    #[allow(clippy::new_without_default)]
    pub fn new() -> ClusterLists {
        ClusterLists([Ends { head: NONE, tail: NONE }; LISTS])
    }

    /// First cluster of a list.
    pub fn first(&self, list: usize) -> Option<u32> {
        Some(self.0[list].head).filter(|head| *head != NONE)
    }

    /// Adds a cluster that is in no list at the end of one.
    pub fn link_last(&mut self, clusters: &ClusterTable, cluster: u32, list: usize) {
        let tail = self.0[list].tail;
        clusters.set_links(cluster, (tail, NONE));
        match tail {
            NONE => self.0[list].head = cluster,
            tail => clusters.set_links(tail, (clusters.links(tail).0, cluster)),
        }
        self.0[list].tail = cluster;
    }

    /// Takes a cluster out of its list.
    pub fn unlink(&mut self, clusters: &ClusterTable, cluster: u32, list: usize) {
        let (prev, next) = clusters.links(cluster);
        match prev {
            NONE => self.0[list].head = next,
            prev => clusters.set_links(prev, (clusters.links(prev).0, next)),
        }
        match next {
            NONE => self.0[list].tail = prev,
            next => clusters.set_links(next, (prev, clusters.links(next).1)),
        }
    }

    /// The clusters of a list, in order.
    pub fn iter(&self, clusters: &ClusterTable, list: usize) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(list), |c| {
            Some(clusters.links(*c).1).filter(|next| *next != NONE)
        })
    }
}
