//! Processes that share memory since a fork: what children have of the devices, and when they are
//! gone.
//!
//! A child is *gone* when it and all that descend from it have ended or execute another program
//! ([`Tokens`]). Then the parent takes back what slots only the child still needed.

mod reap;

use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock};
use crate::device::LentPart;
use overspill_os::Errno;
use overspill_os::token::{Token, Tokens};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// A living child, as its parent sees it.
#[derive(Debug)]
pub struct Child {
    /// Number of the fork, from 1.
    pub seq: u64,
    /// Tells when it is gone; without it (no more places) it is taken to live for ever, which costs
    /// room.
    pub token: Option<Token>,
    /// What was taken for it of files of this process.
    pub parts: Vec<LentPart>,
}

/// The processes that share memory since a fork.
#[derive(Debug)]
pub struct Children {
    /// By what it is known that a child is gone.
    pub tokens: Tokens,
    /// Rounds of background reclaim that freed nothing.
    pub fruitless: AtomicU64,
    /// A fork wants the reserve to be free.
    pub room_wanted: AtomicBool,
    state: RankedMutex<ChildrenState>,
}

#[derive(Default, Debug)]
struct ChildrenState {
    children: Vec<Child>,
    forks: u64,
    /// A fork is under way: children are not looked for.
    forking: bool,
}

impl Children {
    /// Of a process without any.
    pub fn new() -> Result<Children, Errno> {
        Ok(Children {
            tokens: Tokens::new()?,
            fruitless: AtomicU64::new(0),
            room_wanted: AtomicBool::new(false),
            state: RankedMutex::new(Rank::Children, ChildrenState::default()),
        })
    }

    /// A fork begins; its number.
    pub fn begin_fork(&self) -> u64 {
        let mut state = lock(&self.state);
        state.forking = true;
        state.forks += 1;
        state.forks
    }

    /// It is over, in the parent, with a child or without.
    pub fn end_fork(&self, child: Option<Child>) {
        let mut state = lock(&self.state);
        state.forking = false;
        state.children.extend(child);
    }

    /// In the child of a fork, which has the token of its own and no children yet.
    pub fn reset_in_child(&self, token: Option<Token>) {
        *lock(&self.state) = ChildrenState::default();
        self.tokens.adopt(token);
    }
}
