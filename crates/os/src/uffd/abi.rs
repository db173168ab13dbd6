//! The kernel's stable user interface of userfaultfd (`linux/userfaultfd.h`): numbers and layouts.

use crate::units::PAGE_SIZE;
use std::ops::Range;

const UFFDIO: u64 = 0xAA;

/// Number of an ioctl: direction (1 write, 2 read), size of the argument, number within the type
/// 0xAA.
const fn ioctl_number(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | UFFDIO << 8 | number
}

pub const UFFDIO_API: u64 = ioctl_number(3, 0x3F, size_of::<Api>());
/// The request that registers a range, described by a [`Register`].
pub const UFFDIO_REGISTER: u64 = ioctl_number(3, 0x00, size_of::<Register>());
/// The request that takes a [`UffdRange`] out of registration.
pub const UFFDIO_UNREGISTER: u64 = ioctl_number(2, 0x01, size_of::<UffdRange>());
pub const UFFDIO_WAKE: u64 = ioctl_number(2, 0x02, size_of::<UffdRange>());
/// The request that installs copies, described by a [`Transfer`].
pub const UFFDIO_COPY: u64 = ioctl_number(3, 0x03, size_of::<Transfer>());
/// The request that moves pages, described by a [`Transfer`].
pub const UFFDIO_MOVE: u64 = ioctl_number(3, 0x05, size_of::<Transfer>());
pub const UFFDIO_WRITEPROTECT: u64 = ioctl_number(3, 0x06, size_of::<WriteProtect>());
pub const UFFDIO_POISON: u64 = ioctl_number(3, 0x08, size_of::<Fill>());
pub const USERFAULTFD_IOC_NEW: u64 = ioctl_number(0, 0x00, 0);

pub const API_VERSION: u64 = 0xAA;
pub const REGISTER_MODE_MISSING: u64 = 1;
pub const REGISTER_MODE_WP: u64 = 2;
/// DONTWAKE of COPY, ZEROPAGE, MOVE and POISON.
pub const MODE_DONTWAKE: u64 = 1;
pub const COPY_MODE_WP: u64 = 2;
pub const WRITEPROTECT_MODE_WP: u64 = 1;
pub const WRITEPROTECT_MODE_DONTWAKE: u64 = 2;
pub const UFFD_USER_MODE_ONLY: usize = 1;
pub const EVENT_PAGEFAULT: u8 = 0x12;
pub const PAGEFAULT_FLAG_WRITE: u64 = 1;
pub const PAGEFAULT_FLAG_WP: u64 = 2;

/// Feature bits of a userfaultfd (UFFDIO_API).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features(pub u64);

impl Features {
    /// Write-protect faults (Linux 5.7).
    pub const WRITE_PROTECT: Features = Features(1 << 0);
    /// SIGBUS instead of a message: signal delivery (Linux 4.14).
    pub const SIGBUS: Features = Features(1 << 7);
    /// The faulting thread's id in the message (Linux 4.14).
    pub const THREAD_ID: Features = Features(1 << 8);
    /// Write protection of pages not present (Linux 6.4).
    pub const WP_UNPOPULATED: Features = Features(1 << 13);
    /// Pages that raise SIGBUS when touched (Linux 6.6).
    pub const POISON: Features = Features(1 << 14);
    /// Write protection that the kernel resolves by itself (Linux 6.7).
    pub const WP_ASYNC: Features = Features(1 << 15);
    /// Pages moved rather than copied (Linux 6.8).
    pub const MOVE: Features = Features(1 << 16);

    /// Every bit by the kernel's name, in the order of the bits.
    pub const NAMES: [(Features, &str); 17] = [
        (Features::WRITE_PROTECT, "pagefault_flag_wp"),
        (Features(1 << 1), "event_fork"),
        (Features(1 << 2), "event_remap"),
        (Features(1 << 3), "event_remove"),
        (Features(1 << 4), "missing_hugetlbfs"),
        (Features(1 << 5), "missing_shmem"),
        (Features(1 << 6), "event_unmap"),
        (Features::SIGBUS, "sigbus"),
        (Features::THREAD_ID, "thread_id"),
        (Features(1 << 9), "minor_hugetlbfs"),
        (Features(1 << 10), "minor_shmem"),
        (Features(1 << 11), "exact_address"),
        (Features(1 << 12), "wp_hugetlbfs_shmem"),
        (Features::WP_UNPOPULATED, "wp_unpopulated"),
        (Features::POISON, "poison"),
        (Features::WP_ASYNC, "wp_async"),
        (Features::MOVE, "move"),
    ];

    /// Whether all bits of `wanted` are there.
    pub fn has(self, wanted: Features) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Names of the bits that are there; bits newer than this list have none.
    pub fn names(self) -> Vec<&'static str> {
        Self::NAMES.iter().filter(|(bit, _)| self.has(*bit)).map(|(_, name)| *name).collect()
    }
}

#[repr(C)]
pub struct Api {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

/// struct uffdio_range.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UffdRange {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl From<Range<usize>> for UffdRange {
    fn from(range: Range<usize>) -> UffdRange {
        debug_assert!(range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE));
        UffdRange { start: range.start as u64, len: range.len() as u64 }
    }
}

/// struct uffdio_register.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// What is registered.
    pub range: UffdRange,
    /// For which faults.
    pub mode: u64,
    /// The kernel says here which requests the range takes from then on.
    pub ioctls: u64,
}

/// struct uffdio_copy and struct uffdio_move.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// To where.
    pub dst: u64,
    /// From where.
    pub src: u64,
    /// Bytes.
    pub len: u64,
    /// Flags.
    pub mode: u64,
    /// The kernel says here how many bytes it has transferred, or the error if it has none.
    pub done: i64,
}

/// struct uffdio_poison.
#[repr(C)]
pub struct Fill {
    pub range: UffdRange,
    pub mode: u64,
    pub done: i64,
}

#[repr(C)]
pub struct WriteProtect {
    pub range: UffdRange,
    pub mode: u64,
}
