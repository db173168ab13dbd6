//! What `overspill-bench` has in common with `overspill-load`, the program that it measures under
//! the kernel's swap and under overspill: what pages hold ([`contents`]), how they are accessed
//! ([`workload`]) and what that takes ([`usage`]). Nothing here knows of the engine.

#![forbid(unsafe_code)]

pub mod contents;
pub mod usage;
pub mod workload;
