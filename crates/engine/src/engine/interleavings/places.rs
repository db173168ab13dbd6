//! Pages of several places: of large arrays of the program's and of the window. Numbers of the one
//! are near those of the next, and between their addresses lies what is none of the engine's.

use super::world::World;
use super::{Actor, Model};
use crate::base::seeded::Bug;

const DEVICES: &str = "ram:16M,label=a,prio=2,ram:16M,label=b,prio=1";

fn write_all(world: &World) {
    (0..2).for_each(|page| world.write(page));
}

/// A page of an array and one of the window leave together, and are written to.
const LEAVING: Model = Model {
    world: || World::in_places(&[1], 1, "out=drop,folio=1", ""),
    begin: write_all,
    actors: &[
        |world| (0..3).for_each(|_| world.write(0)),
        |world| (0..3).for_each(|_| world.write(1)),
        |world| (0..2).for_each(|_| world.reclaim(2)),
    ],
};

/// The same by way of the swap cache.
const LEAVING_FOR_A_DEVICE: Model = Model {
    world: || World::in_places(&[1], 1, "out=drop,folio=1,compressed=0", "ram:16M"),
    actors: &[
        |world| world.live(0, 3),
        |world| world.live(1, 3),
        |world| {
            world.reclaim(2);
            world.store_oldest();
        },
    ],
    ..LEAVING
};

/// A child shares both.
const SHARED: Model = Model {
    actors: &[
        |world| (0..2).for_each(|_| world.write(0)),
        |world| world.live(1, 2),
        |world| world.share(),
        |world| world.reclaim(2),
    ],
    ..LEAVING
};

/// Two pages of each of three places.
const LIVES: [Actor; 5] = [
    |world| world.live(1, 3),
    |world| world.live(2, 3),
    |world| world.live(4, 3),
    |world| {
        world.reclaim(6);
        world.store_oldest();
        world.write_back();
    },
    |world| world.swapoff("a"),
];

/// Pages of three places are moved off a device.
const OFF_A_DEVICE: Model = Model {
    world: || World::in_places(&[2, 2], 2, "out=drop,compressed=0,clean=on", DEVICES),
    begin: |world| {
        world.swapon(DEVICES);
        (0..6).for_each(|page| world.write(page));
        world.reclaim(6);
        world.others_leave();
    },
    actors: &LIVES,
};

/// All stands still for a fork meanwhile.
const FORKED: Model = Model {
    world: || World::in_places(&[2, 2], 2, "out=drop,zswap.keep=on,clean=on", "ram:16M"),
    begin: |world| (0..6).for_each(|page| world.write(page)),
    actors: &[
        |world| world.live(1, 3),
        |world| world.live(2, 3),
        |world| world.reclaim(6),
        |world| {
            world.fork();
            world.reap();
        },
    ],
};

/// A stream reaches the end of an array: it does not go on in the window.
const AHEAD: Model = Model {
    world: || World::in_places(&[2], 2, "out=drop,compressed=0", "ram:16M"),
    begin: |world| {
        (0..4).for_each(|page| world.write(page));
        world.reclaim(4);
    },
    actors: &[
        |world| world.live(0, 2),
        |world| (0..4).for_each(|page| world.go_ahead(page, page % 2 == 0)),
        |world| world.live(2, 2),
        |world| world.reclaim(4),
    ],
};

#[test]
fn no_interleaving_takes_pages_of_two_places_for_neighbours() {
    let models = [LEAVING, LEAVING_FOR_A_DEVICE, SHARED, OFF_A_DEVICE, FORKED, AHEAD];
    models.into_iter().for_each(|model| model.finds_nothing(100));
}

#[test]
fn one_range_for_pages_of_two_places_is_found() {
    [LEAVING, SHARED].into_iter().for_each(|model| model.finds_each(&[Bug::OneRangeAssumed]));
}
