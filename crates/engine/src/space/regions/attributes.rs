//! What is known of a region: the same for all its pages.

use overspill_os::vm::Prot;

/// What a region's pages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Private anonymous memory under management.
    Managed,
    /// A mapping of the kernel's (a file, shared memory) that the program put there, or anonymous
    /// memory that it has for itself.
    Foreign,
}

/// Attributes of a region, equal on all its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionAttributes {
    /// Whose it is.
    pub kind: RegionKind,
    /// The protection that the program gave it; what may be accessed is
    /// [`RegionAttributes::access`].
    pub prot: Prot,
    /// MADV_GUARD_INSTALL: no access, whatever the protection. It cuts no mapping in two
    /// ([`RegionAttributes::is_one_with`]).
    pub guard: bool,
    /// mseal: what is mapped there stays, and so does its protection.
    pub sealed: bool,
    /// mlock.
    pub pinned: bool,
    /// MADV_DONTDUMP: no core dump has it.
    pub undumped: bool,
    /// And it stays in memory, so that no device has it either.
    pub kept: bool,
    /// MADV_DONTFORK: the child of a fork does not have it.
    pub dont_fork: bool,
    /// MADV_WIPEONFORK: the child of a fork reads zeros.
    pub wipe_on_fork: bool,
    /// Not mapped at all: what the mapping above it may grow into (MAP_GROWSDOWN), and nothing is
    /// placed in.
    pub hole: bool,
    /// Whether the kernel's mapping carries advice that must be undone before the addresses are
    /// used again.
    pub advised: bool,
}

impl RegionAttributes {
    /// A plain managed region.
    pub fn managed(prot: Prot) -> RegionAttributes {
        RegionAttributes {
            kind: RegionKind::Managed,
            prot,
            guard: false,
            sealed: false,
            pinned: false,
            undumped: false,
            kept: false,
            dont_fork: false,
            wipe_on_fork: false,
            hole: false,
            advised: false,
        }
    }

    /// What the program may do with its pages, and what the page tables of the kernel are told.
    pub fn access(&self) -> Prot {
        if self.guard { Prot::NONE } else { self.prot }
    }

    /// Whether its pages stay in memory once they are there.
    pub fn stays(&self) -> bool {
        self.pinned || self.kept
    }

    /// Whether the program has one mapping where one region follows the other.
    pub fn is_one_with(self, other: RegionAttributes) -> bool {
        RegionAttributes { guard: other.guard, kept: other.kept, ..self } == other
    }

    /// One that is not managed.
    pub fn foreign(prot: Prot) -> RegionAttributes {
        RegionAttributes { kind: RegionKind::Foreign, ..RegionAttributes::managed(prot) }
    }
}
