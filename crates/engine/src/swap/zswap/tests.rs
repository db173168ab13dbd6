//! The index against a model of it: a map of entries, each with when it became the newest.

use super::*;
use crate::units::PAGE_SIZE;
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn entries_are_those_of_a_map(
        setting in prop_oneof![Just(Invalidate::Always), Just(Invalidate::Empty), Just(Invalidate::EmptyLookup)],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let zswap = Zswap::new(setting, Stats::anonymous().unwrap());
        for device in DEVICES {
            prop_assert!(zswap.open(device, SLOTS));
        }
        prop_assert!(!zswap.open(DEVICES[0], SLOTS + PAGE_SIZE as u64), "a larger device needs \
                                                                         other tables");
        let mut model = BTreeMap::<SlotId, (Object, u64)>::new();
        let (mut number, mut time) = (0, 0);
        for (step, device, first, len) in steps {
            let slot = SlotId::new(DEVICES[device], first);
            let run = SlotRun { first: slot, len: len.min((SLOTS - first) as usize) };
            match step {
                Step::Insert(bits) => {
                    let objects: Vec<_> = (0..run.len)
                        .map(|i| {
                            number += 1;
                            (bits >> (i % 64) & 1 != 0).then(|| object(number))
                        })
                        .collect();
                    let (mut older, mut expected) = (Vec::new(), Vec::new());
                    let entries = run.slots().zip(&objects).filter_map(|(slot, object)| Some((slot, (*object)?)));
                    zswap.insert(entries, time, |object| older.push(object));
                    for (slot, object) in run.slots().zip(objects) {
                        let Some(object) = object else { continue };
                        time += 1;
                        let old = model.get(&slot).copied();
                        expected.extend(old.map(|(old, _)| old));
                        // One that was there keeps its place in the list.
                        let age = old.map_or(time, |(_, age)| age);
                        model.insert(slot, (object, age));
                    }
                    prop_assert_eq!(older, expected);
                }
                Step::Invalidate => {
                    let mut freed = Vec::new();
                    zswap.invalidate(run, |object| freed.push(object));
                    let expected: Vec<_> =
                        run.slots().filter_map(|slot| Some(model.remove(&slot)?.0)).collect();
                    prop_assert_eq!(freed, expected);
                }
                Step::Replace => {
                    number += 1;
                    let new = Handle::from_bits(number);
                    let old = model.get(&slot).map(|(object, _)| object.handle);
                    prop_assert!(!zswap.replace(slot, new, new));
                    let moved = old.is_some_and(|old| zswap.replace(slot, old, new));
                    prop_assert_eq!(moved, old.is_some());
                    if moved {
                        model.entry(slot).and_modify(|(old, _)| *old = object(number));
                    }
                }
                Step::Finish { .. } | Step::FinishWhileRead => {
                    let Some((wanted, _)) = model.get(&slot).copied() else {
                        prop_assert_eq!(zswap.begin_load(slot), None);
                        continue;
                    };
                    prop_assert!(!zswap.begin_load_of(slot, object(1 << 40)));
                    prop_assert!(zswap.begin_load_of(slot, wanted));
                    let other = matches!(step, Step::FinishWhileRead);
                    number += 1;
                    let denser = matches!(step, Step::Finish { denser: true });
                    let new = denser.then(|| Object { codec: CodecId::Zstd, ..object(number) });
                    if other {
                        prop_assert_eq!(zswap.begin_load(slot), Some(wanted));
                    }
                    let moved = zswap.replace(slot, wanted.handle, Handle::from_bits(number));
                    prop_assert!(!moved, "somebody reads it");
                    prop_assert_eq!(zswap.finish_load(slot, wanted, new, time), !other);
                    if other {
                        zswap.end_load(slot);
                        zswap.end_load(slot);
                    } else {
                        let age = model.remove(&slot).expect("it was there").1;
                        new.into_iter().for_each(|new| { model.insert(slot, (new, age)); });
                    }
                }
                Step::Rotate => {
                    zswap.rotate(slot, time);
                    time += 1;
                    if let Some((_, age)) = model.get_mut(&slot) {
                        *age = time;
                    }
                }
            }
            prop_assert_eq!(zswap.check(), model.len());
            for device in DEVICES {
                for slot in (FIRST..SLOTS).map(|offset| SlotId::new(device, offset)) {
                    prop_assert_eq!(zswap.look_up(slot), model.get(&slot).map(|(object, _)| *object));
                }
            }
        }
        // The oldest are those of one range, from its oldest on.
        let mut oldest = Vec::with_capacity(5);
        zswap.oldest(time, &mut oldest);
        let ranges = by_age(&model);
        prop_assert_eq!(oldest.is_empty(), ranges.is_empty());
        if let Some((first, _)) = oldest.first() {
            let range = &ranges[&(first.device(), first.offset() / RANGE_SLOTS as u64)];
            let mut expected: Vec<_> =
                range.iter().take(oldest.capacity()).map(|slot| (*slot, model[slot].0)).collect();
            expected.sort_unstable_by_key(|(slot, _)| *slot);
            prop_assert_eq!(oldest, expected);
        }
    }
}

/// The range whose oldest entry is the oldest of all comes first, whichever device it is on.
#[test]
fn the_oldest_range_comes_first() {
    let zswap = Zswap::new(Invalidate::default(), Stats::anonymous().unwrap());
    DEVICES.into_iter().for_each(|device| assert!(zswap.open(device, SLOTS)));
    let slots = [(0, 5), (1, 7), (0, SLOTS - 1)]
        .map(|(device, offset)| SlotId::new(DEVICES[device], offset));
    let mut oldest = Vec::with_capacity(8);
    zswap.oldest(0, &mut oldest);
    assert!(oldest.is_empty());
    for (slot, time) in slots.into_iter().zip([20, 10, 30]) {
        let none = |older| panic!("{older:?} was there");
        zswap.insert(std::iter::once((slot, object(time))), time, none);
    }
    for (expected, number) in [(1, 10), (0, 20), (2, 30)] {
        zswap.oldest(40, &mut oldest);
        assert_eq!(oldest, [(slots[expected], object(number))]);
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
    zswap.oldest(60, &mut oldest);
    assert_eq!(
        (oldest.as_slice(), zswap.had_entries(DEVICES[0])),
        ([(slots[2], object(50))].as_slice(), true)
    );
}
