//! Address space: how much of it an engine takes, and how it makes do with less.
//!
//! Addresses cost nothing as a rule, so the window is a terabyte or two, and tables are as large as
//! they may ever have to be. Two things make mappings cost, used or not: a system that promises
//! only memory that it has, and a limit of address space (RLIMIT_AS).

use super::{Commit, Config, MEMORY_MAX};
use crate::device::DIRECTORY_MAX;
use crate::units::Bytes;
use overspill_os::vm;

/// What an engine takes of limits that a process has, see [`Config::overhead`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overhead {
    /// Of address space (RLIMIT_AS).
    pub addresses: Bytes,
    /// Of data (RLIMIT_DATA): private memory that may be written, touched or not.
    pub data: Bytes,
}

impl Config {
    /// Whether what is mapped counts, used or not, so that tables are to be in proportion to the
    /// budget: the system promises only memory that it has (`vm.overcommit_memory=2`), or a limit
    /// leaves few addresses.
    pub fn counts_mappings(&self) -> bool {
        self.commits_strictly() || self.few_addresses().is_some()
    }

    fn commits_strictly(&self) -> bool {
        self.baselines.commit == Commit::Strict || vm::commits_strictly()
    }

    /// The limit of address space that has no room for what an engine takes elsewhere.
    fn few_addresses(&self) -> Option<Bytes> {
        vm::address_limit().map(Bytes).filter(|limit| *limit < self.overhead().addresses)
    }

    /// Address space reserved for managed memory, of which tables take a hundredth.
    pub fn window_bytes(&self) -> Bytes {
        match self.few_addresses() {
            Some(limit) if self.window.is_none() => self.window_within(limit),
            _ => self.roomy_window(),
        }
    }

    fn roomy_window(&self) -> Bytes {
        const LEAST: u64 = 4 << 30;
        /// Times the budget, where mapping costs: tables as large as a fifth of it.
        const STRICT: u64 = 32;
        let most = self.auto_window;
        let strict = || Bytes(self.memory.0.saturating_mul(STRICT).clamp(LEAST, most.0));
        let auto = || if self.commits_strictly() { strict() } else { most };
        self.window.unwrap_or_else(auto)
    }

    /// The window where addresses are few: of what the arena, the compressed pool and the engine's
    /// code and tables leave, three quarters; the rest is the program's.
    fn window_within(&self, limit: Bytes) -> Bytes {
        /// Times the budget: the arena, and the compressed pool.
        const BUDGETS: u64 = 4;
        const OTHER: u64 = 256 << 20;
        const STEP: u64 = 2 << 20;
        let taken = self.memory.0.saturating_mul(BUDGETS).saturating_add(OTHER);
        Bytes(limit.0.saturating_sub(taken) / 4 * 3 / STEP * STEP)
    }

    /// The largest budget that the pool can come to have.
    pub(super) fn memory_max(&self) -> Bytes {
        if self.few_addresses().is_some() { self.memory } else { self.roomy_memory_max() }
    }

    fn roomy_memory_max(&self) -> Bytes {
        /// Times the budget, where mapping costs.
        const STRICT: u64 = 2;
        let most = vm::machine_memory().min(MEMORY_MAX.0);
        let strict = || most.min(self.memory.0.saturating_mul(STRICT));
        Bytes(if self.commits_strictly() { strict() } else { most })
    }

    /// What an engine takes, and may come to take, of limits of its process that leave room for it:
    /// the same in all processes of a job.
    pub fn overhead(&self) -> Overhead {
        /// Parts of the window and of devices that tables of them take; those of devices once more
        /// in the child of a fork.
        const WINDOW_PART: u64 = 64;
        const DEVICES_PART: u64 = 128;
        /// Times the budget: the compressed pool, buffers, and frames.
        const BUDGETS: u64 = 3;
        const OTHER: u64 = 4 << 30;
        let add = u64::saturating_add;
        let (window, budgets) = (self.roomy_window().0, self.memory.0.saturating_mul(BUDGETS));
        let sizes = self.swap.iter().map(|device| device.size.unwrap_or(DIRECTORY_MAX).0);
        let tables = add(window / WINDOW_PART, sizes.fold(0, add) / DEVICES_PART);
        let data = add(add(tables, budgets), OTHER);
        let arena = self.roomy_memory_max().0.max(self.memory.0).saturating_mul(2);
        let addresses = add(add(add(data, window), arena), OTHER);
        Overhead { addresses: Bytes(addresses), data: Bytes(data) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_and_what_an_engine_takes_beside_it_fit_into_few_addresses() {
        let config = Config { memory: Bytes(64 << 20), ..Config::default() };
        assert_eq!(config.window_within(Bytes(4 << 30)), Bytes(2688 << 20));
        assert_eq!(config.window_within(Bytes(512 << 20)), Bytes(0));
    }

    #[test]
    fn what_an_engine_takes_follows_the_window_and_devices() {
        let takes = |window: u64, swap: &str| {
            let swap = vec![swap.parse().unwrap()];
            let (memory, window) = (Bytes(64 << 20), Some(Bytes(window)));
            Config { memory, window, swap, ..Config::default() }.overhead()
        };
        let (small, large) = (takes(1 << 30, "ram:1G"), takes(1 << 40, "ram:1G"));
        assert_eq!(large.addresses.0 - small.addresses.0, (1023 << 30) + (1023 << 24));
        let device = takes(1 << 30, "ram:1T");
        assert_eq!(device.data.0 - small.data.0, 1023 << 23);
    }
}
