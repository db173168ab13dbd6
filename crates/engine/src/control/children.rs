//! Processes that share memory since a fork: what children have of the devices, and when they are
//! gone.
//!
//! A child is *gone* when it and all that descend from it have ended or execute another program
//! ([`Tokens`]). Then the parent takes back what slots only the child still needed.

use super::Control;
use crate::account::Name;
use crate::base::lockdep::Rank;
use crate::base::sync::{RankedGuard, RankedMutex, lock};
use crate::device::LentPart;
use overspill_os::backing::Backing;
use overspill_os::token::{Token, Tokens};
use overspill_os::{Errno, beside};
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

impl<B: Backing> Control<B> {
    /// Has the calling thread, which lives as long as this process, hold its places among its
    /// relations and in the account of the job.
    pub fn hold_places(&self) {
        let member = self.memory.keep_lease();
        if let Some(member) = member {
            let process = beside::program().as_raw_nonzero().get() as u32;
            member.introduce(process, Name(self.stats.short_name()));
        }
        self.children.tokens.hold(member.map(|member| member.mark()));
    }

    /// Takes back what children held who are gone. Called by the background thread, which waits for
    /// nobody.
    pub fn reap_children(&self) {
        if let Some(state) = self.children.state.try_lock() {
            self.reap_gone(state);
        }
    }

    /// The same before a fork.
    pub fn reap_before_fork(&self) {
        self.reap_gone(lock(&self.children.state));
    }

    fn reap_gone(&self, mut state: RankedGuard<'_, ChildrenState>) {
        if state.children.is_empty() || state.forking {
            return;
        }
        let gone = self
            .children
            .tokens
            .take_gone(&mut state.children.iter().filter_map(|child| child.token));
        if gone.is_empty() {
            return;
        }
        let is_gone = |child: &mut Child| child.token.is_some_and(|token| gone.contains(&token));
        for child in state.children.extract_if(.., is_gone) {
            child.parts.iter().for_each(|lent| self.swap.devices.give_back_part(*lent));
        }
        self.swap.devices.unseal(state.children.iter().map(|child| child.seq).min());
    }
}
