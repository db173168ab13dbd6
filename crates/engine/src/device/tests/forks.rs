//! Processes with one device: parents, children and grandchildren of forks.

use super::*;

#[test]
fn processes_that_share_a_file_never_get_the_same_slots() {
    let dir = Dir::new("locks");
    let path = dir.file("swap");
    let (one, two) = (open(&path, 128 << 20), open(&path, None));
    let mut runs = [Vec::new(), Vec::new()];
    loop {
        let before = pages(&runs[0]) + pages(&runs[1]);
        runs[0].extend((0..3).map_while(|_| one.alloc_run(RUN_MAX)));
        runs[1].extend((0..5).map_while(|_| two.alloc_run(RUN_MAX)));
        if pages(&runs[0]) + pages(&runs[1]) == before {
            break;
        }
    }
    assert!(!runs[0].is_empty() && !runs[1].is_empty());
    let mut seen = BTreeSet::new();
    assert!(runs.iter().flatten().flat_map(|run| run.slots()).all(|slot| seen.insert(slot)));
    assert_eq!(seen.len(), (128 << 8) - 1, "all of the device is used");
    assert_eq!(one.capacity_pages() + two.capacity_pages(), seen.len() as u64);
    // Ownership ends with the process, and what it had is found free when asked for again; so it is
    // when allotments are empty.
    drop(one);
    assert_eq!(two.alloc_run(1), None, "not asked again at once");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(pages(&alloc_all(&two)), pages(&runs[0]));
    runs[1].iter().for_each(|run| two.free_run(*run));
    let three = open(&path, None);
    assert!(pages(&alloc_all(&three)) > pages(&runs[1]) / 2);
}

#[test]
fn an_inherited_device_is_read_while_parent_and_child_go_on() {
    let dir = Dir::new("fork");
    let specs = [spec(&dir.0, 16 << 20), spec(&dir.file("swap"), 64 << 20)];
    let parent = SwapDevices::open(
        &JobSwaps::first(&specs),
        DeviceSettings::default(),
        no_tables(),
        Stats::anonymous().unwrap(),
    )
    .unwrap();
    // Fills the first device and half of the second, then gives up every third page.
    let mut slots: Vec<SlotId> =
        (0..40).flat_map(|_| parent.alloc_run(RUN_MAX).unwrap().slots()).collect();
    let one = |first| SlotRun { first, len: 1 };
    slots.iter().for_each(|slot| write(&parent, one(*slot), 1).unwrap());
    slots.iter().skip(2).step_by(3).for_each(|slot| parent.free(*slot));
    slots = slots.chunks(3).flat_map(|three| three[..three.len().min(2)].to_vec()).collect();

    let child = fork(&parent, &specs, true).0;
    parent.seal_for_child(1);
    assert_eq!(child.used_pages(), slots.len() as u64);
    // The parent frees half and both write all that they can have.
    slots.iter().step_by(2).for_each(|slot| parent.free(*slot));
    for devices in [&parent, &child] {
        for run in alloc_all(devices) {
            assert!(
                run.slots().all(|slot| slots.binary_search(&slot).is_err()),
                "a slot that is shared"
            );
            write(devices, run, 2).unwrap();
        }
    }
    assert!(slots.iter().all(|slot| reads_back(&child, one(*slot), 1)));
    assert!(slots.iter().skip(1).step_by(2).all(|slot| reads_back(&parent, one(*slot), 1)));
    // A child that lives keeps the parent from using what it freed.
    parent.unseal(Some(1));
    assert_eq!(parent.alloc_run(1), None);
    // The parent exits. A new process must not get what the child still reads.
    let freed = slots.len() as u64 / 2;
    drop(parent);
    let other = SwapDevices::open(
        &JobSwaps::first(&specs[1..]),
        DeviceSettings::default(),
        no_tables(),
        Stats::anonymous().unwrap(),
    )
    .unwrap();
    alloc_all(&other).into_iter().for_each(|run| write(&other, run, 3).unwrap());
    assert!(slots.iter().all(|slot| reads_back(&child, one(*slot), 1)));
    // Once the child has given it up, the inherited devices are closed and their allotments are
    // free for others.
    assert_eq!(child.fds().len(), 4);
    slots.iter().for_each(|slot| child.free(*slot));
    assert_eq!(child.fds().len(), 2);
    std::thread::sleep(Duration::from_millis(1100));
    assert!(pages(&alloc_all(&other)) > freed / 2);
}

#[test]
fn a_parent_uses_freed_slots_again_when_its_children_have_gone() {
    let dir = Dir::new("unseal");
    let parent = open(&dir.0, 8 << 20);
    let runs = alloc_all(&parent);
    assert_eq!((pages(&runs), parent.capacity_pages()), (2048, 2048));
    parent.seal_for_child(1);
    runs.iter().take(4).for_each(|run| parent.free_run(*run));
    assert_eq!((parent.alloc_run(1), parent.capacity_pages()), (None, 1024));
    parent.unseal(Some(2));
    assert_eq!(parent.capacity_pages(), 2048);
    assert_eq!(pages(&alloc_all(&parent)), 1024);
}

#[test]
fn a_child_without_descriptor_or_lock_gets_errors_and_not_foreign_data() {
    let dir = Dir::new("lost");
    let path = dir.file("swap");
    let parent = open(&path, 64 << 20);
    let run = parent.alloc_run(8).unwrap();
    write(&parent, run, 1).unwrap();
    // The parent's locks were not made shareable: the child cannot hold them.
    let (child, errors) = fork(&parent, &[spec(&path, 64 << 20)], false);
    assert_eq!(errors, [SwapError::Lost(path.clone())]);
    assert_eq!(
        child.table.get(run.first.device()).unwrap().slots().capacity_pages(),
        8,
        "nothing more can be stored there"
    );
    let error = child.read(run, &mut IoBuffer::new(8).unwrap()).unwrap_err();
    assert_eq!(
        (error.failure, error.offset_bytes),
        (ReadFailure::Io(Errno::BADF), run.first.offset() * PAGE_SIZE as u64)
    );
    // It can still swap.
    let own = child.alloc_run(8).unwrap();
    write(&child, own, 2).unwrap();
    assert!(reads_back(&child, own, 2) && reads_back(&parent, run, 1));
}

#[test]
fn a_grandchild_reads_what_its_grandparent_wrote() {
    let dir = Dir::new("grandchild");
    let parent = open(&dir.0, 8 << 20);
    let mut runs = vec![parent.alloc_run(100).unwrap()];
    write(&parent, runs[0], 0).unwrap();
    let mut processes = vec![parent];
    for generation in 1..5 {
        let child = fork(processes.last().unwrap(), &[spec(&dir.0, None)], true).0;
        let run = child.alloc_run(100).unwrap();
        write(&child, run, generation).unwrap();
        runs.push(run);
        processes.push(child);
    }
    let last = processes.pop().unwrap();
    drop(processes);
    assert_eq!(last.fds().len(), 5);
    assert!((0..5).all(|generation| reads_back(&last, runs[generation as usize], generation)));
}

impl SwapDevices {
    /// What a fork copies: every table, and descriptors whose numbers mean nothing here (in the
    /// child they would mean files of another table).
    fn copied_by_fork(&self) -> SwapDevices {
        let queue = Arc::new(Queue::new(QUEUE_DEPTH as u32, true));
        let copy = SwapDevices {
            table: DeviceTable::new(3),
            priorities: std::array::from_fn(|index| {
                AtomicI32::new(self.priorities[index].load(Relaxed))
            }),
            turn: AtomicUsize::new(self.turn.load(Relaxed)),
            opened: AtomicU64::new(100),
            closed: RankedMutex::new(Rank::ClosedDevices, Vec::new()),
            key: self.key.clone(),
            slots: self.slots,
            queue: queue.clone(),
            tables: no_tables(),
            in_memory: None,
            run_dir: None,
            make_io: Box::new(|file, queue| Box::new(Direct { file, queue })),
            stats: Stats::anonymous().unwrap(),
        };
        for gauge in [Counter::DevicePages, Counter::DeviceCapacityBytes] {
            copy.stats.set(gauge, self.stats.get(gauge));
        }
        for (index, area) in self.areas() {
            let file = File::from_fd(std::fs::File::open("/dev/null").unwrap().into());
            let io = Box::new(Direct { file, queue: queue.clone() });
            copy.table.set(
                index,
                Some(Arc::new(area.copied_by_fork(io, copy.stats.device(index), copy.stats))),
            );
        }
        copy
    }
}

/// A child and a grandchild that can open nothing by its name: they read what they inherited, and
/// write to parts of the file that the first of them made, until they are gone.
#[test]
fn children_that_can_open_nothing_go_on_in_parts_of_the_file() {
    let dir = Dir::new("parts");
    let mut processes = vec![open(&dir.0, None)];
    let mut runs = vec![processes[0].alloc_run(100).unwrap()];
    write(&processes[0], runs[0], 0).unwrap();
    std::fs::remove_dir(&dir.0).unwrap();
    for generation in 1..4 {
        let parent = processes.last().unwrap();
        let child = parent.copied_by_fork();
        parent.share_locks();
        let lend =
            |(index, area): (usize, Arc<Area>)| SwapDevices::lend(index, &area, None).unwrap().0;
        let inherited = parent.areas().map(lend).collect();
        assert_eq!(child.adopt_in_child(inherited, &JobSwaps::first(&[spec(&dir.0, None)])), []);
        parent.seal_for_child(1);
        let run = child.alloc_run(100).unwrap();
        write(&child, run, generation).unwrap();
        runs.push(run);
        processes.push(child);
        // Everybody goes on writing; nobody gets at what another has.
        processes.iter().zip(0..).for_each(|(devices, i)| {
            let run = devices.alloc_run(RUN_MAX).unwrap();
            write(devices, run, 100 + i).unwrap();
            assert!(reads_back(devices, run, 100 + i));
        });
        let youngest = processes.last().unwrap();
        assert!(
            runs.iter().zip(0..).all(|(run, generation)| reads_back(youngest, *run, generation))
        );
        assert!(
            processes
                .iter()
                .zip(&runs)
                .zip(0..)
                .all(|((devices, run), i)| reads_back(devices, *run, i))
        );
    }
    // The child of the first is gone, and all of its descendants: their disk space is free.
    let blocks = || processes[0].table.get(0).unwrap().file().len_and_allocated_bytes().unwrap().1;
    let before = blocks();
    let serial = processes[0].table.get(0).unwrap().serial();
    processes[0].give_back_part(LentPart { device: 0, serial: serial + 1, part: 1 });
    assert!(reads_back(&processes[1], runs[1], 1), "it was another device's");
    processes[0].give_back_part(LentPart { device: 0, serial, part: 1 });
    assert!(before - blocks() >= 3 * 100 * PAGE_SIZE as u64, "{before} {}", blocks());
    assert!(!reads_back(&processes[1], runs[1], 1) && !reads_back(&processes[3], runs[3], 3));
    assert!(reads_back(&processes[0], runs[0], 0));
    assert_eq!(processes[0].table.get(0).unwrap().take_part(), Some(1));
}

/// The steps of a fork, without one; locks are shared with the child only if `shares`.
pub(super) fn fork(
    parent: &SwapDevices,
    specs: &[SwapSpec],
    shares: bool,
) -> (SwapDevices, Vec<SwapError>) {
    if shares {
        parent.share_locks();
    }
    let reopen = |(index, area): (usize, Arc<Area>)| {
        let file = area.file().reopen().unwrap();
        assert_eq!(area.hold_locks(&file), shares);
        InheritedDevice { index, file, own_locks: true, part: None }
    };
    let inherited = parent.areas().map(reopen).collect();
    let child = parent.copied_by_fork();
    let errors = child.adopt_in_child(inherited, &JobSwaps::first(specs));
    assert_eq!(child.stats.get(Counter::DevicePages), child.used_pages());
    assert_eq!(
        child.stats.get(Counter::DeviceCapacityBytes),
        child.capacity_pages() * PAGE_SIZE as u64
    );
    (child, errors)
}
