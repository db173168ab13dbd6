use super::*;
use overspill_os::vm::Prot;
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
    assert_eq!((map.gap_below(40), map.gap_below(30), map.gap_below(25)), (30..40, 30..30, 25..25));
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
                self.map.held.add(pages.clone());
                self.held.push(pages.clone());
            }
            // One of those that are held, or one that may be.
            6 => {
                let held = self.held.get(start % (self.held.len() + 1));
                let pages = held.unwrap_or(&pages).clone();
                let at = self.held.iter().position(|held| *held == pages);
                assert_eq!(self.map.held.remove(&pages), at.is_some());
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
        let but_guard =
            |page: Option<RegionAttributes>| page.map(|r| RegionAttributes { guard: false, ..r });
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
        self.map.held.outside(WINDOW).into_iter().for_each(|part| is_held[part].fill(false));
        for page in WINDOW {
            let expected = self.held.iter().any(|held| held.contains(&page));
            assert_eq!(is_held[page], expected, "page {page}");
        }
        let any = range.clone().any(|page| is_held[page]);
        assert_eq!(self.map.held.overlaps(range), any);
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
