//! The map of regions: which pages of the window are mapped, and how. A pure structure;
//! [`crate::space`] acts on it.

mod gaps;

use gaps::Gaps;
use overspill_os::vm::Prot;
use std::collections::BTreeMap;
use std::ops::Range;

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

/// Regions by first page, and the gaps between them.
#[derive(Clone, Debug)]
pub struct RegionMap {
    regions: BTreeMap<usize, (usize, RegionAttributes)>,
    gaps: Gaps,
    /// Where nothing is placed that may be anywhere, and the gaps of it that came to be since.
    withheld: Range<usize>,
    withheld_gaps: Gaps,
    /// What of that is free for who asks for it, and its gaps.
    low: Range<usize>,
    low_gaps: Gaps,
    mapped: usize,
    window: Range<usize>,
    /// Managed pages that are locked, and that are kept.
    locked: usize,
    kept: usize,
    /// Pages from here on are left out of core dumps.
    dump_end: usize,
    /// What is held in memory for a while, as often as it is held.
    held: Vec<Range<usize>>,
}

/// Part of the window that has to enter or leave what a core dump holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpChange {
    /// Its pages.
    pub pages: Range<usize>,
    /// Whether they are to be dumped.
    pub dumped: bool,
}

/// The end of what a core dump holds moves in steps of this many pages, 1 GiB: hardly ever, and a
/// dump passes over a step without content in 0.1 s.
const DUMP_STEP: usize = 1 << 18;

impl RegionMap {
    /// All of `pages` free.
    pub fn new(pages: Range<usize>) -> RegionMap {
        let gaps = Gaps::new(pages.clone());
        RegionMap {
            regions: BTreeMap::new(),
            gaps,
            withheld: 0..0,
            withheld_gaps: Gaps::none(),
            low: 0..0,
            low_gaps: Gaps::none(),
            mapped: 0,
            locked: 0,
            kept: 0,
            dump_end: pages.end,
            window: pages,
            held: Vec::new(),
        }
    }

    /// Number of mapped pages.
    pub fn mapped_pages(&self) -> usize {
        self.mapped
    }

    /// Number of managed pages that are locked.
    pub fn locked_pages(&self) -> usize {
        self.locked
    }

    /// Number of managed pages that are kept.
    pub fn kept_pages(&self) -> usize {
        self.kept
    }

    /// A free run of `pages` pages whose start is a multiple of `align`, as low as can be found
    /// quickly.
    pub fn find_gap(&self, pages: usize, align: usize) -> Option<usize> {
        self.gaps.find(pages, align)
    }

    /// The same among the low pages.
    pub fn find_low(&self, pages: usize) -> Option<usize> {
        self.low_gaps.find(pages, 1)
    }

    /// Whether all of `pages` is free.
    pub fn is_free(&self, pages: Range<usize>) -> bool {
        self.gaps_at(pages.start).contains(pages)
    }

    /// The gaps that a page may lie in.
    fn gaps_at(&self, page: usize) -> &Gaps {
        match page {
            page if self.low.contains(&page) => &self.low_gaps,
            page if self.withheld.contains(&page) => &self.withheld_gaps,
            _ => &self.gaps,
        }
    }

    /// The same, to be changed.
    fn gaps_at_mut(&mut self, page: usize) -> &mut Gaps {
        match page {
            page if self.low.contains(&page) => &mut self.low_gaps,
            page if self.withheld.contains(&page) => &mut self.withheld_gaps,
            _ => &mut self.gaps,
        }
    }

    /// The free pages below a page, down to the next region, or to what is withheld: to numbers
    /// these are neighbours, to addresses they are not.
    pub fn gap_below(&self, page: usize) -> Range<usize> {
        self.gaps_at(page).below(page)
    }

    /// The parts of `pages` that are mapped, each with its region.
    pub fn overlapping(
        &self,
        pages: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, RegionAttributes)> {
        let first =
            self.regions.range(..=pages.start).next_back().map_or(pages.start, |(&start, _)| start);
        self.regions.range(first..pages.end).filter_map(move |(&start, &(end, region))| {
            let part = start.max(pages.start)..end.min(pages.end);
            (part.start < part.end).then_some((part, region))
        })
    }

    /// The region of a page, and all of its pages.
    pub fn around(&self, page: usize) -> Option<(Range<usize>, RegionAttributes)> {
        let (&start, &(end, region)) = self.regions.range(..=page).next_back()?;
        (page < end).then_some((start..end, region))
    }

    /// The pages of `pages` that belong to the mapping of the first: regions that differ in guards
    /// alone.
    pub fn mapping_start(&self, pages: Range<usize>) -> Range<usize> {
        let mut parts = self.overlapping(pages.clone());
        let Some((first, region)) = parts.next().filter(|(part, _)| part.start == pages.start)
        else {
            return pages.start..pages.start;
        };
        let mut end = first.end;
        for (part, other) in parts {
            if part.start != end || !region.is_one_with(other) {
                break;
            }
            end = part.end;
        }
        pages.start..end
    }

    /// Whether any of `pages` is sealed.
    pub fn is_sealed(&self, pages: Range<usize>) -> bool {
        self.overlapping(pages).any(|(_, region)| region.sealed)
    }

    /// The pages of `pages` up to the first that is not mapped.
    pub fn mapped_start(&self, pages: Range<usize>) -> Range<usize> {
        let mut end = pages.start;
        for (part, _) in self.overlapping(pages.clone()) {
            if part.start != end {
                break;
            }
            end = part.end;
        }
        pages.start..end
    }

    /// Whether every page of `pages` is mapped.
    pub fn covers(&self, pages: Range<usize>) -> bool {
        self.mapped_start(pages.clone()) == pages
    }

    /// All regions.
    pub fn iter(&self) -> impl Iterator<Item = (Range<usize>, RegionAttributes)> {
        self.regions.iter().map(|(&start, &(end, region))| (start..end, region))
    }

    /// Maps `pages`, replacing what was there.
    pub fn insert(&mut self, pages: Range<usize>, region: RegionAttributes) {
        assert!(!pages.is_empty());
        self.remove(pages.clone());
        self.gaps_at_mut(pages.start).take(pages.clone());
        self.mapped += pages.len();
        self.join(pages, region);
    }

    /// Puts a region in, joined with equal neighbours. Its pages are in no gap and no region.
    fn join(&mut self, mut pages: Range<usize>, region: RegionAttributes) {
        let [locked, kept] = staying(&pages, &region);
        (self.locked, self.kept) = (self.locked + locked, self.kept + kept);
        if let Some((&start, &(end, before))) = self.regions.range(..pages.start).next_back()
            && end == pages.start
            && before == region
        {
            self.regions.remove(&start);
            pages.start = start;
        }
        if let Some(&(end, after)) = self.regions.get(&pages.end)
            && after == region
        {
            self.regions.remove(&pages.end);
            pages.end = end;
        }
        self.regions.insert(pages.start, (pages.end, region));
    }

    /// Keeps free pages back, once: nothing is placed there, also where something was unmapped
    /// since, for which the program may have a use of its own. `low` ones of them are free, for who
    /// asks for these.
    pub fn withhold(&mut self, pages: Range<usize>, low: Option<Range<usize>>) {
        if !pages.is_empty() {
            self.gaps.take(pages.clone());
            self.withheld = pages;
        }
        if let Some(low) = low {
            self.low_gaps = Gaps::new(low.clone());
            self.low = low;
        }
    }

    /// Maps pages that were kept back.
    pub fn insert_withheld(&mut self, pages: Range<usize>, region: RegionAttributes) {
        self.mapped += pages.len();
        self.join(pages, region);
    }

    /// Unmaps what of `pages` is mapped.
    pub fn remove(&mut self, pages: Range<usize>) {
        let parts: Vec<_> = self.overlapping(pages.clone()).map(|(part, _)| part).collect();
        for part in parts {
            self.cut(part.clone());
            self.mapped -= part.len();
            self.gaps_at_mut(part.start).give(part);
        }
    }

    /// Takes `part`, which lies in one region, out of it.
    fn cut(&mut self, part: Range<usize>) {
        let (&start, &(end, region)) =
            self.regions.range(..=part.start).next_back().expect("the part is mapped");
        assert!(end >= part.end);
        let [locked, kept] = staying(&part, &region);
        (self.locked, self.kept) = (self.locked - locked, self.kept - kept);
        self.regions.remove(&start);
        if start < part.start {
            self.regions.insert(start, (part.start, region));
        }
        if part.end < end {
            self.regions.insert(part.end, (end, region));
        }
    }

    /// Changes the attributes of what of `pages` is mapped.
    pub fn update(&mut self, pages: Range<usize>, change: impl Fn(&mut RegionAttributes)) {
        let parts: Vec<_> = self.overlapping(pages).collect();
        for (part, mut region) in parts {
            self.cut(part.clone());
            change(&mut region);
            self.join(part, region);
        }
    }

    /// Notes that pages are held once more.
    pub fn hold(&mut self, pages: Range<usize>) {
        self.held.push(pages);
    }

    /// Notes that they are held once less; `false` if they were not.
    pub fn release(&mut self, pages: &Range<usize>) -> bool {
        let at = self.held.iter().position(|held| held == pages);
        at.map(|at| self.held.swap_remove(at)).is_some()
    }

    /// All that is held, which is not held any more.
    pub fn release_all(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.held)
    }

    /// Whether any of `pages` is held.
    pub fn is_held(&self, pages: &Range<usize>) -> bool {
        self.held.iter().any(|held| held.start < pages.end && pages.start < held.end)
    }

    /// The parts of `pages` that are not held.
    pub fn not_held(&self, pages: Range<usize>) -> Vec<Range<usize>> {
        self.held.iter().fold(vec![pages], |parts, held| {
            let around = |part: Range<usize>| {
                [part.start..part.end.min(held.start), part.start.max(held.end)..part.end]
            };
            parts.into_iter().flat_map(around).filter(|part| !part.is_empty()).collect()
        })
    }

    /// What is to be changed so that core dumps end not far behind the last region; noted as done.
    ///
    /// The kernel dumps all of a mapping in which there ever was a page, as a hole where there is
    /// none: it would go through the whole window, which takes minutes and makes a file of its
    /// size.
    pub fn limit_dump(&mut self) -> Option<DumpChange> {
        let last = self.regions.last_key_value().map_or(self.window.start, |(_, &(end, _))| end);
        // What is withheld lies elsewhere.
        let last = last.max(self.withheld.end);
        let end = last.next_multiple_of(DUMP_STEP).min(self.window.end);
        let before = self.dump_end;
        if end <= before && before - end <= DUMP_STEP {
            return None;
        }
        self.dump_end = end;
        Some(DumpChange { pages: end.min(before)..end.max(before), dumped: end > before })
    }

    /// Panics unless regions and gaps tile the window, and the figures are right.
    #[cfg(test)]
    fn check(&self, window: Range<usize>) {
        let all = self.iter().map(|(pages, region)| staying(&pages, &region));
        let sum = all.fold([0, 0], |[a, b], [locked, kept]| [a + locked, b + kept]);
        assert_eq!(sum, [self.locked, self.kept]);
        let mut tiles: Vec<_> = self.regions.iter().map(|(&s, &(e, _))| (s, e)).collect();
        let mapped: usize = tiles.iter().map(|(s, e)| e - s).sum();
        assert_eq!(mapped, self.mapped);
        let gaps: Vec<_> = self.gaps.iter().collect();
        tiles.extend(gaps.iter().map(|gap| (gap.start, gap.end)));
        tiles.sort_unstable();
        let mut at = window.start;
        for (start, end) in tiles {
            assert_eq!(start, at);
            assert!(end > start);
            at = end;
        }
        assert_eq!(at, window.end);
        // Gaps are joined: no two meet.
        assert!(gaps.windows(2).all(|pair| pair[0].end < pair[1].start));
    }
}

/// How many pages of a region are locked, and how many kept. The kernel counts its own.
fn staying(pages: &Range<usize>, region: &RegionAttributes) -> [usize; 2] {
    let is_managed = region.kind == RegionKind::Managed;
    [region.pinned, region.kept].map(|stays| if stays && is_managed { pages.len() } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Range<usize> = 16..96;

    #[test]
    fn core_dumps_end_behind_the_last_region() {
        let window = 512..1000 * DUMP_STEP + 512;
        let mut map = RegionMap::new(window.clone());
        let change = |pages, dumped| Some(DumpChange { pages, dumped });
        assert_eq!(map.limit_dump(), change(DUMP_STEP..window.end, false));
        assert_eq!(map.limit_dump(), None);
        map.insert(600..700, RegionAttributes::managed(Prot::READ));
        assert_eq!(map.limit_dump(), None);
        // Up at once, so that nothing is missing; down by more than a step, so that it does not go
        // to and fro.
        map.insert(5 * DUMP_STEP..5 * DUMP_STEP + 1, RegionAttributes::managed(Prot::READ));
        assert_eq!(map.limit_dump(), change(DUMP_STEP..6 * DUMP_STEP, true));
        map.insert(window.end - 1..window.end, RegionAttributes::managed(Prot::READ));
        assert_eq!(map.limit_dump(), change(6 * DUMP_STEP..window.end, true));
        map.remove(window.end - 1..window.end);
        assert_eq!(map.limit_dump(), change(6 * DUMP_STEP..window.end, false));
        map.insert(4 * DUMP_STEP..4 * DUMP_STEP + 1, RegionAttributes::managed(Prot::READ));
        map.remove(5 * DUMP_STEP..5 * DUMP_STEP + 1);
        assert_eq!(map.limit_dump(), None);
        map.remove(512..window.end);
        assert_eq!(map.limit_dump(), change(DUMP_STEP..6 * DUMP_STEP, false));
    }

    #[test]
    fn the_gap_below_a_page_ends_at_the_next_region() {
        let mut map = RegionMap::new(WINDOW);
        assert_eq!(map.gap_below(40), 16..40);
        map.insert(20..30, RegionAttributes::foreign(Prot::READ));
        assert_eq!(
            (map.gap_below(40), map.gap_below(30), map.gap_below(25)),
            (30..40, 30..30, 25..25)
        );
    }

    #[test]
    fn what_is_withheld_has_gaps_of_its_own() {
        let mut map = RegionMap::new(WINDOW);
        map.withhold(16..32, None);
        map.insert_withheld(16..30, RegionAttributes::managed(Prot::READ));
        map.remove(20..24);
        assert!(map.is_free(20..24) && !map.is_free(24..26) && !map.is_free(30..32));
        assert_eq!(map.find_gap(2, 1), Some(32), "the program has not given its array up");
        assert_eq!(map.gap_below(40), 32..40, "no page lies between, and another place below");
        map.insert(20..22, RegionAttributes::foreign(Prot::READ));
        assert!(!map.is_free(20..24) && map.is_free(22..24));
        assert_eq!(map.gap_below(24), 22..24);
        map.remove(16..30);
        assert!(map.is_free(16..30) && !map.is_free(16..31) && map.mapped_pages() == 0);
        map.insert(16..30, RegionAttributes::managed(Prot::READ));
        assert_eq!(map.mapped_pages(), 14);
    }

    #[test]
    fn low_pages_are_for_who_asks_for_them() {
        let (region, window) = (RegionAttributes::managed(Prot::NONE), 512..10 * DUMP_STEP);
        let mut map = RegionMap::new(window.clone());
        map.withhold(512..DUMP_STEP + 600, Some(1000..2000));
        assert_eq!((map.find_gap(1, 1), map.find_low(1000)), (Some(DUMP_STEP + 600), Some(1000)));
        map.insert(1000..1900, region);
        assert_eq!((map.find_low(100), map.find_low(101)), (Some(1900), None));
        assert!(map.is_free(1900..2000) && !map.is_free(1899..1901) && !map.is_free(600..601));
        map.remove(1200..1300);
        assert_eq!((map.find_low(100), map.mapped_pages()), (Some(1200), 800));
        assert!(map.is_free(1250..1300) && map.find_gap(1, 1) == Some(DUMP_STEP + 600));
        // What core dumps leave out lies in the window alone.
        let dumped = map.limit_dump().map(|change| change.pages);
        assert_eq!(dumped, Some(2 * DUMP_STEP..window.end));
        map.remove(window.clone());
        assert_eq!(map.find_low(1000), Some(1000));
    }

    /// The end of the window.
    const END: usize = WINDOW.end;

    /// The map beside an array of its pages.
    struct Model {
        map: RegionMap,
        pages: [Option<RegionAttributes>; END],
        held: Vec<Range<usize>>,
    }

    impl Model {
        fn step(&mut self, op: u8, start: usize, len: usize, prot: u32) {
            let pages = start..(start + len).min(END);
            let region = RegionAttributes::managed(Prot(prot));
            match op {
                0 => {
                    self.map.insert(pages.clone(), region);
                    self.pages[pages.clone()].fill(Some(region));
                }
                1 => {
                    self.map.remove(pages.clone());
                    self.pages[pages.clone()].fill(None);
                }
                2 => self.update(&pages, |region| region.prot = Prot(prot)),
                3 => self.update(&pages, |region| region.guard = prot.is_multiple_of(2)),
                4 => self.update(&pages, |region| region.sealed = prot.is_multiple_of(2)),
                5 => {
                    self.map.hold(pages.clone());
                    self.held.push(pages.clone());
                }
                // One of those that are held, or one that may be.
                6 => {
                    let held = self.held.get(start % (self.held.len() + 1));
                    let pages = held.unwrap_or(&pages).clone();
                    let at = self.held.iter().position(|held| *held == pages);
                    assert_eq!(self.map.release(&pages), at.is_some());
                    at.map(|at| self.held.remove(at));
                }
                _ => {
                    let is_free = |s: usize| self.pages[s..s + len].iter().all(Option::is_none);
                    let mut places = WINDOW.step_by(4).filter(|s| s + len <= END);
                    let expected = places.find(|s| is_free(*s));
                    assert_eq!(self.map.find_gap(len, 4), expected);
                }
            }
            self.map.check(WINDOW);
            let dump = self.map.limit_dump();
            assert_eq!(dump, None, "a window of less than two steps is dumped as a whole");
            self.check_range(&pages);
            self.check_held(&pages);
        }

        fn update(&mut self, pages: &Range<usize>, change: impl Fn(&mut RegionAttributes)) {
            self.map.update(pages.clone(), &change);
            self.pages[pages.clone()].iter_mut().flatten().for_each(change);
        }

        /// All that is said of a range of pages.
        fn check_range(&self, range: &Range<usize>) {
            let (map, pages) = (&self.map, &self.pages[range.clone()]);
            let from_start = |count: usize| range.start..range.start + count;
            let mapped = pages.iter().take_while(|page| page.is_some()).count();
            assert_eq!(map.mapped_start(range.clone()), from_start(mapped));
            assert_eq!(map.covers(range.clone()), pages.iter().all(Option::is_some));
            assert_eq!(map.is_free(range.clone()), pages.iter().all(Option::is_none));
            // Guards cut no mapping in two.
            let but_guard = |page: Option<RegionAttributes>| {
                page.map(|r| RegionAttributes { guard: false, ..r })
            };
            let first = but_guard(pages[0]);
            let is_alike =
                |page: &&Option<RegionAttributes>| first.is_some() && but_guard(**page) == first;
            let alike = pages.iter().take_while(is_alike).count();
            assert_eq!(map.mapping_start(range.clone()), from_start(alike));
            let sealed = pages.iter().flatten().any(|region| region.sealed);
            assert_eq!(map.is_sealed(range.clone()), sealed);
            let mut seen = [None; END];
            map.overlapping(range.clone()).for_each(|(part, region)| seen[part].fill(Some(region)));
            assert_eq!(&seen[range.clone()], pages);
        }

        fn check_held(&self, range: &Range<usize>) {
            let mut is_held = [true; END];
            self.map.not_held(WINDOW).into_iter().for_each(|part| is_held[part].fill(false));
            for page in WINDOW {
                let expected = self.held.iter().any(|held| held.contains(&page));
                assert_eq!(is_held[page], expected, "page {page}");
            }
            let any = range.clone().any(|page| is_held[page]);
            assert_eq!(self.map.is_held(range), any);
        }
    }

    proptest! {
        #[test]
        fn the_map_agrees_with_an_array(
            ops in proptest::collection::vec((0..8u8, WINDOW, 1..30usize, 0..4u32), 1..60),
        ) {
            let map = RegionMap::new(WINDOW);
            let mut model = Model { map, pages: [None; END], held: Vec::new() };
            ops.into_iter().for_each(|(op, start, len, prot)| model.step(op, start, len, prot));
        }
    }
}
