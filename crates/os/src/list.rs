//! Lists with room for so many values, which cost memory from their first use until they are
//! forgotten: what a batch of pages needs beside its buffer, of a process that may never have one.

use crate::units::{Errno, PAGE_SIZE};
use crate::vm;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// A mapping from which lists are cut, each in pages of its own.
#[derive(Debug)]
pub struct ListRoom {
    mapping: Arc<Mapping>,
    /// Where the next one begins.
    at: usize,
}

#[derive(Debug)]
struct Mapping(Range<usize>);

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = vm::unmap(self.0.clone());
    }
}

impl ListRoom {
    /// Room for lists of so many [`ListRoom::bytes`] together.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for it.
    pub fn new(bytes: usize) -> Result<ListRoom, Errno> {
        let bytes = bytes.max(PAGE_SIZE);
        let base = vm::map_metadata(bytes)?;
        Ok(ListRoom { mapping: Arc::new(Mapping(base..base + bytes)), at: base })
    }

    /// Bytes of a list of up to `len` values.
    pub const fn bytes<T>(len: usize) -> usize {
        (len * size_of::<T>()).next_multiple_of(PAGE_SIZE)
    }

    /// An empty list of up to `capacity` values.
    ///
    /// # Panics
    /// When there is no room left for it.
    pub fn list<T: Copy>(&mut self, capacity: usize) -> List<T> {
        assert!(align_of::<T>() <= PAGE_SIZE && size_of::<T>() > 0);
        let base = self.at;
        self.at += Self::bytes::<T>(capacity);
        assert!(self.at <= self.mapping.0.end, "the lists of a room fit into it");
        List { base, capacity, len: 0, _mapping: self.mapping.clone(), of: PhantomData }
    }
}

/// A list in a [`ListRoom`]. It never grows beyond its capacity.
pub struct List<T: Copy> {
    base: usize,
    capacity: usize,
    len: usize,
    _mapping: Arc<Mapping>,
    of: PhantomData<Vec<T>>,
}

impl<T: Copy> List<T> {
    /// Most values that it has.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds one.
    ///
    /// # Panics
    /// When it is full.
    pub fn push(&mut self, value: T) {
        assert!(self.len < self.capacity, "a list of {} values is full", self.capacity);
        // SAFETY: 1. the pages from `base` on are this list's alone, aligned, and have room for
        // `capacity` values; 2. they are mapped as long as the list has its mapping.
        unsafe { (self.base as *mut T).add(self.len).write(value) };
        self.len += 1;
    }

    /// Has it be `len` times the same.
    pub fn fill_up(&mut self, len: usize, value: T) {
        self.clear();
        (0..len).for_each(|_| self.push(value));
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Keeps those that `keep` says, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let mut kept = 0;
        for at in 0..self.len {
            let value = self[at];
            if keep(&value) {
                self[kept] = value;
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Takes all out, and gives their memory back.
    pub fn forget(&mut self) {
        self.clear();
        // Where that fails it stays: what is in there is no value any more.
        vm::forget(self.base, ListRoom::bytes::<T>(self.capacity), || ());
    }
}

impl<T: Copy> Deref for List<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: 1. as in `push`; 2. the first `len` values were written, and memory is given back
        // only when there are none.
        unsafe { std::slice::from_raw_parts(self.base as *const T, self.len) }
    }
}

impl<T: Copy> DerefMut for List<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; self is borrowed for writing, so there is no other reference.
        unsafe { std::slice::from_raw_parts_mut(self.base as *mut T, self.len) }
    }
}

impl<'a, T: Copy> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T: Copy> IntoIterator for &'a mut List<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: Copy + fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What values are added to: a [`List`], or a `Vec`.
pub trait Push<T>: DerefMut<Target = [T]> {
    /// Adds one.
    fn push(&mut self, value: T);
    /// Takes all out.
    fn clear(&mut self);
}

impl<T: Copy> Push<T> for List<T> {
    fn push(&mut self, value: T) {
        List::push(self, value);
    }
    fn clear(&mut self) {
        List::clear(self);
    }
}

impl<T> Push<T> for Vec<T> {
    fn push(&mut self, value: T) {
        Vec::push(self, value);
    }
    fn clear(&mut self) {
        Vec::clear(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_a_room_keep_what_they_are_given() {
        let mut room =
            ListRoom::new(ListRoom::bytes::<u64>(1000) + ListRoom::bytes::<[u8; 3]>(10)).unwrap();
        let (mut words, mut bytes) = (room.list::<u64>(1000), room.list::<[u8; 3]>(10));
        drop(room);
        (0..1000).for_each(|at| words.push(at));
        bytes.fill_up(10, [1, 2, 3]);
        assert!(words.iter().copied().eq(0..1000) && *bytes == [[1, 2, 3]; 10]);
        words.retain(|at| at % 100 == 7);
        assert_eq!(*words, [7, 107, 207, 307, 407, 507, 607, 707, 807, 907]);
        words.forget();
        assert!(words.is_empty() && words.capacity() == 1000 && bytes.len() == 10);
        words.push(5);
        assert_eq!(*words, [5]);
    }

    #[test]
    #[should_panic(expected = "is full")]
    fn a_list_does_not_grow_beyond_its_room() {
        let mut list = ListRoom::new(ListRoom::bytes::<u8>(2)).unwrap().list(2);
        (0..3).for_each(|value: u8| list.push(value));
    }
}
