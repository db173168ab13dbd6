//! mprotect, mseal, and guards: what the program may do with pages.

use super::Space;
use super::regions::{RegionAttributes, RegionKind, RegionMap};
use crate::base::sync::lock;
use overspill_os::Errno;
use overspill_os::backing::Backing;
use overspill_os::vm::{self, Prot};
use std::ops::Range;

impl<B: Backing> Space<B> {
    /// mprotect, or pkey_mprotect with a key. Where the range has a hole, or something that is
    /// sealed, what lies before it is changed all the same, as the kernel does it.
    pub(crate) fn protect(
        &self,
        range: Range<usize>,
        prot: Prot,
        key: Option<i32>,
    ) -> Result<(), Errno> {
        if range.is_empty() {
            return Ok(());
        }
        let wanted = self.pages(range)?;
        let mut regions = self.regions();
        let pages = regions.mapped_start(wanted.clone());
        let parts: Vec<_> = regions.overlapping(pages.clone()).collect();
        for run in parts.chunk_by(|(_, a), (_, b)| (a.guard, a.sealed) == (b.guard, b.sealed)) {
            if run[0].1.sealed {
                return Err(Errno::PERM);
            }
            let access = RegionAttributes { prot, ..run[0].1 }.access();
            self.set_protection(run, access, key)?;
            run.iter()
                .for_each(|(part, _)| regions.update(part.clone(), |region| region.prot = prot));
        }
        if pages == wanted { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// Gives the pages of regions that lie side by side a protection in the kernel's page tables.
    fn set_protection(
        &self,
        parts: &[(Range<usize>, RegionAttributes)],
        access: Prot,
        key: Option<i32>,
    ) -> Result<(), Errno> {
        let ([(first, _), ..], [.., (last, _)]) = (parts, parts) else { return Ok(()) };
        let changing = || {
            let changes = |r: &RegionAttributes| {
                r.kind == RegionKind::Managed && r.access().readable() != access.readable()
            };
            parts.iter().filter(move |(_, r)| changes(r)).map(|(part, _)| part.clone())
        };
        // Before access goes, reclaim must know: it reads in place. When access comes, only
        // afterwards. Where the kernel says no, it may have changed some: these pages count as
        // without access.
        if !access.readable() {
            changing().for_each(|part| self.set_access(part, false));
        }
        let addresses = self.memory.address_range(first.start..last.end);
        match key {
            Some(key) => vm::protect_with_key(addresses, access, key)?,
            None => vm::protect(addresses, access)?,
        }
        if access.readable() {
            changing().for_each(|part| self.set_access(part, true));
        }
        Ok(())
    }

    /// mseal. The kernel seals what is a mapping of its own; managed memory it must not, since the
    /// engine has to change it.
    pub(crate) fn seal(&self, range: Range<usize>) -> Result<(), Errno> {
        let pages = self.pages(range)?;
        // What may be accessed stays, so what is known of it does.
        let mut regions = lock(&self.regions);
        if !regions.covers(pages.clone()) {
            return Err(Errno::NOMEM);
        }
        let foreign = regions
            .overlapping(pages.clone())
            .filter(|(_, region)| region.kind == RegionKind::Foreign);
        foreign.map(|(part, _)| self.memory.address_range(part)).try_for_each(vm::seal)?;
        regions.update(pages, |region| region.sealed = true);
        Ok(())
    }

    /// Makes pages of one region guards, which have no content, or has them be guards no longer.
    pub(super) fn set_guard(
        &self,
        regions: &mut RegionMap,
        pages: Range<usize>,
        region: RegionAttributes,
        guard: bool,
    ) -> Result<(), Errno> {
        if region.guard == guard {
            return Ok(());
        }
        self.set_protection(
            &[(pages.clone(), region)],
            RegionAttributes { guard, ..region }.access(),
            None,
        )?;
        regions.update(pages.clone(), |region| region.guard = guard);
        if guard { self.clear(pages) } else { Ok(()) }
    }
}
