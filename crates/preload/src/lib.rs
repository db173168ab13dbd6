//! The LD_PRELOAD library: it puts an unmodified program's memory on the engine.
//!
//! It exports functions of the C library's names, which the loader finds first. The heap is
//! mimalloc, whose mappings come from this library's own `mmap`; private anonymous mappings become
//! managed memory; everything else is passed on. Without OVERSPILL_MEMORY in the environment only
//! the allocator changes.
//!
//! From the bottom up, each knowing only those before it:
//!
//! - [`sys`], [`route`], [`config`]: system calls and the C library's own functions, ranges, what
//!   the environment asks for.
//! - [`heap`]: the internal heap, never managed. [`image`]: loaded libraries.
//! - [`pool`]: the one pool of the process. [`dormant`]: processes without one. [`own_stack`]: a
//!   stack for our steps.
//! - [`memory`]: what the program hands to a call, and may not be there; made present, copied, or
//!   looked at for addresses. [`load`]: programs without a loader.
//! - [`userfaultfd`], [`nested`], [`robust`]: memory that others know of.
//! - [`signals`]: masks, handlers and signal stacks of the program.
//! - [`trap`], [`calls`], [`streams`], [`sandbox`]: system calls on managed memory, in signal
//!   delivery; filters of the program's own.
//! - [`delivery`]: whether that is used.
//! - [`gate`], [`map`], [`alloc`]: mappings, and the program's heap.
//! - [`fds`], [`dma`]: descriptors, and what devices write to.
//! - [`exec`], [`credentials`], [`limits`], [`stdio`], [`thread`], [`fork`]: processes and threads.
//! - [`mod@syscall`]: all of it by number. [`inline`]: by instructions of the program's own, with
//!   [`data_end`]. [`init`]: the beginning.
//!
//! Context: [`overspill_os::tls`] says for each thread whether it runs the program's own code. Only
//! then is anything managed. Lock order: `FORKING` (fork), the C library's list of streams, the
//! gate, the locks inside it (large blocks, the engine's), the internal heap's lock.
//!
//! Variadic C functions are defined here with their full list of arguments: in the calling
//! convention of x86-64 Linux an argument that was not given is an unread register or a readable
//! word of the caller's frame.

// Nothing here is public; the documentation is for those who work on it.
#![allow(rustdoc::private_intra_doc_links)]
// Unit tests do not interpose: nothing is exported from them, and much is then unused.
#![cfg_attr(test, allow(dead_code))]

mod alloc;
mod calls;
mod code;
mod config;
mod constants;
mod credentials;
mod data_end;
mod delivery;
mod dma;
mod dormant;
mod exec;
mod fds;
mod fork;
mod gate;
mod heap;
mod image;
mod init;
mod inline;
mod kernel_words;
mod limits;
mod load;
mod low;
mod map;
mod memory;
mod nested;
mod own_stack;
mod pool;
mod probe;
mod redirect;
mod remote;
mod rewrite;
mod robust;
mod route;
mod sandbox;
mod signals;
mod stdio;
mod streams;
mod stubs;
mod sys;
mod syscall;
mod thread;
mod trap;
mod userfaultfd;

/// Makes a system call of these bytes on managed memory, and panics where it does not what it does
/// elsewhere: for the fuzz target, which is built as unit tests are.
#[cfg(test)]
pub fn explore(bytes: &[u8]) {
    trap::explore::play(bytes);
}

#[cfg(not(test))]
#[global_allocator]
static RUST_HEAP: heap::RustHeap = heap::RustHeap;
