//! The memory of a pool that is given out, block by block.
//!
//! Each block is a mapping of its own, so that it leaves as a whole. A pool is closed only when
//! none is left; what lives as long as the process is small ([`Blocks::open`]).
//!
//! Locks: one for each pool, which is waited for before any of the engine's, and held over its
//! mapping calls. A fork holds it ([`crate::fork`]). No thread waits for the interpreter's lock
//! meanwhile.

use overspill::config::Config;
use overspill::stats::Counter;
use overspill::units::{Bytes, PAGE_SIZE};
use overspill::{Error, MapFlags, Pool};
use overspill_os::vm::Prot;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// A pool and what of it is given out.
#[derive(Debug)]
pub struct Blocks {
    state: Mutex<State>,
    window: Range<usize>,
    /// Whether more may be given out than there is room for.
    overcommit: bool,
}

/// What is under the lock.
#[derive(Debug)]
pub struct State {
    /// `None` once it is closed.
    pool: Option<Arc<Pool>>,
    /// The length of the block at each address.
    lengths: HashMap<usize, usize>,
    /// Bytes of all of them.
    given: usize,
    budget: Bytes,
    /// Most bytes to give out.
    room: usize,
}

/// What is given out: blocks and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    pub blocks: usize,
    pub bytes: usize,
    /// How much more there is room for; `None` where that is not known.
    pub left: Option<usize>,
}

/// Why nothing can be done with a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl State {
    /// The pool, unless it is closed.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }

    /// Whether there is room for so many bytes more.
    fn has_room(&self, bytes: usize) -> bool {
        self.given.checked_add(bytes).is_some_and(|all| all <= self.room)
    }
}

impl Blocks {
    /// Makes a pool. As the engine's own tables these lines stay when it is closed: a fork may look
    /// at them at any time.
    pub fn open(config: Config, overcommit: bool) -> Result<&'static Blocks, Error> {
        let budget = config.memory;
        let pool = Pool::new(config)?;
        let window = pool.window();
        let state = State {
            pool: Some(Arc::new(pool)),
            lengths: HashMap::new(),
            given: 0,
            budget,
            room: usize::MAX,
        };
        let blocks = Blocks { state: Mutex::new(state), window, overcommit };
        blocks.measure(budget);
        Ok(Box::leak(Box::new(blocks)))
    }

    /// The lock.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The pool, for a call that takes its time.
    pub fn pool(&self) -> Result<Arc<Pool>, Closed> {
        self.lock().pool.clone().ok_or(Closed)
    }

    /// Whether an address is the pool's.
    pub fn contains(&self, address: usize) -> bool {
        self.window.contains(&address)
    }

    /// What is given out.
    pub fn given(&self) -> Given {
        let state = self.lock();
        let known = state.room != usize::MAX;
        let left = known.then(|| state.room.saturating_sub(state.given));
        Given { blocks: state.lengths.len(), bytes: state.given, left }
    }

    /// Looks anew how much there is room for: in the budget and on the devices, if each page has to
    /// be in one of them as it is. Without devices all depends on how it compresses.
    pub fn measure(&self, budget: Bytes) {
        let Ok(pool) = self.pool() else { return };
        let stored = pool.stats().counters[Counter::DeviceCapacityBytes.name()];
        let bounded = stored > 0 && !self.overcommit;
        let mut state = self.lock();
        state.budget = budget;
        state.room = if bounded { (budget.0 + stored) as usize } else { usize::MAX };
    }

    /// The same with the budget of last time.
    pub fn measure_devices(&self) {
        let budget = self.lock().budget;
        self.measure(budget);
    }

    /// A block of at least so many bytes, all zero; `None` where there is no room for it.
    pub fn take(&self, bytes: usize) -> Option<usize> {
        let length = length(bytes)?;
        let mut state = self.lock();
        let pool = state.pool.as_ref().filter(|_| state.has_room(length))?;
        let start = pool.mmap(None, length, Prot::READ_WRITE, MapFlags::default()).ok()?;
        state.lengths.insert(start, length);
        state.given += length;
        Some(start)
    }

    /// Gives a block another length, at another place if need be, with its content.
    pub fn resize(&self, start: usize, bytes: usize) -> Option<usize> {
        let length = length(bytes)?;
        let mut state = self.lock();
        let old = *state.lengths.get(&start)?;
        if length == old {
            return Some(start);
        }
        let has_room = length < old || state.has_room(length - old);
        let pool = state.pool.as_ref().filter(|_| has_room)?;
        let flags = libc::MREMAP_MAYMOVE as u32;
        let moved = pool.mremap(start..start + old, length, flags, 0).ok()?;
        state.lengths.remove(&start);
        state.lengths.insert(moved, length);
        state.given = state.given - old + length;
        Some(moved)
    }

    /// Takes a block back.
    ///
    /// # Panics
    /// When there is none at this address.
    pub fn give_back(&self, start: usize) {
        let mut state = self.lock();
        let length = state.lengths.remove(&start).expect("a block of this pool is given back");
        state.given -= length;
        let pool = state.pool.as_ref().expect("a pool with blocks is open");
        pool.munmap(start..start + length).expect("what is mapped can be unmapped");
    }

    /// Closes the pool, unless blocks are given out; then these.
    pub fn close(&self) -> Result<(), Given> {
        let mut state = self.lock();
        if !state.lengths.is_empty() {
            drop(state);
            return Err(self.given());
        }
        let pool = state.pool.take();
        drop(state);
        drop(pool);
        Ok(())
    }
}

/// Whole pages, one at least.
fn length(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(PAGE_SIZE)
}
