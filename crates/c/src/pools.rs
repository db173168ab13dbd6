//! The pools that C has, by their handles.
//!
//! A handle is a number that is never used twice, in the shape of a pointer. So a handle of a pool
//! that was closed, or of none, is told from the others, and nothing lies where it points.
//!
//! Locks: that of the table, for a moment; and that over opening and closing, which is taken
//! before it. A fork holds both ([`crate::fork`]).

use crate::error::{Failure, overspill_error};
use overspill::Pool;
use overspill::units::{Bytes, PAGE_SIZE};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A pool: a budget of RAM with everything behind it. One that was opened is closed by
/// `overspill_close`.
#[allow(non_camel_case_types, reason = "the name of C")]
pub struct overspill_pool {
    /// Of no size that C knows.
    _opaque: [u8; 0],
}

/// Where handles begin, and how far they lie apart: where no memory is, and as a pointer would.
const FIRST: usize = 1 << 56;
const STEP: usize = 64;

/// A region.
#[derive(Debug)]
struct Mapped {
    len: usize,
    /// How often each range of it is held.
    held: BTreeMap<(usize, usize), usize>,
}

#[derive(Debug)]
struct Entry {
    pool: &'static Pool,
    /// Calls under way.
    calls: usize,
    /// By their addresses.
    regions: BTreeMap<usize, Mapped>,
}

impl Entry {
    /// The region in which a range of addresses lies.
    fn region(&mut self, range: &Range<usize>) -> Result<&mut Mapped, Failure> {
        let nearest = self.regions.range_mut(..=range.start).next_back();
        let around = nearest.filter(|(start, mapped)| range.end <= *start + mapped.len);
        around.map(|(_, mapped)| mapped).ok_or_else(|| {
            no_region(format_args!(
                "{:#x} to {:#x} do not lie in one region of the pool: pass addresses that do",
                range.start, range.end
            ))
        })
    }
}

/// The pools of the process.
#[derive(Debug)]
pub struct Table {
    made: usize,
    entries: BTreeMap<usize, Entry>,
}

impl Table {
    /// All pools, in the order in which they were made.
    pub fn pools(&self) -> Vec<&'static Pool> {
        self.entries.values().map(|entry| entry.pool).collect()
    }

    /// In the child of a fork, which has none of the threads that were in calls.
    pub fn forget_calls(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.calls = 0);
    }

    fn entry(&mut self, handle: usize) -> Result<&mut Entry, Failure> {
        let none = || {
            Failure::new(
                overspill_error::OVERSPILL_ERROR_NO_POOL,
                "there is no such pool, or none any more: pass one that overspill_open has made \
                 and that was not closed",
            )
        };
        self.entries.get_mut(&handle).ok_or_else(none)
    }
}

static TABLE: Mutex<Table> = Mutex::new(Table { made: 0, entries: BTreeMap::new() });
static OPENING: Mutex<()> = Mutex::new(());
/// The process that has the pools; 0 before the first.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Whoever panicked with the lock has ended the process.
fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nobody opens or closes a pool, or begins or ends a call, while this is held.
#[derive(Debug)]
pub struct Still {
    /// The pools.
    pub table: MutexGuard<'static, Table>,
    _opening: MutexGuard<'static, ()>,
}

impl Still {
    /// For a fork.
    pub fn begin() -> Still {
        let opening = lock(&OPENING);
        Still { table: lock(&TABLE), _opening: opening }
    }
}

/// The calling process has the pools from now on.
pub fn own() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

/// In a child that was made past the handlers of forks the table may be locked for ever, and what
/// it names does not work.
fn check_owner() -> Result<(), Failure> {
    let owner = OWNER.load(Ordering::Relaxed);
    if owner == 0 || owner == std::process::id() {
        return Ok(());
    }
    Err(Failure::new(
        overspill_error::OVERSPILL_ERROR_FORKED,
        "this process was made by _Fork, vfork or clone, and has no pools: make it by fork, or \
         open a pool after execve",
    ))
}

fn no_region(message: std::fmt::Arguments<'_>) -> Failure {
    Failure::new(overspill_error::OVERSPILL_ERROR_NO_REGION, message)
}

fn in_use(message: impl std::fmt::Display) -> Failure {
    Failure::new(overspill_error::OVERSPILL_ERROR_IN_USE, message)
}

/// Makes a pool, and returns its handle.
pub fn open(make: impl FnOnce() -> Result<Pool, Failure>) -> Result<*mut overspill_pool, Failure> {
    check_owner()?;
    let _opening = lock(&OPENING);
    let pool: &'static Pool = Box::leak(Box::new(make()?));
    own();
    let mut table = lock(&TABLE);
    let handle = FIRST + table.made * STEP;
    table.made += 1;
    table.entries.insert(handle, Entry { pool, calls: 0, regions: BTreeMap::new() });
    Ok(std::ptr::without_provenance_mut(handle))
}

/// Ends a pool that nobody uses.
pub fn close(handle: *mut overspill_pool) -> Result<(), Failure> {
    check_owner()?;
    let _opening = lock(&OPENING);
    let mut table = lock(&TABLE);
    let entry = table.entry(handle.addr())?;
    if !entry.regions.is_empty() {
        let count = entry.regions.len();
        return Err(in_use(format_args!(
            "the pool has regions ({count}) that are mapped: unmap them before it is closed"
        )));
    }
    if entry.calls != 0 {
        return Err(in_use(
            "another thread is in a call for the pool: let it return before the pool is closed",
        ));
    }
    let pool = std::ptr::from_ref(entry.pool).cast_mut();
    table.entries.remove(&handle.addr());
    drop(table);
    // SAFETY: 1. `open` has leaked this box, and nobody has taken it back: the entry was there; 2.
    // no call has a reference: none was under way, and none begins without the entry; nor has a
    // fork, which waits for the lock over closing.
    drop(unsafe { Box::from_raw(pool) });
    Ok(())
}

/// A call under way for a pool.
#[derive(Debug)]
pub struct Call {
    handle: usize,
    /// The pool, which is not closed meanwhile.
    pub pool: &'static Pool,
}

impl Call {
    /// Begins one.
    pub fn begin(handle: *mut overspill_pool) -> Result<Call, Failure> {
        if handle.is_null() {
            return Err(Failure::null("pool"));
        }
        check_owner()?;
        let handle = handle.addr();
        let mut table = lock(&TABLE);
        let entry = table.entry(handle)?;
        entry.calls += 1;
        Ok(Call { handle, pool: entry.pool })
    }

    /// Looks at, or changes, what is known of the pool.
    fn with<R>(&self, look: impl FnOnce(&mut Entry) -> Result<R, Failure>) -> Result<R, Failure> {
        look(lock(&TABLE).entry(self.handle)?)
    }

    /// The pool has a region of so many bytes there.
    pub fn add(&self, start: usize, len: usize) -> Result<(), Failure> {
        self.with(|entry| {
            entry.regions.insert(start, Mapped { len, held: BTreeMap::new() });
            Ok(())
        })
    }

    /// The region that begins there is one no more, unless a part of it is held. Returns its
    /// addresses.
    pub fn remove(&self, start: usize) -> Result<Range<usize>, Failure> {
        self.with(|entry| {
            let Some(mapped) = entry.regions.get(&start) else {
                return Err(no_region(format_args!(
                    "no region of the pool begins at {start:#x}: pass what overspill_map returned, \
                     once"
                )));
            };
            if !mapped.held.is_empty() {
                return Err(in_use(
                    "a part of the region is held: release it before the region is unmapped",
                ));
            }
            let len = mapped.len;
            entry.regions.remove(&start);
            Ok(start..start + len)
        })
    }

    /// Whole pages around `len` bytes from an address on, which lie in one region.
    pub fn part(&self, start: usize, len: usize) -> Result<Range<usize>, Failure> {
        let bytes = bytes(start, len)?;
        self.with(|entry| entry.region(&bytes).map(drop))?;
        Ok(pages(&bytes))
    }

    /// The same, held once more from now on.
    pub fn hold(&self, start: usize, len: usize) -> Result<Range<usize>, Failure> {
        let bytes = bytes(start, len)?;
        self.with(|entry| {
            *entry.region(&bytes)?.held.entry((start, len)).or_default() += 1;
            Ok(pages(&bytes))
        })
    }

    /// The same, held once less.
    pub fn release(&self, start: usize, len: usize) -> Result<Range<usize>, Failure> {
        let bytes = bytes(start, len)?;
        self.with(|entry| {
            let held = &mut entry.region(&bytes)?.held;
            let Some(times) = held.get_mut(&(start, len)) else {
                return Err(Failure::new(
                    overspill_error::OVERSPILL_ERROR_NOT_HELD,
                    format_args!(
                        "{} at {start:#x} are not held: release what was held, with the same \
                         address and size, as often",
                        Bytes(len as u64)
                    ),
                ));
            };
            *times -= 1;
            if *times == 0 {
                held.remove(&(start, len));
            }
            Ok(pages(&bytes))
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Ok(entry) = lock(&TABLE).entry(self.handle) {
            // A child of a fork, which a call cannot make, has none.
            entry.calls = entry.calls.saturating_sub(1);
        }
    }
}

fn bytes(start: usize, len: usize) -> Result<Range<usize>, Failure> {
    if len == 0 {
        return Err(Failure::argument("the size is 0: pass the size of a part of a region"));
    }
    let end = start.checked_add(len);
    end.map(|end| start..end).ok_or_else(|| {
        no_region(format_args!("{len} bytes at {start:#x} go past the end of all addresses"))
    })
}

/// What lies beside shares their fate.
fn pages(bytes: &Range<usize>) -> Range<usize> {
    bytes.start / PAGE_SIZE * PAGE_SIZE..bytes.end.next_multiple_of(PAGE_SIZE)
}
