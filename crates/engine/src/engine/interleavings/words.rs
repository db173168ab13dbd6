//! What meets at a page word: faults, the ways out, and calls that give content up.

use super::world::World;
use super::{Actor, Model};
use crate::base::seeded::Bug;
use crate::config::Delivery;
use crate::reclaim::EvictTo;
use overspill_os::backing::simulated::Hold;
use shuttle::rand::{Rng, thread_rng};

/// Without a compressed tier: a page has a slot of a device.
const DEVICE: &str = "ram:16M";

/// Threads of the program at two pages, reclaim, and a range call.
const MEETING: [Actor; 5] = [
    |world| {
        [0, 1].into_iter().for_each(|page| world.write(page));
        world.read(0);
        world.write(0);
    },
    |world| {
        [1, 0].into_iter().for_each(|page| world.write(page));
        world.read(1);
    },
    |world| {
        world.swap_out();
        world.send_away(0..1, EvictTo::SwapCache);
        world.swap_out();
        world.store_oldest();
    },
    |world| {
        world.send_away(1..2, EvictTo::SwapCache);
        world.store_oldest();
        world.swap_out();
    },
    |world| world.give_up(0..2),
];

/// Of which nothing is protected yet, or all is, as an eviction leaves pages that lie between those
/// that it chose.
fn two_pages(world: &World) {
    [0, 1].into_iter().for_each(|page| world.write(page));
    if thread_rng().gen_bool(0.5) {
        world.protect(0..2);
    }
}

/// Pages are protected, stored or copied where they are, and dropped.
const IN_PLACE: Model = Model {
    world: || World::new(2, "out=drop,compressed=0", DEVICE),
    begin: two_pages,
    actors: &MEETING,
};

/// A page is written to while it is evicted, and is protected already where it is not.
const WRITTEN: Model = Model {
    world: || World::new(1, "out=drop", ""),
    begin: |world| {
        world.write(0);
        world.protect(0..1);
    },
    actors: &[
        |world| (0..3).for_each(|_| world.write(0)),
        |world| (0..3).for_each(|_| world.swap_out()),
    ],
};

/// A page comes back from a slot that another may get next.
const BACK_AND_OUT: Model = Model {
    begin: |world| {
        world.write(0);
        world.swap_out();
        world.write(1);
    },
    actors: &[
        |world| [0, 1].into_iter().for_each(|page| world.read(page)),
        |world| (0..2).for_each(|_| world.swap_out()),
    ],
    ..IN_PLACE
};

/// The same, of which the handler thread hears.
const OF_A_HANDLER: Model = Model {
    world: || World::with_delivery(Delivery::Thread, 2, "out=drop,compressed=0", DEVICE),
    ..IN_PLACE
};

/// Pages move to the swap cache, and back.
const MOVED: Model =
    Model { world: || World::new(2, "out=move,in=move,compressed=0", DEVICE), ..IN_PLACE };

/// They come back by copy.
const MOVED_AND_COPIED: Model =
    Model { world: || World::new(2, "out=move,in=copy,compressed=0", DEVICE), ..IN_PLACE };

/// Pages are written to from elsewhere, for the first time.
const PINNED: Model = Model {
    world: || World::new(1, "", ""),
    begin: |world| {
        world.engine.reclaim.forget_dma();
        world.write(0);
    },
    actors: &[
        |world| (0..2).for_each(|_| world.write_from_elsewhere(0, Hold::Pin)),
        |world| (0..3).for_each(|_| world.swap_out()),
        |world| world.read(0),
    ],
};

/// The same, by who needs the lock of the page tables for it.
const TRACED: Model = Model {
    world: || World::new(1, "out=drop", ""),
    actors: &[
        |world| (0..2).for_each(|_| world.write_from_elsewhere(0, Hold::Lock)),
        |world| (0..3).for_each(|_| world.swap_out()),
        |world| world.read(0),
    ],
    ..PINNED
};

/// The same, of a page that moves out and on to the compressed tier.
const TRACED_AND_MOVED: Model = Model {
    world: || World::new(1, "out=move,in=copy", ""),
    actors: &[
        |world| (0..2).for_each(|_| world.write_from_elsewhere(0, Hold::Lock)),
        |world| {
            (0..3).for_each(|_| {
                world.swap_out();
                world.store_oldest();
            });
        },
        |world| world.read(0),
    ],
    ..PINNED
};

#[test]
fn no_interleaving_loses_a_write_or_a_place() {
    [IN_PLACE, WRITTEN, BACK_AND_OUT, OF_A_HANDLER, MOVED, MOVED_AND_COPIED]
        .into_iter()
        .chain([PINNED, TRACED, TRACED_AND_MOVED])
        .for_each(|model| model.finds_nothing(400));
}

#[test]
fn mistakes_at_a_word_are_found() {
    const BUGS: &[Bug] = &[Bug::PublishBeforeDrop, Bug::DropWithoutCommit, Bug::ClearWithoutExtent];
    IN_PLACE.finds_each(BUGS);
    WRITTEN.finds_each(&[Bug::UnprotectUnlocked]);
    BACK_AND_OUT.finds_each(&[Bug::FreeBeforeInstall]);
    PINNED.finds_each(&[Bug::HoldersUnasked]);
    TRACED.finds_each(&[Bug::NotSettled]);
    TRACED_AND_MOVED.finds_each(&[Bug::MovedUnsettled]);
}
