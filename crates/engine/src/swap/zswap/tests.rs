//! The index against a model of it: a map of entries, each with when it became the newest.

use super::*;
use crate::units::PAGE_SIZE;
use overspill_os::list::{List, ListRoom};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A range and a bit, so that runs reach over its end.
const SLOTS: u64 = RANGE_SLOTS as u64 + 100;
/// Where things happen: around the end of the first range.
const FIRST: u64 = RANGE_SLOTS as u64 - 100;
const DEVICES: [usize; 2] = [2, SlotId::IN_MEMORY];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Entries for those slots of a run whose bit is set.
    Insert(u64),
    Invalidate,
    Replace,
    /// Its page is compressed more densely now, or on a device.
    Finish {
        denser: bool,
    },
    /// The same, and somebody else reads.
    FinishWhileRead,
    Rotate,
}

fn step() -> impl Strategy<Value = (Step, usize, u64, usize)> {
    let step = prop_oneof![
        4 => any::<u64>().prop_map(Step::Insert),
        3 => Just(Step::Invalidate),
        1 => Just(Step::Replace),
        1 => any::<bool>().prop_map(|denser| Step::Finish { denser }),
        1 => Just(Step::FinishWhileRead),
        1 => Just(Step::Rotate),
    ];
    (step, 0..DEVICES.len(), FIRST..SLOTS, 1..130usize)
}

/// A list of so many entries at most.
fn room_for(entries: usize) -> List<(SlotId, Object)> {
    ListRoom::new(ListRoom::bytes::<(SlotId, Object)>(entries)).unwrap().list(entries)
}

fn object(number: u64) -> Object {
    Object { handle: Handle::from_bits(number), codec: CodecId::Lz4 }
}

/// The newest last, by device and range.
fn by_age(model: &BTreeMap<SlotId, (Object, u64)>) -> BTreeMap<(usize, u64), Vec<SlotId>> {
    let mut ages = BTreeMap::<_, Vec<_>>::new();
    for (slot, (_, time)) in model {
        ages.entry((slot.device(), slot.offset() / RANGE_SLOTS as u64))
            .or_default()
            .push((*time, *slot));
    }
    ages.values_mut().for_each(|slots| slots.sort_unstable());
    ages.into_iter()
        .map(|(range, slots)| (range, slots.into_iter().map(|(_, slot)| slot).collect()))
        .collect()
}

/// The index beside its model.
struct Model {
    zswap: Zswap,
    /// Each entry, and when it became the newest.
    entries: BTreeMap<SlotId, (Object, u64)>,
    /// The number of the last object.
    number: u64,
    time: u64,
}

impl Model {
    fn new(setting: Invalidate) -> Model {
        let zswap = Zswap::new(setting, Stats::anonymous().unwrap());
        DEVICES.into_iter().for_each(|device| assert!(zswap.open(device, SLOTS)));
        let larger = SLOTS + PAGE_SIZE as u64;
        assert!(!zswap.open(DEVICES[0], larger), "a larger device needs other tables");
        Model { zswap, entries: BTreeMap::new(), number: 0, time: 0 }
    }

    fn step(&mut self, step: Step, run: SlotRun) {
        match step {
            Step::Insert(bits) => self.insert(run, bits),
            Step::Invalidate => self.invalidate(run),
            Step::Replace => self.replace(run.first),
            Step::Finish { denser } => self.finish(run.first, denser),
            Step::FinishWhileRead => self.finish_while_read(run.first),
            Step::Rotate => {
                self.zswap.rotate(run.first, self.time);
                self.time += 1;
                if let Some((_, age)) = self.entries.get_mut(&run.first) {
                    *age = self.time;
                }
            }
        }
        self.check();
    }

    fn next_object(&mut self) -> Object {
        self.number += 1;
        object(self.number)
    }

    fn insert(&mut self, run: SlotRun, bits: u64) {
        let mut new = Vec::new();
        for (i, slot) in run.slots().enumerate() {
            let object = self.next_object();
            (bits >> (i % 64) & 1 != 0).then(|| new.push((slot, object)));
        }
        let (mut older, mut expected) = (Vec::new(), Vec::new());
        self.zswap.insert(new.iter().copied(), self.time, |object| older.push(object));
        for (slot, object) in new {
            self.time += 1;
            let old = self.entries.get(&slot).copied();
            expected.extend(old.map(|(old, _)| old));
            // One that was there keeps its place in the list.
            let age = old.map_or(self.time, |(_, age)| age);
            self.entries.insert(slot, (object, age));
        }
        assert_eq!(older, expected);
    }

    fn invalidate(&mut self, run: SlotRun) {
        let mut freed = Vec::new();
        self.zswap.invalidate(run, |object| freed.push(object));
        let expected: Vec<_> =
            run.slots().filter_map(|slot| Some(self.entries.remove(&slot)?.0)).collect();
        assert_eq!(freed, expected);
    }

    fn replace(&mut self, slot: SlotId) {
        let new = self.next_object();
        let old = self.entries.get(&slot).map(|(object, _)| object.handle);
        assert!(!self.zswap.replace(slot, new.handle, new.handle));
        let moved = old.is_some_and(|old| self.zswap.replace(slot, old, new.handle));
        assert_eq!(moved, old.is_some());
        if moved {
            // Only its place is another.
            self.entries.entry(slot).and_modify(|(old, _)| old.handle = new.handle);
        }
    }

    /// Begins to load an entry, as who wants to finish it does; `None` where there is none.
    fn begin_load(&self, slot: SlotId) -> Option<Object> {
        let Some((wanted, _)) = self.entries.get(&slot).copied() else {
            assert_eq!(self.zswap.begin_load(slot), None);
            return None;
        };
        assert!(!self.zswap.begin_load_of(slot, object(1 << 40)));
        assert!(self.zswap.begin_load_of(slot, wanted));
        Some(wanted)
    }

    fn finish(&mut self, slot: SlotId, denser: bool) {
        let Some(wanted) = self.begin_load(slot) else { return };
        let other = self.next_object();
        let new = denser.then_some(Object { codec: CodecId::Zstd, ..other });
        let moved = self.zswap.replace(slot, wanted.handle, other.handle);
        assert!(!moved, "somebody reads it");
        assert!(self.zswap.finish_load(slot, wanted, new, self.time));
        let age = self.entries.remove(&slot).expect("it was there").1;
        self.entries.extend(new.map(|new| (slot, (new, age))));
    }

    fn finish_while_read(&mut self, slot: SlotId) {
        let Some(wanted) = self.begin_load(slot) else { return };
        let other = self.next_object();
        assert_eq!(self.zswap.begin_load(slot), Some(wanted));
        let moved = self.zswap.replace(slot, wanted.handle, other.handle);
        assert!(!moved, "somebody reads it");
        assert!(!self.zswap.finish_load(slot, wanted, None, self.time));
        self.zswap.end_load(slot);
        self.zswap.end_load(slot);
    }

    fn check(&self) {
        assert_eq!(self.zswap.check(), self.entries.len());
        for device in DEVICES {
            for slot in (FIRST..SLOTS).map(|offset| SlotId::new(device, offset)) {
                let expected = self.entries.get(&slot).map(|(object, _)| *object);
                assert_eq!(self.zswap.look_up(slot), expected);
            }
        }
    }

    /// The oldest are those of one range, from its oldest on.
    fn check_oldest(&self) {
        let mut oldest = room_for(5);
        self.zswap.oldest(self.time, usize::MAX, &mut oldest);
        let ranges = by_age(&self.entries);
        assert_eq!(oldest.is_empty(), ranges.is_empty());
        let Some((first, _)) = oldest.first() else { return };
        let range = &ranges[&(first.device(), first.offset() / RANGE_SLOTS as u64)];
        let entry = |slot: &SlotId| (*slot, self.entries[slot].0);
        let mut expected: Vec<_> = range.iter().take(oldest.capacity()).map(entry).collect();
        expected.sort_unstable_by_key(|(slot, _)| *slot);
        assert_eq!(*oldest, expected);
    }
}

fn invalidate() -> impl Strategy<Value = Invalidate> {
    prop::sample::select(vec![Invalidate::Always, Invalidate::Empty, Invalidate::EmptyLookup])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn entries_are_those_of_a_map(
        setting in invalidate(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut model = Model::new(setting);
        for (step, device, first, len) in steps {
            let len = len.min((SLOTS - first) as usize);
            model.step(step, SlotRun { first: SlotId::new(DEVICES[device], first), len });
        }
        model.check_oldest();
    }
}

/// The range whose oldest entry is the oldest of all comes first, whichever device it is on.
#[test]
fn the_oldest_range_comes_first() {
    let zswap = Zswap::new(Invalidate::default(), Stats::anonymous().unwrap());
    DEVICES.into_iter().for_each(|device| assert!(zswap.open(device, SLOTS)));
    let slots = [(0, 5), (1, 7), (0, SLOTS - 1)]
        .map(|(device, offset)| SlotId::new(DEVICES[device], offset));
    let mut oldest = room_for(8);
    zswap.oldest(0, usize::MAX, &mut oldest);
    assert!(oldest.is_empty());
    for (slot, time) in slots.into_iter().zip([20, 10, 30]) {
        let none = |older| panic!("{older:?} was there");
        zswap.insert(std::iter::once((slot, object(time))), time, none);
    }
    for (expected, number) in [(1, 10), (0, 20), (2, 30)] {
        zswap.oldest(40, usize::MAX, &mut oldest);
        assert_eq!(*oldest, [(slots[expected], object(number))]);
        zswap.invalidate(SlotRun { first: slots[expected], len: 1 }, |freed| {
            assert_eq!(freed, object(number))
        });
    }
    // A device that is forgotten is as new.
    assert_eq!(
        [DEVICES[0], DEVICES[1], 7].map(|device| zswap.had_entries(device)),
        [true, true, false]
    );
    zswap.forget(DEVICES[0]);
    assert_eq!(DEVICES.map(|device| zswap.had_entries(device)), [false, true]);
    zswap
        .insert(std::iter::once((slots[2], object(50))), 50, |older| panic!("{older:?} was there"));
    zswap.oldest(60, usize::MAX, &mut oldest);
    assert_eq!(
        (&oldest[..], zswap.had_entries(DEVICES[0])),
        ([(slots[2], object(50))].as_slice(), true)
    );
}
