//! Calls of the program that meet faults and reclaim: mlock, mremap, and a fork that stops all of
//! them; and faults that reclaim for themselves.

use super::Model;
use super::world::World;
use crate::base::seeded::Bug;
use crate::reclaim::EvictTo;
use overspill_os::signal::Blocked;

/// A page comes in to stay between two that leave.
const PINNED: Model = Model {
    world: || World::new(3, "out=drop,folio=1", ""),
    begin: |world| {
        (0..3).for_each(|page| world.write(page));
        world.send_away(1..2, EvictTo::SwapOut);
    },
    actors: &[
        |world| (0..2).for_each(|_| world.pin(1)),
        |world| (0..2).for_each(|_| world.swap_out()),
    ],
};

/// A page is at another place for a while, and back, where one beside it comes in with others.
const REMAPPED: Model = Model {
    world: || World::new(4, "out=drop", ""),
    begin: |world| {
        (0..4).for_each(|page| world.write(page));
        world.swap_out();
    },
    actors: &[
        |world| {
            world.remap(3, 11);
            world.read(11);
            world.write(11);
            world.remap(11, 3);
        },
        |world| (0..3).for_each(|page| world.read(page)),
        |world| (0..3).for_each(|_| world.send_away(0..12, EvictTo::SwapOut)),
    ],
};

/// Pages come in ahead of the program, which reads, writes, gives up and moves them. One that came
/// in where it was moved away would be a SIGSEGV of the model.
const AHEAD: Model = Model {
    world: || World::new(4, "out=drop,compressed=0", "ram:16M"),
    begin: |world| {
        (0..4).for_each(|page| world.write(page));
        world.swap_out();
    },
    actors: &[
        |world| {
            world.live(0, 2);
            world.live(1, 2);
        },
        |world| {
            world.remap(3, 11);
            world.write(11);
            world.remap(11, 3);
        },
        |world| (0..2).for_each(|page| world.go_ahead(page, page == 0)),
        |world| [2, 3, 11].into_iter().for_each(|page| world.go_ahead(page, false)),
        |world| (0..2).for_each(|_| world.send_away(0..12, EvictTo::SwapOut)),
    ],
};

/// All stands still for a fork, whose child goes soon.
const FORKED: Model = Model {
    world: || World::new(2, "out=drop,zswap.keep=on,clean=on", "ram:16M"),
    begin: |world| {
        [0, 1].into_iter().for_each(|page| world.write(page));
        world.swap_out();
        world.others_leave();
    },
    actors: &[
        |world| world.live(0, 3),
        |world| world.live(1, 3),
        |world| {
            world.swap_out();
            world.send_away(0..2, EvictTo::SwapCache);
            world.store_oldest();
            world.write_back();
        },
        |world| {
            world.fork();
            world.reap();
            world.fork();
            world.reap();
        },
    ],
};

/// What is in memory is shared with a child, and written to, given up, and sent away.
const SHARED: Model = Model {
    world: || World::new(3, "out=drop,folio=4", ""),
    begin: |world| (0..3).for_each(|page| world.write(page)),
    actors: &[
        |world| (0..3).for_each(|page| world.write(page)),
        |world| world.live(2, 4),
        |world| world.share(),
        |world| (0..2).for_each(|_| world.send_away(0..2, EvictTo::SwapOut)),
    ],
};

/// The same, twice: another child shares what the first has left.
const SHARED_TWICE: Model = Model {
    actors: &[
        |world| (0..4).for_each(|at| world.write(at % 2)),
        |world| world.write(2),
        |world| (0..2).for_each(|_| world.share()),
    ],
    ..SHARED
};

/// A write to a page that is protected for nothing meets a fork that marks it.
const SHARED_LATE: Model = Model {
    world: || World::new(1, "out=drop", ""),
    begin: |world| {
        world.write(0);
        world.protect(0..1);
    },
    actors: &[|world| world.write(0), |world| world.share()],
};

/// There is a frame for one page of four: who brings another in reclaims first.
const WITHOUT_FRAMES: Model = Model {
    world: || World::new(4, "out=drop,folio=1,frame.percpu=off", "ram:16M"),
    begin: |world| {
        (0..4).for_each(|page| world.write(page));
        world.swap_out();
        world.hoard_all(1);
    },
    actors: &[|world| world.live(0, 3), |world| world.live(1, 3), |world| world.live(2, 3)],
};

#[test]
fn no_interleaving_meets_a_page_that_is_not_where_it_should_be() {
    let models = [PINNED, REMAPPED, AHEAD, FORKED, SHARED, SHARED_TWICE, SHARED_LATE];
    models.into_iter().for_each(|model| model.finds_nothing(100));
    WITHOUT_FRAMES.finds_nothing(300);
}

#[test]
fn a_fault_gets_the_frames_of_empty_chunks_when_there_are_no_others() {
    let _blocked = Blocked::all();
    let world = (WITHOUT_FRAMES.world)();
    world.write(0);
    world.swap_out();
    world.write_back();
    assert!(world.engine.swap.zpool.frames() > 0, "an empty chunk is kept");
    world.hoard_all(0);
    world.read(0);
    world.end();
}

#[test]
fn mistakes_in_calls_are_found() {
    PINNED.finds_each(&[Bug::PinWithoutExtent]);
    SHARED_TWICE.finds_each(&[Bug::CopiedUnlocked]);
}
