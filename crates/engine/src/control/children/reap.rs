//! How this process is known to its relations to be there, and what it takes back of those that are
//! gone.

use super::{Child, ChildrenState};
use crate::account::Name;
use crate::base::sync::{RankedGuard, lock};
use crate::control::Control;
use overspill_os::backing::Backing;
use overspill_os::beside;

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
