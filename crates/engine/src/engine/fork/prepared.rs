//! What the first half of a fork's preparation keeps for what follows.

use crate::account::Member;
use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock};
use crate::device::{InheritedDevice, LentPart};
use crate::stats::Gauges;
use overspill_os::token::Token;
use std::sync::atomic::AtomicBool;

/// What a fork in progress has prepared for the child.
#[derive(Debug)]
pub struct Prepared {
    pub signals: u64,
    pub seq: u64,
    pub lease: ChildLease,
    /// The child's token.
    pub token: Option<Token>,
    /// What the child takes over.
    pub devices: Vec<InheritedDevice>,
    /// What was taken for it of files of this process.
    pub parts: Vec<LentPart>,
    pub gauges: Gauges,
}

/// What the child may have.
#[derive(Clone, Copy, Debug)]
pub struct ChildLease {
    /// Its entry in the account of the job.
    pub member: Option<Member>,
    /// Pages that it leases beside those that it shares, if it does.
    pub own: Option<u64>,
}

/// The fork in progress.
#[derive(Debug)]
pub struct Forking {
    pub prepared: RankedMutex<Option<Prepared>>,
    /// One went over the budget, which was said.
    pub exceeded: AtomicBool,
}

impl Default for Forking {
    fn default() -> Forking {
        let prepared = RankedMutex::new(Rank::Children, None);
        Forking { prepared, exceeded: AtomicBool::new(false) }
    }
}

impl Forking {
    /// What was prepared.
    pub fn take(&self) -> Prepared {
        lock(&self.prepared).take().expect("a fork was prepared")
    }
}
