//! The machine: where pages go, the kernel's own swap, and that nothing of it stays.

mod cgroup;
pub mod kernel_swap;
pub mod put_back;
mod swap_device;
mod swap_dir;

pub use cgroup::Cgroup;
pub use kernel_swap::{
    NO_LIMIT, PROCESS_BYTES, command, counting, path, read_file, swap_on, swaps, use_as_swap,
};
pub use put_back::{Guard, PutBack};
pub use swap_device::{RAM, SwapDevice};
pub use swap_dir::{SwapDir, make, memory_for};
