//! Memory whose page tables are a table of this module's: for models, whose threads are not those
//! of the machine, so that no fault of theirs can wait in the kernel.
//!
//! The bytes lie in plain anonymous memory, at the addresses that the engine gives. Beside them an
//! entry says of each page whether it is present, and whether it is write-protected. A program of
//! the model loads and stores through the table, and has its faults served where the entry does not
//! let it. Every change of an entry is a step by itself, before which other threads may run.
//!
//! The program stores a number to a page, which fills it in one of several ways ([`Content`]), and
//! a load finds the number that was stored last, in all of the page.
//!
//! Others store past the entry: they find a page by it, hold the page, and write to it wherever it
//! is by then ([`SimulatedTables::hold`]).

use super::Backing;
use crate::uffd::{Stop, Transferred};
use crate::units::{Errno, PAGE_SIZE};
use crate::vm::{self, IoVec};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// The entry of a page that is present.
#[derive(Clone, Copy, Debug)]
struct Entry {
    protected: bool,
    /// Which page of memory it is.
    memory: u64,
}

/// How somebody holds a page of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// By a pin, for as long as it likes: process_vm_writev(2), devices.
    Pin,
    /// Under the lock of the page tables: ptrace(2).
    Lock,
}

/// A page of memory that somebody holds.
#[derive(Debug)]
pub struct HeldPage {
    page: usize,
    memory: u64,
    by: Hold,
}

/// Why an access is a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// The page is not present.
    Absent,
    /// It is write-protected.
    Protected,
}

/// How a number fills a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// It is the first word and the last; between are zeros.
    Sparse,
    /// The same, and between is what cannot be compressed.
    Noise,
    /// It is every word.
    Same,
}

/// Page tables, and what the program must find in its memory.
#[derive(Debug, Default)]
struct Tables {
    /// Of pages that are present, by their addresses.
    entries: HashMap<usize, Entry>,
    /// What the program has stored last, by page; zeros where it has not, or gave it up.
    truth: HashMap<usize, (u32, Content)>,
    /// How many pages of memory there have been.
    made: u64,
    /// Those that are pinned, and how many are held under the lock.
    pinned: Vec<u64>,
    locked: usize,
}

impl Tables {
    /// A page of memory that nobody knows yet.
    fn make(&mut self, protected: bool) -> Entry {
        self.made += 1;
        Entry { protected, memory: self.made }
    }
}

/// Simulated page tables.
#[derive(Debug)]
pub struct SimulatedTables {
    tables: Mutex<Tables>,
    can_move: bool,
    point: fn(),
    wait: fn() -> bool,
}

impl SimulatedTables {
    /// Of which every page is absent; `point` is called before each step, and `wait` by who waits
    /// for another.
    pub fn new(can_move: bool, point: fn(), wait: fn() -> bool) -> SimulatedTables {
        SimulatedTables { tables: Mutex::default(), can_move, point, wait }
    }

    /// Somebody finds a page, to write to it.
    ///
    /// # Errors
    /// What makes it a fault.
    pub fn hold(&self, page: usize, by: Hold) -> Result<HeldPage, Missing> {
        let mut tables = self.step();
        match tables.entries.get(&page) {
            None => Err(Missing::Absent),
            Some(entry) if entry.protected => Err(Missing::Protected),
            Some(&Entry { memory, .. }) => {
                match by {
                    Hold::Pin => tables.pinned.push(memory),
                    Hold::Lock => tables.locked += 1,
                }
                Ok(HeldPage { page, memory, by })
            }
        }
    }

    /// Fills a page that is held with a number, be it in the page tables or not, and lets go of it.
    pub fn store_held(&self, held: HeldPage, number: u32, content: Content) {
        let mut tables = self.step();
        let place = tables.entries.iter().find(|(_, entry)| entry.memory == held.memory);
        if let Some((&place, _)) = place {
            fill(place, number, content);
        }
        tables.truth.insert(held.page, (number, content));
        match held.by {
            Hold::Lock => tables.locked -= 1,
            Hold::Pin => {
                let at = tables.pinned.iter().position(|memory| *memory == held.memory);
                tables.pinned.swap_remove(at.expect("held"));
            }
        }
    }

    /// The program loads a page; the number that is there, or 0.
    ///
    /// # Errors
    /// What makes it a fault.
    ///
    /// # Panics
    /// When it is not what was stored there last.
    pub fn load(&self, page: usize) -> Result<u32, Missing> {
        let tables = self.step();
        tables.entries.get(&page).ok_or(Missing::Absent)?;
        let mut found = [0; WORDS];
        // SAFETY: as in `copy`; the target is a page of our own.
        unsafe { std::ptr::copy_nonoverlapping(page as *const u32, found.as_mut_ptr(), WORDS) };
        let (number, content) = tables.truth.get(&page).copied().unwrap_or((0, Content::Same));
        if found != filled(number, content) {
            let [first, last] = [found[0], found[WORDS - 1]];
            panic!("{page:#x} has {number} as {content:?}, not {first} to {last}");
        }
        Ok(number)
    }

    /// The program fills a page with a number.
    ///
    /// # Errors
    /// What makes it a fault.
    pub fn store(&self, page: usize, number: u32, content: Content) -> Result<(), Missing> {
        let mut tables = self.step();
        match tables.entries.get(&page) {
            None => Err(Missing::Absent),
            Some(entry) if entry.protected => Err(Missing::Protected),
            Some(_) => {
                fill(page, number, content);
                tables.truth.insert(page, (number, content));
                Ok(())
            }
        }
    }

    /// The program has moved a range by mremap: what it stored is elsewhere now.
    pub fn note_remapped(&self, old: Range<usize>, new: usize) {
        let mut tables = self.tables();
        for at in old.clone().step_by(PAGE_SIZE) {
            if let Some(stored) = tables.truth.remove(&at) {
                tables.truth.insert(at - old.start + new, stored);
            }
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lets others run, then has the tables to itself.
    fn step(&self) -> MutexGuard<'_, Tables> {
        (self.point)();
        self.tables()
    }

    /// Transfers `len` bytes page by page, until one says why not.
    fn each_page(&self, len: usize, page: impl Fn(usize) -> Option<Stop>) -> Transferred {
        let stopped = (0..len).step_by(PAGE_SIZE).find_map(|at| page(at).map(|stop| (at, stop)));
        match stopped {
            None => Transferred { bytes: len, stop: None },
            Some((bytes, stop)) => Transferred { bytes, stop: Some(stop) },
        }
    }

    /// Moves present pages to holes.
    fn move_pages(&self, dst: usize, src: Range<usize>) -> Transferred {
        self.each_page(src.len(), |at| {
            let (dst, src) = (dst + at, src.start + at);
            let mut tables = self.step();
            if tables.entries.contains_key(&dst) {
                return Some(Stop::Exists);
            }
            let Some(&Entry { memory, .. }) = tables.entries.get(&src) else {
                return Some(Stop::Absent);
            };
            if tables.pinned.contains(&memory) {
                return Some(Stop::Busy);
            }
            tables.entries.remove(&src);
            copy(src, dst);
            clear(src);
            tables.entries.insert(dst, Entry { protected: false, memory });
            None
        })
    }

    /// Sets whether the present pages of a range are protected.
    fn set_protected(&self, range: Range<usize>, protected: bool) {
        for page in range.step_by(PAGE_SIZE) {
            if let Some(entry) = self.step().entries.get_mut(&page) {
                entry.protected = protected;
            }
        }
    }
}

impl Backing for SimulatedTables {
    fn install(&self, dst: usize, pages: &[u8], protect: bool) -> Transferred {
        self.install_frames(
            dst,
            pages.as_ptr_range().start as usize..pages.as_ptr_range().end as usize,
            protect,
        )
    }

    fn install_quietly(&self, dst: usize, pages: &[u8], protect: bool) -> Transferred {
        self.install(dst, pages, protect)
    }

    fn install_frames(&self, dst: usize, frames: Range<usize>, protect: bool) -> Transferred {
        self.each_page(frames.len(), |at| {
            let mut tables = self.step();
            if tables.entries.contains_key(&(dst + at)) {
                return Some(Stop::Exists);
            }
            copy(frames.start + at, dst + at);
            let entry = tables.make(protect);
            tables.entries.insert(dst + at, entry);
            None
        })
    }

    fn move_in(&self, dst: usize, frames: Range<usize>) -> Transferred {
        self.move_pages(dst, frames)
    }

    fn move_out(&self, frames: usize, src: Range<usize>) -> Transferred {
        self.move_pages(frames, src)
    }

    fn protect(&self, range: Range<usize>) -> Result<(), Errno> {
        self.set_protected(range, true);
        Ok(())
    }

    fn settle(&self) {
        while self.step().locked > 0 && (self.wait)() {}
    }

    fn unprotect(&self, range: Range<usize>) -> Result<(), Errno> {
        self.set_protected(range, false);
        Ok(())
    }

    fn read(&self, address: usize, out: &mut [u8; PAGE_SIZE]) {
        // In two steps: a page that is written to meanwhile gives a mixture.
        for half in [0..PAGE_SIZE / 2, PAGE_SIZE / 2..PAGE_SIZE] {
            let tables = self.step();
            assert!(tables.entries.contains_key(&address), "{address:#x} is read and absent");
            let from = (address + half.start) as *const u8;
            // SAFETY: as in `copy`; the target is a part of the caller's page.
            unsafe { std::ptr::copy_nonoverlapping(from, out[half].as_mut_ptr(), PAGE_SIZE / 2) };
        }
    }

    fn remap(&self, old: Range<usize>, new: usize) -> Result<(), Errno> {
        let mut tables = self.step();
        vm::remap_pages(old.clone(), new)?;
        for at in old.clone().step_by(PAGE_SIZE) {
            if let Some(entry) = tables.entries.remove(&at) {
                let there = tables.entries.insert(at - old.start + new, entry);
                assert!(there.is_none(), "{at:#x} moves to where a page is");
            }
        }
        Ok(())
    }

    fn drop_pages(&self, ranges: &[IoVec]) -> Result<usize, Errno> {
        for range in ranges {
            for page in (range.base..range.base + range.len).step_by(PAGE_SIZE) {
                if self.step().entries.remove(&page).is_some() {
                    clear(page);
                }
            }
        }
        Ok(1)
    }

    fn discard(&self, range: Range<usize>) -> Result<(), Errno> {
        for page in range.step_by(PAGE_SIZE) {
            let mut tables = self.step();
            tables.truth.remove(&page);
            if tables.entries.remove(&page).is_some() {
                clear(page);
            }
        }
        Ok(())
    }

    fn wake(&self, _range: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }

    fn poison(&self, _range: Range<usize>) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn register(&self, _range: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }

    fn unregister(&self, _range: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }

    fn make_exclusive(&self, _page: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }

    fn can_move(&self) -> bool {
        self.can_move
    }

    fn can_poison(&self) -> bool {
        false
    }
}

/// Words of a page.
const WORDS: usize = PAGE_SIZE / 4;

/// What a page holds that a number fills.
fn filled(number: u32, content: Content) -> [u32; WORDS] {
    let between = |i: u32| match content {
        Content::Sparse => 0,
        Content::Same => number,
        // Products with a large odd number have no pattern, to a codec.
        Content::Noise => (number + i).wrapping_mul(0x9E37_79B1).rotate_left(i % 31) ^ i << 16,
    };
    std::array::from_fn(|i| if i == 0 || i == WORDS - 1 { number } else { between(i as u32) })
}

/// Fills a page with a number.
fn fill(page: usize, number: u32, content: Content) {
    let words = filled(number, content);
    // SAFETY: as in `copy`; the source is a page of our own. The engine's own copies of a page are
    // steps of other threads of the model, which do not run now.
    unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), page as *mut u32, WORDS) };
}

/// Copies a page.
fn copy(src: usize, dst: usize) {
    // SAFETY: 1. the window and the arena are mapped readable and writable before pages of them are
    // transferred, and a source of installed pages is a slice; 2. no Rust reference into the window
    // or the arena exists; 3. one is a whole page, the other one not the same: they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, PAGE_SIZE) }
}

/// Makes a page read as zeros, as one does that is a hole, whatever its protection.
fn clear(page: usize) {
    vm::advise(page..page + PAGE_SIZE, vm::MADV_DONTNEED).expect("a page of managed memory");
}
