//! Sealed devices: nobody reads their pages there, and nothing else comes back from them.

use super::*;
use crate::device::marks::Marks;
use proptest::prelude::*;
use std::collections::HashSet;

/// What page `i` of a generation is filled with, in [`write`].
fn word(slot: SlotId, generation: u64) -> [u8; 8] {
    (slot.to_bits() ^ generation << 48).to_ne_bytes()
}

fn one(first: SlotId) -> SlotRun {
    SlotRun { first, len: 1 }
}

/// What the device has in a slot.
fn there(devices: &SwapDevices, slot: SlotId) -> IoBuffer {
    let mut page = IoBuffer::new(1).unwrap();
    let area = devices.table.get(slot.device()).unwrap();
    let read = area.file().read_at(&mut page, slot.offset() * PAGE_SIZE as u64);
    assert_eq!(read, Ok(PAGE_SIZE));
    page
}

/// Puts something else there.
fn put(devices: &SwapDevices, slot: SlotId, page: &IoBuffer) {
    let area = devices.table.get(slot.device()).unwrap();
    let written = area.file().write_at(page, slot.offset() * PAGE_SIZE as u64);
    assert_eq!(written, Ok(PAGE_SIZE));
}

/// That a slot is refused, says so, and gives none of its bytes.
fn is_refused(devices: &SwapDevices, slot: SlotId) {
    let mut page = IoBuffer::new(1).unwrap();
    let error = devices.read(one(slot), &mut page).unwrap_err();
    assert_eq!(error.failure, ReadFailure::NotAuthentic);
    assert!(
        error.to_string().ends_with("is not what was written there (not authentic)"),
        "{error}"
    );
    assert!(page.iter().all(|byte| *byte == 0), "bytes that nobody vouches for");
}

#[test]
fn a_device_has_no_page_of_the_program() {
    let dir = Dir::new("sealed");
    for (name, options, readable) in
        [("sealed", "", false), ("asked-for", ",crypt=on", false), ("plain", ",crypt=off", true)]
    {
        let path = dir.file(name);
        let spec = format!("{}:4M{options}", path.display()).parse().unwrap();
        let devices = SwapDevices::open(
            &JobSwaps::first(&[spec]),
            DeviceSettings::default(),
            no_tables(),
            Stats::anonymous().unwrap(),
        )
        .unwrap();
        let runs = alloc_all(&devices);
        runs.iter().for_each(|run| write(&devices, *run, 9).unwrap());
        let bytes = std::fs::read(&path).unwrap();
        let words: HashSet<_> = bytes.chunks_exact(8).collect();
        for slot in runs.iter().flat_map(|run| run.slots()) {
            let found = words.contains(&word(slot, 9)[..]);
            assert_eq!(found, readable, "{name}: {slot:?}");
        }
        assert!(runs.iter().all(|run| reads_back(&devices, *run, 9)));
    }
}

#[test]
fn each_byte_of_a_slot_that_is_changed_is_found() {
    let devices = ram("ram:4M,crypt=on");
    let run = devices.alloc_run(3).unwrap();
    write(&devices, run, 1).unwrap();
    let slot = run.first.advance(1);
    let sealed = there(&devices, slot);
    for at in 0..PAGE_SIZE {
        let mut changed = there(&devices, slot);
        changed[at] ^= 1 << (at % 8);
        put(&devices, slot, &changed);
        is_refused(&devices, slot);
        put(&devices, slot, &sealed);
    }
    assert!(reads_back(&devices, run, 1));
    assert_eq!(devices.stats.get(Counter::ReadErrors), PAGE_SIZE as u64);
}

#[test]
fn pages_that_are_moved_or_brought_back_are_refused() {
    let devices = ram("ram:4M,crypt=on,ram:4M,crypt=on,prio=1");
    let run = devices.alloc_run(4).unwrap();
    write(&devices, run, 1).unwrap();
    let [first, second, third, _] = [0, 1, 2, 3].map(|i| run.first.advance(i));
    let old = [first, second, third].map(|slot| there(&devices, slot));
    // 1. Two slots are exchanged.
    put(&devices, first, &old[1]);
    put(&devices, second, &old[0]);
    is_refused(&devices, first);
    is_refused(&devices, second);
    assert!(reads_back(&devices, one(third), 1), "the others are good");
    put(&devices, first, &old[0]);
    assert!(reads_back(&devices, one(first), 1));
    // 2. What was in a slot before comes back, also when it was the same page.
    write(&devices, one(third), 1).unwrap();
    assert!(there(&devices, third)[..] != old[2][..], "the same page looks the same");
    put(&devices, third, &old[2]);
    is_refused(&devices, third);
    // 3. The same slot of another device.
    devices.priorities[1].store(CLOSED, Relaxed);
    let other = devices.alloc_run(4).unwrap();
    assert_eq!((other.first.device(), other.first.offset()), (0, run.first.offset()));
    write(&devices, other, 1).unwrap();
    put(&devices, other.first, &there(&devices, first));
    is_refused(&devices, other.first);
    // 4. A slot that was never written.
    let never = devices.alloc_run(1).unwrap().first;
    put(&devices, never, &old[0]);
    is_refused(&devices, never);
}

#[test]
fn a_device_that_was_cut_short_is_refused() {
    let dir = Dir::new("cut");
    let path = dir.file("swap");
    let devices = open(&path, 4 << 20);
    let run = devices.alloc_run(8).unwrap();
    write(&devices, run, 1).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let from = run.first.offset() + 5;
    file.set_len(from * PAGE_SIZE as u64 + 512).unwrap();
    let error = devices.read(run, &mut IoBuffer::new(8).unwrap()).unwrap_err();
    assert_eq!(
        (error.failure, error.offset_bytes),
        (ReadFailure::NotAuthentic, from * PAGE_SIZE as u64)
    );
    is_refused(&devices, run.first.advance(5));
    is_refused(&devices, run.first.advance(7));
    // Made long again, it has zeros there.
    file.set_len(4 << 20).unwrap();
    is_refused(&devices, run.first.advance(6));
    assert!(reads_back(&devices, SlotRun { first: run.first, len: 5 }, 1));
}

/// The numbers that the pages of a run were sealed with.
fn numbers(devices: &SwapDevices, run: SlotRun) -> Vec<u64> {
    let area = devices.table.get(run.first.device()).unwrap();
    let Marks::Seals { seals, .. } = &area.marks else { panic!("{area:?} is not sealed") };
    run.slots().map(|slot| seals[slot.offset() as usize][0].load(Relaxed)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    /// Processes write, free and fork as they like: no two pages have one number, and each reads
    /// what it wrote or inherited.
    #[test]
    fn numbers_do_not_repeat_over_forks_and_slots(
        steps in prop::collection::vec((0..4usize, 0..3usize, 1..20usize), 1..60),
    ) {
        let specs: Vec<SwapSpec> = ["ram:2M,crypt=on".parse().unwrap()].into();
        let mut processes = vec![(ram("ram:2M,crypt=on"), Vec::<(SlotRun, u64)>::new())];
        let (mut seen, mut generation) = (BTreeSet::new(), 0);
        for (who, what, len) in steps {
            let (who, count) = (who % processes.len(), processes.len());
            let (devices, held) = &mut processes[who];
            match what {
                0 if count < 4 => {
                    let held = held.clone();
                    let child = fork(devices, &specs, true).0;
                    devices.seal_for_child(1);
                    processes.push((child, held));
                }
                1 if !held.is_empty() => devices.free_run(held.remove(len % held.len()).0),
                _ => {
                    let Some(run) = devices.alloc_run(len) else { continue };
                    generation += 1;
                    write(devices, run, generation).unwrap();
                    held.push((run, generation));
                    for number in numbers(devices, run) {
                        prop_assert!(number > 0 && seen.insert(number), "{number} again");
                    }
                }
            }
        }
        for (devices, held) in &processes {
            prop_assert!(held.iter().all(|(run, written)| reads_back(devices, *run, *written)));
        }
    }
}
