//! Pages that are stored compressed, loaded, kept, given up and stored anew, beside writeback,
//! readahead and compaction.
//!
//! The races that the design of the compressed tier lists:
//!
//! | race | forced by |
//! |---|---|
//! | a refused store drops the older copy of its slot | [`Bug::RefusedKeepsOlder`] |
//! | so does a failed one: what a device did not take stays in the tier | [`Bug::FailedIsTaken`] |
//! | writeback compares the entry before it looks at the object | [`Bug::NotCompared`] |
//! | an entry is published before it is in the list | [`Bug::ListedFirst`] |
//! | a load that frees the entry leaves a page to be stored again | [`Bug::CleanWithoutCopy`] |
//! | tables are given back that come into use | [`Bug::ForgottenInUse`] |

use super::world::World;
use super::{Actor, Model};
use crate::base::seeded::Bug;

/// Two pages that leave and come back, beside all that is done to their compressed copies.
const LIVES: [Actor; 5] = [
    |world| world.live(0, 4),
    |world| world.live(1, 4),
    |world| {
        for _ in 0..3 {
            world.swap_out();
            world.others_leave();
        }
    },
    |world| (0..3).for_each(|_| world.write_back()),
    |world| (0..2).for_each(|_| world.compact()),
];

fn stored(world: &World) {
    [0, 1].into_iter().for_each(|page| world.write(page));
    world.swap_out();
    world.others_leave();
}

/// Compressed pages have slots on no device, and those of a device when they are written there.
const OWN_SLOTS: Model = Model {
    world: || World::new(2, "out=drop,zswap.keep=on,clean=on", "ram:16M"),
    begin: stored,
    actors: &LIVES,
};

/// A page is stored again and again while the coldest are looked for, which have no device to go
/// to.
const STORED_ANEW: Model = Model {
    world: || World::new(2, "out=drop,zswap.keep=off", ""),
    actors: &[
        |world| (0..3).for_each(|_| world.write(0)),
        |world| (0..4).for_each(|_| world.swap_out()),
        |world| (0..4).for_each(|_| world.write_back()),
    ],
    ..OWN_SLOTS
};

/// They have slots of a device from the beginning, which fails one operation in four.
const SLOTS_OF_A_DEVICE: Model = Model {
    world: || {
        let settings = "out=drop,zswap.keep=on,clean=on,zswap.slots=device";
        World::new(2, settings, "ram:16M,faults=0.25:eio")
    },
    ..OWN_SLOTS
};

/// Compressed pages move while they are read and written on.
const COMPACTED: Model = Model {
    actors: &[
        |world| [0, 1].into_iter().for_each(|page| world.read(page)),
        |world| (0..2).for_each(|_| world.write_back()),
        |world| (0..2).for_each(|_| world.compact()),
    ],
    ..OWN_SLOTS
};

/// Before the lock of a range is taken nothing is looked at, or whether the range is empty.
const INVALIDATED_ALWAYS: Model = Model {
    world: || World::new(2, "out=drop,zswap.keep=on,clean=on,zswap.invalidate=always", "ram:16M"),
    ..OWN_SLOTS
};
const INVALIDATED_UNLESS_EMPTY: Model = Model {
    world: || World::new(2, "out=drop,zswap.keep=on,clean=on,zswap.invalidate=empty", "ram:16M"),
    ..OWN_SLOTS
};

/// Pages on a device, which come in with those beside them, are kept as they are, and leave again.
const READ_AHEAD: Model = Model {
    world: || World::new(4, "out=drop,compressed=0,clean=on", "ram:16M"),
    begin: |world| {
        (0..4).for_each(|page| world.write(page));
        world.swap_out();
        world.others_leave();
    },
    actors: &[
        |world| [0, 1, 0].into_iter().for_each(|page| world.read(page)),
        |world| {
            world.read(2);
            world.write(3);
        },
        |world| {
            world.give_up(1..2);
            world.give_up(0..1);
        },
        |world| {
            world.swap_out();
            world.store_oldest();
            world.swap_out();
        },
    ],
};

/// What is kept of slots and frames is given back while they come into use again.
const AT_REST: Model = Model {
    world: || World::new(1, "out=drop,zswap.keep=off", ""),
    begin: |world| {
        world.write(0);
        world.swap_out();
        world.read(0);
    },
    actors: &[
        |world| world.live(0, 4),
        |world| (0..3).for_each(|_| world.swap_out()),
        |world| (0..4).for_each(|_| world.rest()),
    ],
};

#[test]
fn no_interleaving_gives_a_wrong_page_or_loses_an_object() {
    let models = [OWN_SLOTS, STORED_ANEW, SLOTS_OF_A_DEVICE, COMPACTED, READ_AHEAD, AT_REST];
    models.into_iter().for_each(|model| model.finds_nothing(200));
    let others = [INVALIDATED_ALWAYS, INVALIDATED_UNLESS_EMPTY];
    others.into_iter().for_each(|model| model.finds_nothing(50));
}

#[test]
fn mistakes_in_the_tiers_are_found() {
    const OWN: &[Bug] = &[
        Bug::RefusedKeepsOlder,
        Bug::CleanWithoutCopy,
        Bug::WrittenUnclaimed,
        Bug::FreedByOwner,
        Bug::SlotChangedUnseen,
    ];
    OWN_SLOTS.finds_each(OWN);
    COMPACTED.finds_each(&[Bug::NotCompared]);
    STORED_ANEW.finds_each(&[Bug::ListedFirst]);
    AT_REST.finds_each(&[Bug::ForgottenInUse]);
    READ_AHEAD.finds_each(&[Bug::LookUpTrusted, Bug::BegunTwice]);
    const DEVICE: &[Bug] =
        &[Bug::FailedIsTaken, Bug::TakenWhileRead, Bug::MovedWhileRead, Bug::ReadUnannounced];
    SLOTS_OF_A_DEVICE.finds_each(DEVICE);
}
