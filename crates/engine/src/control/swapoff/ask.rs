//! What a program asks for: devices on the list and off it.

use super::{Ended, Progress, SwapoffError};
use crate::base::sync::lock;
use crate::control::Control;
use crate::device::SwapError;
use crate::device::list::ListedSwap;
use crate::device::spec::SwapSpec;
use overspill_os::backing::Backing;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A device that was taken off the list, and where it stood.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    at: usize,
    listed: ListedSwap,
}

impl<B: Backing> Control<B> {
    /// Puts a device on the list; its number there.
    pub(crate) fn ask_swapon(&self, spec: &SwapSpec) -> u32 {
        let state = &mut *lock(&self.swaps.state);
        let listed = state.list.devices.iter().map(|listed| listed.id);
        let id = listed.chain(self.swap.devices.ids()).max().map_or(0, |id| id + 1);
        state.ended.retain(|(other, _)| *other != id);
        state.list.devices.push(ListedSwap { id, spec: spec.to_absolute() });
        self.ask();
        id
    }

    /// Whether it is open; `None` while that is not known.
    pub(crate) fn swapped_on(&self, id: u32) -> Option<Result<(), SwapError>> {
        let state = &mut *lock(&self.swaps.state);
        if let Some(at) = state.not_opened.iter().position(|(failed, _)| *failed == id) {
            state.list.devices.retain(|listed| listed.id != id);
            return Some(Err(state.not_opened.swap_remove(at).1));
        }
        self.swap.devices.is_open(id).then_some(Ok(()))
    }

    /// Takes a device off the list; its number there, and what takes it back.
    pub(crate) fn ask_swapoff(&self, name: &str) -> Result<Leaving, SwapoffError> {
        let state = &mut *lock(&self.swaps.state);
        let unknown = || SwapoffError::Unknown(name.to_owned());
        let id = self.swap.devices.find(name).ok_or_else(unknown)?;
        let at =
            state.list.devices.iter().position(|listed| listed.id == id).ok_or_else(unknown)?;
        let listed = state.list.devices.remove(at);
        state.ended.retain(|(other, _)| *other != id);
        self.ask();
        Ok(Leaving { at, listed })
    }

    /// How far it is, or what came of it; whoever asked for it is to take it back if it failed.
    pub(crate) fn swapped_off(&self, asked: &Leaving) -> Result<Progress, Ended> {
        let state = &mut *lock(&self.swaps.state);
        let id = asked.listed.id;
        let all_closed = self.swap.devices.to_close().0 == 0 && !self.swaps.closing.load(Acquire);
        if let Some(at) = state.ended.iter().position(|(ended, _)| *ended == id)
            && all_closed
        {
            return Err(state.ended.swap_remove(at).1);
        }
        let moved_pages = state
            .under_way
            .iter()
            .find(|other| other.id == id)
            .map_or(0, |e| e.evacuated().moved_pages);
        Ok(Progress { left_pages: self.swap.devices.left(id), moved_pages })
    }

    /// Puts it on the list again.
    pub(crate) fn take_swapoff_back(&self, asked: &Leaving) {
        let state = &mut *lock(&self.swaps.state);
        state.kept.retain(|id| *id != asked.listed.id);
        if !state.is_listed(asked.listed.id) {
            let at = asked.at.min(state.list.devices.len());
            state.list.devices.insert(at, asked.listed.clone());
        }
        self.ask();
    }

    fn ask(&self) {
        self.swaps.due.store(true, Release);
        self.base.wake.background.wake();
    }
}
