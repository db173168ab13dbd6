//! The machine: where pages go, the kernel's own swap, and that nothing of it stays.

pub mod cgroup;
pub mod kernel_swap;
pub mod put_back;
pub mod swap_device;
pub mod swap_dir;
