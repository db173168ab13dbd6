//! The LD_PRELOAD library: it puts an unmodified program's memory on the engine.
//!
//! It exports functions of the C library's names, which the loader finds first. The heap is
//! mimalloc, whose mappings come from this library's own `mmap`; private anonymous mappings become
//! managed memory; everything else is passed on. Without OVERSPILL_MEMORY in the environment only
//! the allocator changes.
//!
//! From the bottom up:
//!
//! - [`sys`], [`route`]: system calls and the C library's own functions, ranges.
//! - [`heap`]: the internal heap, never managed.
//! - [`image`], [`loader`]: loaded libraries, and the loader's own memory.
//! - [`pool`]: the one pool of the process.
//! - [`memory`]: what the program hands to a call, and may not be there.
//! - [`map`], [`map_symbols`], [`syscall`]: mappings.
//! - [`gate`], [`large`], [`alloc`], [`entries`]: the program's heap.
//! - [`fork`], [`stdio`], [`thread`], [`credentials`]: processes and threads.
//! - [`dma`], [`fds`], [`signals`], [`handlers`], [`sandbox`]: what else must be seen or guarded.
//! - [`trap`], [`calls`], [`vectors`], [`exec`], [`spawn`], [`altstack`]: system calls on managed
//!   memory, in signal delivery.
//! - [`config`], [`init`]: the beginning.
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

mod advices;
mod alloc;
mod altstack;
mod calls;
mod config;
mod credentials;
mod dma;
mod entries;
mod exec;
mod fds;
mod fork;
mod gate;
mod handlers;
mod heap;
mod image;
mod init;
mod large;
mod loader;
mod map;
mod map_symbols;
mod memory;
mod nested;
mod pool;
mod robust;
mod route;
mod sandbox;
mod signals;
mod spawn;
mod stdio;
mod sys;
mod syscall;
mod thread;
mod tracee;
mod trap;
mod userfaultfd;
mod vectors;

#[cfg(not(test))]
#[global_allocator]
static RUST_HEAP: heap::RustHeap = heap::RustHeap;
