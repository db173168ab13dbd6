//! Programs that want addresses of their choice, or none.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Whether the program wants its reservations where it says, or not at all: it has given back some
/// that lay elsewhere, as they were, one after the other (ZGC of the JVM, whose addresses have
/// meanings). Most who give a hint go on with what they get (V8).
pub struct Insistence {
    /// The last reservation that lies elsewhere than the hint said, 0 for none, and its length.
    placed: AtomicUsize,
    len: AtomicUsize,
    /// How many were given back.
    refused: AtomicUsize,
}

pub static INSISTENCE: Insistence = Insistence {
    placed: AtomicUsize::new(0),
    len: AtomicUsize::new(0),
    refused: AtomicUsize::new(0),
};

impl Insistence {
    /// So many in a row: other collectors of the JVM try up to 29 places, Go's runtime 128, and
    /// then take any. ZGC tries 100,000 before it gives up.
    const ENOUGH: usize = 192;

    pub fn is_there(&self) -> bool {
        self.refused.load(Relaxed) >= Insistence::ENOUGH
    }

    /// A reservation lies at an address that was not asked for.
    pub fn note(&self, placed: usize, len: usize) {
        self.len.store(len, Relaxed);
        if self.placed.swap(placed, Relaxed) != 0 {
            self.refused.store(0, Relaxed);
        }
    }

    /// Something is given back.
    pub fn unmapped(&self, address: usize, len: usize) {
        let is_it = self.placed.load(Relaxed) == address && self.len.load(Relaxed) == len;
        if is_it && self.placed.compare_exchange(address, 0, Relaxed, Relaxed).is_ok() {
            self.refused.fetch_add(1, Relaxed);
        }
    }
}
