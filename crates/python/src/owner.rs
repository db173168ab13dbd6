//! Who keeps a pool open: the last owner closes it.

use crate::blocks::{Blocks, Given};
use crate::fork;

/// The object of the class, and each allocator over the pool, have it together.
#[derive(Debug)]
pub struct Owner(&'static Blocks);

impl Owner {
    /// Of a pool that `open` makes.
    pub fn new<E>(open: impl FnOnce() -> Result<&'static Blocks, E>) -> Result<Owner, E> {
        let mut list = fork::list();
        let blocks = open()?;
        list.push(blocks);
        Ok(Owner(blocks))
    }

    /// The pool.
    pub fn blocks(&self) -> &'static Blocks {
        self.0
    }

    /// Closes it, unless it is in use.
    pub fn close(&self) -> Result<(), Given> {
        let mut list = fork::list();
        self.0.close()?;
        list.retain(|blocks| !std::ptr::eq(*blocks, self.0));
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Each array keeps an allocator, and that this: none is left.
        let _ = self.close();
    }
}
