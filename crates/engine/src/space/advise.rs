//! madvise.

use super::Space;
use super::regions::{RegionAttributes, RegionKind, RegionMap};
use crate::base::sync::lock;
use crate::control::advice::AdviceRequest;
use crate::memory::word::State;
use crate::units::PageIndex;
use overspill_os::Errno;
use overspill_os::backing::Backing;
use overspill_os::vm::{self, Prot, advice};
use std::ops::Range;

impl<B: Backing> Space<B> {
    /// madvise.
    pub(crate) fn advise(&self, range: Range<usize>, what: i32) -> Result<(), Errno> {
        let pages = self.pages(range)?;
        if pages.is_empty() {
            return Ok(());
        }
        // 1. What may be accessed stays, so what is known of it does; but for guards.
        let mut regions = match what {
            advice::GUARD_INSTALL | advice::GUARD_REMOVE => self.regions(),
            _ => lock(&self.regions),
        };
        let parts: Vec<_> = regions.overlapping(pages.clone()).collect();
        // 2. Region by region, up to one that refuses.
        let (mut requests, mut foreign) = (Vec::new(), Vec::new());
        for (part, region) in &parts {
            // Whoever may write there can do the same without advice.
            let is_kept =
                region.sealed && region.kind == RegionKind::Managed && !region.prot.writable();
            if is_kept && is_discard(what) {
                return Err(Errno::PERM);
            }
            match what {
                advice::DONTDUMP | advice::DODUMP => {
                    self.note_advice(&mut regions, part, what)?;
                    let region = RegionAttributes { undumped: what == advice::DONTDUMP, ..*region };
                    match region.kind {
                        RegionKind::Foreign => {}
                        RegionKind::Managed if region.undumped => {
                            self.keep(&mut regions, part.clone(), region);
                        }
                        RegionKind::Managed => self.let_go(&mut regions, part.clone(), region),
                    }
                }
                advice::DONTFORK | advice::DOFORK | advice::WIPEONFORK | advice::KEEPONFORK => {
                    self.note_advice(&mut regions, part, what)?;
                }
                _ if region.kind == RegionKind::Foreign => foreign.push(part.clone()),
                _ => {
                    check_advice(region, what)?;
                    let request = self.advise_managed(&mut regions, part, *region, what)?;
                    requests.extend(request.map(|request| (request, part.clone())));
                }
            }
        }
        drop(regions);
        // 3. The kernel may wait here, as in [`Space::detach_foreign`].
        foreign
            .into_iter()
            .try_for_each(|part| vm::advise(self.memory.address_range(part), what))?;
        // 4. Reclaim is asked without the map: a page-out is waited for.
        for (request, pages) in requests {
            self.control.take_advice(request, pages);
        }
        let covered: usize = parts.iter().map(|(part, _)| part.len()).sum();
        if covered == pages.len() { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// Advice about forks and core dumps: it is the kernel's to follow, and is noted for a child's
    /// engine.
    fn note_advice(
        &self,
        regions: &mut RegionMap,
        part: &Range<usize>,
        what: i32,
    ) -> Result<(), Errno> {
        vm::advise(self.memory.address_range(part.clone()), what)?;
        regions.update(part.clone(), |region| {
            region.advised = true;
            match what {
                advice::DONTFORK => region.dont_fork = true,
                advice::DOFORK => region.dont_fork = false,
                advice::WIPEONFORK => region.wipe_on_fork = true,
                advice::KEEPONFORK => region.wipe_on_fork = false,
                advice::DONTDUMP => region.undumped = true,
                advice::DODUMP => region.undumped = false,
                _ => {}
            }
        });
        Ok(())
    }

    /// Advice about managed memory, which a region takes. Returns what reclaim is to do.
    fn advise_managed(
        &self,
        regions: &mut RegionMap,
        part: &Range<usize>,
        region: RegionAttributes,
        what: i32,
    ) -> Result<Option<AdviceRequest>, Errno> {
        match what {
            advice::DONTNEED | advice::FREE | advice::DONTNEED_LOCKED => {
                self.clear(part.clone())?
            }
            advice::GUARD_INSTALL | advice::GUARD_REMOVE => {
                self.set_guard(regions, part.clone(), region, what == advice::GUARD_INSTALL)?;
            }
            advice::COLD => return Ok(Some(AdviceRequest::Cold)),
            advice::PAGEOUT => return Ok(Some(AdviceRequest::PageOut)),
            advice::WILLNEED => self.prefetch(part.clone(), region.access()),
            // Populating is what the accesses will do anyway. Order, huge pages and merging: the
            // engine finds its own way.
            advice::NORMAL..=advice::WILLNEED
            | advice::MERGEABLE..=advice::NOHUGEPAGE
            | advice::COLD..=advice::POPULATE_WRITE
            | advice::COLLAPSE => {}
            _ => return Err(Errno::INVAL),
        }
        Ok(None)
    }

    /// MADV_WILLNEED: brings in what is stored, while there is room without reclaim.
    pub(crate) fn prefetch(&self, pages: Range<usize>, access: Prot) {
        for page in pages {
            if self.memory.budget().free_pages() <= self.memory.budget().low() {
                return;
            }
            if matches!(self.memory.words.load(PageIndex(page)).state(), State::Stored(_)) {
                self.bring_in(page..page + 1, access);
            }
        }
    }
}

/// Why a managed region does not take advice, where it does not.
fn check_advice(region: &RegionAttributes, what: i32) -> Result<(), Errno> {
    match what {
        // What is locked is not to be emptied by mistake. What was emptied before may be used
        // again, so a guard may go.
        advice::DONTNEED | advice::FREE | advice::GUARD_INSTALL if region.pinned => {
            Err(Errno::INVAL)
        }
        advice::COLD | advice::PAGEOUT if region.pinned => Err(Errno::INVAL),
        // Populating fails where the accesses would.
        advice::POPULATE_READ if !region.prot.readable() => Err(Errno::INVAL),
        advice::POPULATE_WRITE if !region.prot.writable() => Err(Errno::INVAL),
        advice::POPULATE_READ | advice::POPULATE_WRITE if region.guard => Err(Errno::FAULT),
        _ => Ok(()),
    }
}

/// Whether an advice makes content go away, here or in a child.
fn is_discard(what: i32) -> bool {
    use advice::*;
    matches!(
        what,
        DONTNEED | FREE | DONTNEED_LOCKED | REMOVE | DONTFORK | WIPEONFORK | GUARD_INSTALL
    )
}
