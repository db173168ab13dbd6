//! What `overspill-bench` has in common with `overspill-load`, the program that it measures under
//! the kernel's swap and under overspill: what pages hold ([`contents`]) and how they are accessed
//! ([`workload`]). Nothing here knows of the engine.

#![forbid(unsafe_code)]

pub mod contents;
pub mod workload;
