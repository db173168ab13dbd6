//! The map of regions: which pages of the window are mapped, and how. A pure structure;
//! [`crate::space`] acts on it.

mod attributes;
mod gaps;
mod holds;
#[cfg(test)]
mod tests;

pub use attributes::{RegionAttributes, RegionKind};
use gaps::Gaps;
use holds::Holds;
use std::collections::BTreeMap;
use std::ops::Range;

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
    /// What is held in memory for a while.
    pub held: Holds,
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
            held: Holds::default(),
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
