//! swapoff: a device is taken out of use while the program runs, and its pages are moved elsewhere.
//!
//! Which devices there are to be is a list ([`JobSwaps`]): the job's, which the background thread
//! reads when it has changed, or as [`Pool::swapon`](crate::Pool::swapon) and
//! [`Pool::swapoff`](crate::Pool::swapoff) change it. The background thread opens what is missing,
//! and begins an `Evacuation` of each device that is on the list no more: it is retired
//! ([`crate::device`]), so that no page comes to it, and a few threads move those that are there
//! (`evacuate`), until none is left, none can be moved for want of room, or the device is back on
//! the list. Then the background thread closes it, or takes it into use again.
//!
//! Locks: one over the list and what is under way (`Rank::Swaps`); the background thread takes it
//! inside the gate of reclaim, others inside that of mapping calls, so that a fork finds it free.

mod ask;
mod buffers;
mod compressed;
mod devices;
mod elsewhere;
mod evacuate;

use crate::base::lockdep::Rank;
use crate::base::sentence::error_is_a_sentence;
use crate::base::sync::{RankedMutex, lock};
use crate::device::list::JobSwaps;
use crate::device::{Retired, SwapError};
use crate::stats::SwapsOutcome;
use crate::units::FrameId;
use buffers::EvacuationBuffers;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// How many ended evacuations are remembered, for whoever asks.
const ENDED_MAX: usize = 64;

/// How far a device is on its way out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Pages that it still has.
    pub left_pages: u64,
    /// Pages that were moved elsewhere. Others were given up by the program meanwhile.
    pub moved_pages: u64,
}

/// What it took to take a device out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evacuated {
    /// Pages that were moved elsewhere.
    pub moved_pages: u64,
    /// Pages that were read from the device for that; of the others there was a copy in memory.
    pub read_pages: u64,
    /// Operations by which they were read.
    pub read_ops: u64,
    /// Pages that could not be read: an access to one of them fails.
    pub lost_pages: u64,
}

/// Why a device was not taken out of use.
#[derive(Clone, PartialEq, Eq)]
pub enum SwapoffError {
    /// There is no device of that name.
    Unknown(String),
    /// Nothing has room for its pages. It is in use as before.
    NoRoom {
        /// Pages that are left on it.
        left_pages: u64,
    },
    /// The caller wanted no more of it. It is in use as before.
    Interrupted {
        /// Pages that are left on it.
        left_pages: u64,
    },
}

impl fmt::Display for SwapoffError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapoffError::Unknown(name) => {
                write!(
                    f,
                    "no swap device is called '{name}': name one in use, by its path, label or UUID"
                )
            }
            SwapoffError::NoRoom { left_pages } => write!(
                f,
                "neither memory nor another swap device has room for {left_pages} pages of it: \
                 add a device first, or give the program a larger budget"
            ),
            SwapoffError::Interrupted { left_pages } => {
                write!(
                    f,
                    "interrupted: the device is in use as before, with {left_pages} pages on it"
                )
            }
        }
    }
}

error_is_a_sentence!(SwapoffError);

/// How an evacuation comes to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Ending {
    /// It goes on until nothing is left.
    Empty = 0,
    /// The device is to stay.
    Cancelled = 1,
    /// There is no room.
    NoRoom = 2,
}

/// A device on its way out of use.
#[derive(Debug)]
struct Evacuation {
    /// Which of the listed devices.
    id: u32,
    devices: Vec<Retired>,
    /// The next cluster to be looked at, counted over all passes.
    next: AtomicU64,
    /// What each thread works with, locked inside the gate of reclaim.
    buffers: Vec<RankedMutex<Option<EvacuationBuffers>>>,
    /// What the budget is charged for that.
    frames: Vec<FrameId>,
    working: AtomicU32,
    ending: AtomicU32,
    began: Instant,
    /// When a page was moved last, in milliseconds since then, and whether there was no room for
    /// one after that.
    progress_ms: AtomicU64,
    full: AtomicBool,
    moved: AtomicU64,
    read_pages: AtomicU64,
    read_ops: AtomicU64,
    lost: AtomicU64,
}

impl Evacuation {
    fn is_going(&self) -> bool {
        self.ending.load(Relaxed) == Ending::Empty as u32
    }

    fn end(&self, how: Ending) {
        let _ = self.ending.compare_exchange(Ending::Empty as u32, how as u32, Relaxed, Relaxed);
    }

    /// Pages that are left.
    fn left(&self) -> u64 {
        self.devices.iter().filter_map(Retired::area).map(|area| area.slots().counts().used).sum()
    }

    fn evacuated(&self) -> Evacuated {
        let get = |cell: &AtomicU64| cell.load(Relaxed);
        Evacuated {
            moved_pages: get(&self.moved),
            read_pages: get(&self.read_pages),
            read_ops: get(&self.read_ops),
            lost_pages: get(&self.lost),
        }
    }
}

/// What came of an evacuation.
type Ended = Result<Evacuated, SwapoffError>;

#[derive(Debug, Default)]
struct SwapsState {
    /// The devices that there are to be.
    list: JobSwaps,
    under_way: Vec<Arc<Evacuation>>,
    /// Devices of the list that could not be opened.
    not_opened: Vec<(u32, SwapError)>,
    /// Devices that are in use though they are not on the list, since nothing has room for their
    /// pages.
    kept: Vec<u32>,
    ended: Vec<(u32, Ended)>,
    outcome: SwapsOutcome,
}

impl SwapsState {
    fn is_listed(&self, id: u32) -> bool {
        self.list.devices.iter().any(|listed| listed.id == id)
    }

    fn leaves(&self, id: u32) -> bool {
        self.under_way.iter().any(|evacuation| evacuation.id == id)
    }

    fn end(&mut self, id: u32, how: Ended) {
        self.ended.retain(|(other, _)| *other != id);
        if self.ended.len() == ENDED_MAX {
            drop(self.ended.remove(0));
        }
        self.ended.push((id, how));
    }
}

/// Which devices there are to be, and how far that is.
#[derive(Debug)]
pub(crate) struct Swaps {
    state: RankedMutex<SwapsState>,
    /// There is something to be done that the job's table does not tell: now, or to look at with
    /// each nap.
    due: AtomicBool,
    under_way: AtomicBool,
    /// A thread closes files just now, or is about to.
    closing: AtomicBool,
    /// Number of the list of the job that this process has read.
    number: AtomicU32,
    /// Frames that buffers of evacuations are charged for.
    pub charged: AtomicUsize,
}

impl Swaps {
    /// For a process with the devices of a list.
    pub fn new(list: JobSwaps) -> Swaps {
        let number = AtomicU32::new(list.number);
        let state = RankedMutex::new(Rank::Swaps, SwapsState { list, ..SwapsState::default() });
        Swaps {
            state,
            due: AtomicBool::new(true),
            under_way: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            number,
            charged: AtomicUsize::new(0),
        }
    }

    /// The devices that there are to be.
    pub fn list(&self) -> JobSwaps {
        lock(&self.state).list.clone()
    }

    /// Whether the background thread has something to do.
    pub fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }
}
