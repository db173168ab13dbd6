//! Tokens: how a process learns that another, and all that descend from it, have left their memory.
//!
//! A process and the children that it forks share a table ([`Tokens`]) in which each has a place: a
//! word that names a thread of the engine's, and the place of its parent. That thread registers the
//! word with the kernel (set_robust_list(2)), which marks it when the thread ends, however it ends.
//! So no descriptor, path or right is needed, and nothing grows with the number of children; it
//! works across changes of user and root directory. The thread ends with its process, and when that
//! executes another program.
//!
//! No locks: places are taken by compare-and-swap. Given back by the nearest ancestor that lives.

use crate::process::program;
use crate::task;
use crate::units::{Errno, PAGE_SIZE};
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::process::{Pid, test_kill_process};
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use syscalls::{Sysno, raw_syscall};

/// Places of a table: processes of a tree that share memory since a fork, dead ones with living
/// descendants included.
const PLACES: usize = 1 << 16;

/// Bits of a word that has been registered: the kernel's FUTEX_OWNER_DIED and FUTEX_TID_MASK.
const DIED: u32 = 1 << 30;
/// The word names a process whose thread has not registered it yet.
const UNREGISTERED: u32 = 1 << 31;

/// What is known of a process. The kernel's struct robust_list comes first: a link.
#[repr(C)]
struct Place {
    /// The next of a robust list of one: the head.
    link: AtomicU64,
    /// Free (0), the thread that holds it, or that number with [`DIED`] or [`UNREGISTERED`].
    word: AtomicU32,
    /// The place of the parent; 0 for none.
    parent: AtomicU32,
}

/// The kernel's struct robust_list_head.
#[repr(C)]
struct Head {
    list: AtomicU64,
    offset: i64,
    pending: AtomicU64,
}

/// Of the one thread of this process that holds a token.
static HEAD: Head = Head {
    list: AtomicU64::new(0),
    offset: std::mem::offset_of!(Place, word) as i64,
    pending: AtomicU64::new(0),
};

/// The place of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(u32);

/// The table of a tree of processes, in memory that they share, and this process's place in it.
pub struct Tokens {
    places: &'static [Place],
    own: AtomicU32,
}

impl Tokens {
    /// A new table, in which this process is the first.
    pub fn new() -> Result<Tokens, Errno> {
        let (bytes, access) = (PLACES * size_of::<Place>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: 1. a new mapping at an address of the kernel's choice replaces nothing; 2. it is
        // page aligned, zero, which is a valid place, and never unmapped; 3. other processes access
        // it by atomic operations only.
        let places = unsafe {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE;
            let base = mm::mmap_anonymous(crate::vm::own_place(bytes), bytes, access, flags)?;
            std::slice::from_raw_parts(base.cast::<Place>(), PLACES)
        };
        let tokens = Tokens { places, own: AtomicU32::new(0) };
        // The first place is nobody's: 0 is no parent. Its parent is the highest place that was
        // ever used.
        let first = tokens.child().ok_or(Errno::NOMEM)?;
        tokens.own.store(first.0, Relaxed);
        Ok(tokens)
    }

    fn high(&self) -> &AtomicU32 {
        &self.places[0].parent
    }

    /// A place for a child that this process is about to fork; `None` when there is no more.
    pub fn child(&self) -> Option<Token> {
        let own = program().as_raw_nonzero().get() as u32;
        let free = |place: &Place| {
            place.word.load(Relaxed) == 0
                && place.word.compare_exchange(0, UNREGISTERED | own, AcqRel, Relaxed).is_ok()
        };
        let at = self.places.iter().skip(1).position(free)? + 1;
        self.places[at].parent.store(self.own.load(Relaxed), Release);
        self.high().fetch_max(at as u32, AcqRel);
        Some(Token(at as u32))
    }

    /// In the child: the place is that of this process, from now on. Without one it is not watched.
    pub fn adopt(&self, token: Option<Token>) {
        self.own.store(token.map_or(0, |token| token.0), Relaxed);
        if let Some(token) = token {
            self.places[token.0 as usize].word.store(UNREGISTERED | std::process::id(), Release);
        }
    }

    /// Has the calling thread, which lives as long as its process, hold the place of that: the
    /// kernel marks it when the thread ends.
    pub fn hold(&self) {
        let own = self.own.load(Relaxed) as usize;
        if own == 0 {
            return;
        }
        let place = &self.places[own];
        let head = &raw const HEAD as u64;
        place.link.store(head, Relaxed);
        HEAD.list.store(&raw const *place as u64, Relaxed);
        place.word.store(task::id() as u32, Release);
        // SAFETY: the list has one member, which lies in memory that is never unmapped and leads
        // back to the head.
        unsafe { raw_syscall!(Sysno::set_robust_list, head, size_of::<Head>()) };
    }

    /// Whether the process of a place lives, in this memory.
    fn lives(&self, at: u32) -> bool {
        match self.places[at as usize].word.load(Acquire) {
            0 => false,
            word if word & DIED != 0 => false,
            // Not yet held: by the number of its process, as this process's namespace has it.
            word if word & UNREGISTERED != 0 => {
                let process = Pid::from_raw((word & !UNREGISTERED) as i32);
                process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
            }
            _ => true,
        }
    }

    /// The places of those of `tokens` whose process is gone, with all that descend from it: gives
    /// these back.
    pub fn take_gone(&self, tokens: &mut dyn Iterator<Item = Token>) -> Vec<Token> {
        let high = self.high().load(Acquire) as usize;
        // 1. Whoever lives keeps all above it.
        let mut kept = vec![false; high + 1];
        for at in (1..=high as u32).filter(|at| self.lives(*at)) {
            let mut above = at as usize;
            while above != 0 && !std::mem::replace(&mut kept[above], true) {
                above = self.places[above].parent.load(Acquire) as usize;
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
                at = self.places[at].parent.load(Acquire) as usize;
            }
            at != 0
        };
        let ours: Vec<usize> =
            (1..kept.len()).filter(|at| !kept[*at] && leads_to_gone(*at)).collect();
        for at in ours {
            self.places[at].word.store(0, Release);
        }
    }

    /// Gives back the place of a child that was not made.
    pub fn not_made(&self, token: Token) {
        self.places[token.0 as usize].word.store(0, Release);
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.high().load(Relaxed))
    }
}

const _: () = assert!(size_of::<Place>() == 16 && (PLACES * 16).is_multiple_of(PAGE_SIZE));

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as the process of `token` has it.
    fn of(tokens: &Tokens, token: Token) -> Tokens {
        Tokens { places: tokens.places, own: AtomicU32::new(token.0) }
    }

    /// Has a thread hold a place, and ends it.
    fn hold_and_end(tokens: &Tokens, token: Token) {
        let tokens = of(tokens, token);
        std::thread::spawn(move || tokens.hold()).join().unwrap();
    }

    #[test]
    fn a_place_is_gone_with_the_last_of_its_descendants() {
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
        // 3. The last one ends: both places are free.
        hold_and_end(&tokens, grandchild);
        assert_eq!(gone(&[child]), [child]);
        assert_eq!(
            (tokens.child(), tokens.child()),
            (Some(child), Some(grandchild)),
            "places are used again"
        );
        tokens.not_made(grandchild);
        assert_eq!(tokens.child(), Some(grandchild));
    }

    #[test]
    fn a_process_that_dies_unregistered_is_gone() {
        let tokens = Tokens::new().unwrap();
        let child = tokens.child().unwrap();
        // Beyond the kernel's largest number.
        tokens.places[child.0 as usize].word.store(UNREGISTERED | (1 << 22 | 1), Relaxed);
        assert_eq!(tokens.take_gone(&mut [child].into_iter()), [child]);
    }
}
