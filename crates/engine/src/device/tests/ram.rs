//! Priorities, and RAM devices in a fork.

use super::*;

#[test]
fn higher_priorities_are_filled_first() {
    // Without priorities in the order of the list, and after those that have one.
    let devices = ram("ram:2M,ram:2M,prio=1,ram:2M,ram:2M,prio=7,ram:2M,prio=0");
    let runs = alloc_all(&devices);
    let mut order: Vec<usize> = runs.iter().map(|run| run.first.device()).collect();
    order.dedup();
    assert_eq!((order.as_slice(), pages(&runs)), ([3, 1, 4, 0, 2].as_slice(), 5 << 9));
    // What becomes free on a device of higher priority is used again before the others.
    runs.iter()
        .filter(|run| [0, 3].contains(&run.first.device()))
        .for_each(|run| devices.free_run(*run));
    assert_eq!(devices.alloc_run(1).unwrap().first.device(), 3);
}

#[test]
fn equal_priorities_take_turns_run_by_run() {
    let devices = ram("ram:8M,prio=3,ram:8M,prio=1,ram:4M,prio=3,ram:8M,prio=3");
    let turns: Vec<usize> = (0..9).map(|_| devices.alloc_run(16).unwrap().first.device()).collect();
    assert_eq!(turns, [0, 2, 3, 0, 2, 3, 0, 2, 3]);
    // The one that is full is passed over; the lower one comes last.
    let rest: Vec<usize> = alloc_all(&devices).iter().map(|run| run.first.device()).collect();
    let last_of = |device| rest.iter().rposition(|other| *other == device).unwrap();
    let first_of_lower = rest.iter().position(|device| *device == 1).unwrap();
    assert!(last_of(2) < last_of(0) && last_of(0).max(last_of(3)) < first_of_lower, "{rest:?}");
}

#[test]
fn a_device_that_fills_up_in_mid_run_leaves_the_rest_to_the_next() {
    let devices = ram("ram:2M,ram:8M");
    assert_eq!(devices.alloc_run(256).unwrap().len, 256);
    let (short, next) = (devices.alloc_run(200).unwrap(), devices.alloc_run(200).unwrap());
    assert_eq!((short.first.device(), short.len, next.first.device(), next.len), (0, 200, 0, 56));
    let beyond = devices.alloc_run(144).unwrap();
    assert_eq!((beyond.first.device(), beyond.len), (1, 144));
    // A batch over both devices, in any order.
    let runs = [beyond, short, next];
    let (mut buffer, mut writes, mut at) = (IoBuffer::new(400).unwrap(), Vec::new(), 0);
    for run in runs {
        fill(&mut buffer, at, run, 5);
        writes.push(RunWrite {
            run,
            buffer_page: at,
            keeps_slots: false,
            result: Err(Errno::INVAL),
        });
        at += run.len;
    }
    devices.write(&mut buffer, &mut writes);
    assert!(writes.iter().all(|write| write.result == Ok(())));
    assert!(runs.iter().all(|run| reads_back(&devices, *run, 5)));
}

#[test]
fn the_child_of_a_fork_reads_the_parents_ram_device_and_has_its_own() {
    let parent = ram("ram:16M,latency=10us,prio=4");
    let run = parent.alloc_run(100).unwrap();
    write(&parent, run, 1).unwrap();
    let (child, errors) = fork(&parent, &["ram:16M,latency=10us,prio=4".parse().unwrap()], true);
    parent.seal_for_child(1);
    assert_eq!(errors, []);
    let own = child.alloc_run(100).unwrap();
    assert_ne!(own.first.device(), run.first.device());
    write(&child, own, 2).unwrap();
    let more = parent.alloc_run(100).unwrap();
    write(&parent, more, 3).unwrap();
    assert!(reads_back(&child, run, 1) && reads_back(&child, own, 2));
    assert!(reads_back(&parent, run, 1) && reads_back(&parent, more, 3));
}
