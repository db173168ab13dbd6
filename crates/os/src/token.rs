//! Tokens: how a process learns that another, and all that descend from it, have left their memory.
//!
//! A process and the children that it forks share a table ([`Tokens`]) in which each has an entry:
//! a word that names a thread of the engine's, and the entry of its parent. That thread registers
//! the word with the kernel (set_robust_list(2)), which marks it when the thread ends, however it
//! ends. So no descriptor, path or right is needed, and nothing grows with the number of children;
//! it works across changes of user and root directory. The thread ends with its process, and when
//! that executes another program.
//!
//! The same for tables of others' ([`EntryOwner`]): who holds an entry, and whether that process
//! lives.
//!
//! No locks: entries are taken by compare-and-swap. Given back by the nearest ancestor that lives.

use crate::process::program;
use crate::task;
use crate::units::{Errno, PAGE_SIZE};
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::process::{Pid, test_kill_process};
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use syscalls::{Sysno, raw_syscall};

/// Entries of a table: processes of a tree that share memory since a fork, dead ones with living
/// descendants included.
const ENTRIES: usize = 1 << 16;

/// Bits of a word that has been registered: the kernel's FUTEX_OWNER_DIED and FUTEX_TID_MASK.
const DIED: u32 = 1 << 30;
/// The word names a process whose thread has not registered it yet.
const UNREGISTERED: u32 = 1 << 31;

/// What is known of a process. The kernel's struct robust_list comes first: a link.
#[repr(C)]
struct ProcessEntry {
    /// The next of a robust list: another entry, or the head.
    link: AtomicU64,
    /// Free (0), the thread that holds it, or that number with [`DIED`] or [`UNREGISTERED`].
    word: AtomicU32,
    /// The entry of the parent; 0 for none.
    parent: AtomicU32,
}

/// An entry of a table that processes share, which says who holds it: the first two cells. It
/// outlives whoever is killed, at any instruction.
#[derive(Clone, Copy)]
pub struct EntryOwner(&'static ProcessEntry);

impl EntryOwner {
    /// Cells of a table that it takes up.
    pub const CELLS: usize = size_of::<ProcessEntry>() / 8;

    /// That of an entry that begins with these cells.
    ///
    /// # Panics
    /// When they are fewer than [`EntryOwner::CELLS`].
    pub fn of(cells: &'static [AtomicU64]) -> EntryOwner {
        let cells = &cells[..EntryOwner::CELLS];
        // SAFETY: 1. the cells are as large as an entry, aligned at least as well, and any bits are
        // one; 2. they live for ever, and are accessed by atomic operations only.
        EntryOwner(unsafe { &*cells.as_ptr().cast::<ProcessEntry>() })
    }

    /// Takes it for this process, if it is free.
    pub fn take(self) -> bool {
        self.change(0, UNREGISTERED | own_process())
    }

    /// Whether the kernel has noted that who held it has ended.
    pub fn has_died(self) -> bool {
        self.0.word.load(Acquire) & DIED != 0
    }

    /// Whether nobody has it any more, also where only the number of a process tells.
    pub fn is_gone(self) -> bool {
        let word = self.0.word.load(Acquire);
        word != 0 && !is_alive(word)
    }

    /// Takes it from one that is gone: what else the entry says is this process's to clear, before
    /// [`EntryOwner::give_back`].
    pub fn take_from_gone(self) -> bool {
        let word = self.0.word.load(Acquire);
        word != 0 && !is_alive(word) && self.change(word, UNREGISTERED | own_process())
    }

    /// In the child of a fork, whose parent took it for it: it is this process's.
    pub fn adopt(self) {
        self.0.word.store(UNREGISTERED | std::process::id(), Release);
    }

    /// Whether nobody has it.
    pub fn is_free(self) -> bool {
        self.0.word.load(Acquire) == 0
    }

    /// Whether it is this process's: nobody took it, thinking that this process was gone.
    pub fn is_own(self) -> bool {
        match self.0.word.load(Acquire) {
            word if word & UNREGISTERED != 0 => word & !UNREGISTERED == own_process(),
            word => word != 0 && word == HOLDER.load(Relaxed),
        }
    }

    /// Frees it.
    pub fn give_back(self) {
        self.0.word.store(0, Release);
    }

    fn change(self, from: u32, to: u32) -> bool {
        self.0.word.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }
}

impl std::fmt::Debug for EntryOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EntryOwner({:#x})", self.0.word.load(Relaxed))
    }
}

fn own_process() -> u32 {
    program().as_raw_nonzero().get() as u32
}

/// Whether the process lives that a word names, which is not 0.
fn is_alive(word: u32) -> bool {
    if word & DIED != 0 {
        return false;
    }
    // Not yet held: by the number of its process, as this process's namespace has it.
    let process = Pid::from_raw((word & !UNREGISTERED) as i32).filter(|_| word & UNREGISTERED != 0);
    process.is_none_or(|process| test_kill_process(process) != Err(Errno::SRCH))
}

/// The kernel's struct robust_list_head.
#[repr(C)]
struct Head {
    list: AtomicU64,
    offset: i64,
    pending: AtomicU64,
}

/// The thread of this process that holds its token, as the kernel's words name it.
static HOLDER: AtomicU32 = AtomicU32::new(0);

/// Of that thread.
static HEAD: Head = Head {
    list: AtomicU64::new(0),
    offset: std::mem::offset_of!(ProcessEntry, word) as i64,
    pending: AtomicU64::new(0),
};

/// The entry of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(u32);

/// The table of a tree of processes, in memory that they share, and this process's entry in it.
pub struct Tokens {
    entries: &'static [ProcessEntry],
    own: AtomicU32,
}

impl Tokens {
    /// A new table, in which this process is the first.
    pub fn new() -> Result<Tokens, Errno> {
        let (bytes, access) =
            (ENTRIES * size_of::<ProcessEntry>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: 1. a new mapping at an address of the kernel's choice replaces nothing; 2. it is
        // page aligned, zero, which is a valid entry, and never unmapped; 3. other processes access
        // it by atomic operations only.
        let entries = unsafe {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE;
            let base = mm::mmap_anonymous(crate::vm::own_place(bytes), bytes, access, flags)?;
            std::slice::from_raw_parts(base.cast::<ProcessEntry>(), ENTRIES)
        };
        let tokens = Tokens { entries, own: AtomicU32::new(0) };
        // The first entry is nobody's: 0 is no parent. Its parent is the highest entry that was
        // ever used.
        let first = tokens.child().ok_or(Errno::NOMEM)?;
        tokens.own.store(first.0, Relaxed);
        Ok(tokens)
    }

    fn high(&self) -> &AtomicU32 {
        &self.entries[0].parent
    }

    /// An entry for a child that this process is about to fork; `None` when there is no more.
    pub fn child(&self) -> Option<Token> {
        let own = own_process();
        let free = |entry: &ProcessEntry| {
            entry.word.load(Relaxed) == 0
                && entry.word.compare_exchange(0, UNREGISTERED | own, AcqRel, Relaxed).is_ok()
        };
        let at = self.entries.iter().skip(1).position(free)? + 1;
        self.entries[at].parent.store(self.own.load(Relaxed), Release);
        self.high().fetch_max(at as u32, AcqRel);
        Some(Token(at as u32))
    }

    /// In the child: the entry is that of this process, from now on. Without one it is not watched.
    pub fn adopt(&self, token: Option<Token>) {
        self.own.store(token.map_or(0, |token| token.0), Relaxed);
        if let Some(token) = token {
            self.entries[token.0 as usize].word.store(UNREGISTERED | std::process::id(), Release);
        }
    }

    /// Has the calling thread, which lives as long as its process, hold the entry of that, and a
    /// mark: the kernel notes in them when the thread ends.
    pub fn hold(&self, mark: Option<EntryOwner>) {
        let own = self.own.load(Relaxed) as usize;
        let entries = (own != 0).then(|| &self.entries[own]).into_iter();
        let head = &raw const HEAD as u64;
        let (mut next, thread) = (head, task::id() as u32);
        HOLDER.store(thread, Relaxed);
        for entry in entries.chain(mark.map(|mark| mark.0)) {
            entry.link.store(next, Relaxed);
            entry.word.store(thread, Release);
            next = std::ptr::from_ref(entry) as u64;
        }
        HEAD.list.store(next, Release);
        // SAFETY: the members lie in memory that is never unmapped, and the last leads back to the
        // head.
        unsafe { raw_syscall!(Sysno::set_robust_list, head, size_of::<Head>()) };
    }

    /// Whether the process of an entry lives, in this memory.
    fn lives(&self, at: u32) -> bool {
        let word = self.entries[at as usize].word.load(Acquire);
        word != 0 && is_alive(word)
    }

    /// The entries of those of `tokens` whose process is gone, with all that descend from it: gives
    /// these back.
    pub fn take_gone(&self, tokens: &mut dyn Iterator<Item = Token>) -> Vec<Token> {
        let high = self.high().load(Acquire) as usize;
        // 1. Whoever lives keeps all above it.
        let mut kept = vec![false; high + 1];
        for at in (1..=high as u32).filter(|at| self.lives(*at)) {
            let mut above = at as usize;
            while above != 0 && !std::mem::replace(&mut kept[above], true) {
                above = self.entries[above].parent.load(Acquire) as usize;
            }
        }
        // 2. What is gone leaves with all below it.
        let gone: Vec<Token> = tokens.filter(|token| !kept[token.0 as usize]).collect();
        if !gone.is_empty() {
            self.give_back(&gone, &kept);
        }
        gone
    }

    fn give_back(&self, gone: &[Token], kept: &[bool]) {
        let leads_to_gone = |mut at: usize| {
            while at != 0 && !gone.contains(&Token(at as u32)) {
                at = self.entries[at].parent.load(Acquire) as usize;
            }
            at != 0
        };
        let ours: Vec<usize> =
            (1..kept.len()).filter(|at| !kept[*at] && leads_to_gone(*at)).collect();
        for at in ours {
            self.entries[at].word.store(0, Release);
        }
    }

    /// Gives back the entry of a child that was not made.
    pub fn not_made(&self, token: Token) {
        self.entries[token.0 as usize].word.store(0, Release);
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.high().load(Relaxed))
    }
}

const _: () = assert!(size_of::<ProcessEntry>() == 16 && (ENTRIES * 16).is_multiple_of(PAGE_SIZE));

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as the process of `token` has it.
    fn of(tokens: &Tokens, token: Token) -> Tokens {
        Tokens { entries: tokens.entries, own: AtomicU32::new(token.0) }
    }

    /// Has a thread hold an entry, and ends it.
    fn hold_and_end(tokens: &Tokens, token: Token) {
        let tokens = of(tokens, token);
        std::thread::spawn(move || tokens.hold(None)).join().unwrap();
    }

    #[test]
    fn an_entry_is_gone_with_the_last_of_its_descendants() {
        let tokens = Tokens::new().unwrap();
        let child = tokens.child().unwrap();
        let grandchild = of(&tokens, child).child().unwrap();
        let gone = |of: &[Token]| tokens.take_gone(&mut of.iter().copied());
        // 1. Before anybody holds them they are those of this process, which lives.
        assert_eq!(gone(&[child, grandchild]), []);
        // 2. The child ends, and its child lives on.
        hold_and_end(&tokens, child);
        assert!(!tokens.lives(child.0) && tokens.lives(grandchild.0));
        assert_eq!(gone(&[child]), []);
        // 3. The last one ends: both entries are free.
        hold_and_end(&tokens, grandchild);
        assert_eq!(gone(&[child]), [child]);
        assert_eq!(
            (tokens.child(), tokens.child()),
            (Some(child), Some(grandchild)),
            "entries are used again"
        );
        tokens.not_made(grandchild);
        assert_eq!(tokens.child(), Some(grandchild));
    }

    /// Cells of an entry that only this test has.
    fn mark() -> EntryOwner {
        EntryOwner::of(Box::leak(Box::new([const { AtomicU64::new(0) }; EntryOwner::CELLS])))
    }

    #[test]
    fn a_mark_is_its_processs_until_the_thread_that_holds_it_ends() {
        let (mark, tokens) = (mark(), Tokens::new().unwrap());
        assert!(mark.is_free() && !mark.is_own() && !mark.take_from_gone());
        assert!(mark.take() && !mark.take() && mark.is_own(), "taken, and not held yet");
        assert!(!mark.has_died() && !mark.is_gone());
        std::thread::scope(|scope| {
            let held = || {
                of(&tokens, Token(tokens.own.load(Relaxed))).hold(Some(mark));
                assert!(!mark.take_from_gone(), "its process lives");
            };
            scope.spawn(held).join().unwrap();
        });
        assert_eq!(mark.0.word.load(Relaxed), DIED, "the kernel says so");
        assert!(mark.has_died() && mark.is_gone());
        assert!(!tokens.lives(tokens.own.load(Relaxed)), "of the token too");
        assert!(!mark.take() && mark.take_from_gone() && !mark.take_from_gone(), "by one of them");
        mark.give_back();
        assert!(mark.is_free());
    }

    #[test]
    fn a_process_that_dies_unregistered_is_gone() {
        let tokens = Tokens::new().unwrap();
        let child = tokens.child().unwrap();
        // Beyond the kernel's largest number.
        tokens.entries[child.0 as usize].word.store(UNREGISTERED | (1 << 22 | 1), Relaxed);
        assert_eq!(tokens.take_gone(&mut [child].into_iter()), [child]);
    }
}
