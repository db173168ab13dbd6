//! Pages that are moved off a device beside all that may become of them meanwhile.
//!
//! That the device hands nothing out while it leaves and that slots are claimed are two defences,
//! each of which keeps pages whole by itself. So there is a model in which the device goes on
//! handing slots out ([`Bug::HandsOut`]): there the claim alone does it.

use super::world::World;
use super::{Actor, Model};
use crate::base::seeded::Bug;
use crate::control::swapoff::SwapoffError;
use overspill_os::backing::simulated::Content;
use shuttle::rand::{Rng, thread_rng};

/// The device that leaves is filled first.
const DEVICES: &str = "ram:16M,label=a,prio=2,ram:16M,label=b,prio=1";

/// Both devices, and pages on the first of them. At times there is little memory to move them to.
fn on_a_device(world: &World) {
    world.swapon(DEVICES);
    [0, 1, 2].into_iter().for_each(|page| world.write(page));
    world.swap_out();
    world.others_leave();
    if thread_rng().gen_bool(0.5) {
        world.hoard(thread_rng().gen_range(0..3));
    }
}

const LIVES: [Actor; 4] = [
    |world| world.live(0, 3),
    |world| world.live(1, 3),
    |world| {
        world.swap_out();
        world.write_back();
        world.store_oldest();
        world.swap_out();
    },
    |world| world.swapoff("a"),
];

/// Pages have slots of a device only.
const RAW: Model = Model {
    world: || World::new(3, "out=drop,compressed=0,clean=on", DEVICES),
    begin: on_a_device,
    actors: &LIVES,
};

/// Compressed pages have slots of the device.
const COMPRESSED: Model = Model {
    world: || World::new(3, "out=drop,zswap.slots=device,zswap.keep=on,clean=on", DEVICES),
    ..RAW
};

/// All pages are in memory when the device leaves, and want to leave for it.
const LEAVING_FOR_IT: Model = Model {
    begin: |world| {
        world.swapon(DEVICES);
        [0, 1, 2].into_iter().for_each(|page| world.write(page));
    },
    actors: &[|world| world.swap_out(), |world| world.swapoff("a")],
    ..RAW
};

/// Pages are given up while the device leaves.
const GIVEN_UP: Model = Model {
    begin: |world| {
        world.swapon(DEVICES);
        [0, 1, 2].into_iter().for_each(|page| world.write(page));
        world.swap_out();
    },
    actors: &[
        |world| [0, 2].into_iter().for_each(|page| world.give_up(page..page + 1)),
        |world| world.swapoff("a"),
    ],
    ..RAW
};

/// Nothing has room for the pages: the device stays in use.
const NO_ROOM: Model = Model {
    world: || {
        // It gives up after one pass.
        let settings = "out=drop,compressed=0,clean=on,oom.wait=0s,swapoff.depth=1,swapoff.run=4";
        World::new(3, settings, ONLY_DEVICE)
    },
    begin: |world| {
        world.swapon(ONLY_DEVICE);
        [0, 1, 2].into_iter().for_each(|page| world.write(page));
        world.swap_out();
        world.hoard(0);
    },
    actors: &[
        |world| world.read(0),
        |world| {
            world.read(1);
            world.give_up(2..3);
        },
        |world| match world.swapoff_until("a", usize::MAX) {
            Ok(_) | Err(SwapoffError::NoRoom { .. }) => {}
            Err(error) => panic!("{error}"),
        },
    ],
};
const ONLY_DEVICE: &str = "ram:16M,label=a";

/// The device has to stay after a while.
fn swapoff_for_a_while(world: &World) {
    match world.swapoff_until("a", thread_rng().gen_range(0..300)) {
        Ok(_) | Err(SwapoffError::Interrupted { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

const TAKEN_BACK: Model = Model {
    actors: &[
        |world| world.live(0, 3),
        |world| world.live(1, 3),
        |world| {
            world.swap_out();
            world.store_oldest();
            world.swap_out();
        },
        swapoff_for_a_while,
    ],
    ..RAW
};

/// A page leaves for the device again, as another, while it is moved off it. For models in which
/// the device hands slots out all the while.
const BACK_IN_ITS_SLOT: Model = Model {
    world: || World::new(1, "out=drop,compressed=0,clean=off,swapoff.depth=1", DEVICES),
    begin: |world| {
        world.swapon(DEVICES);
        world.write(0);
        world.swap_out();
    },
    actors: &[
        |world| {
            world.write(0);
            world.swap_out();
        },
        swapoff_for_a_while,
    ],
};

/// Compressed pages get slots of the device, to which nothing was written yet, or other pages.
const STORED_MEANWHILE: Model = Model {
    world: || World::new(8, STORED, DEVICES),
    begin: |world| {
        world.swapon(DEVICES);
        let written = if thread_rng().gen_bool(0.5) { 1 } else { 8 };
        (0..written).for_each(|page| world.fill(page, Content::Noise));
        world.swap_out();
        (1..8).for_each(|page| world.write(page));
    },
    actors: &[|world| world.swap_out(), |world| world.swapoff("a")],
};
const STORED: &str =
    "out=drop,zswap.slots=device,zswap.keep=off,clean=off,readahead=1,swapoff.depth=1";

/// The page in the slot behind them is read at the same time, with those before it.
const STORED_AND_READ: Model = Model {
    world: || World::new(8, STORED_BESIDE, DEVICES),
    begin: |world| {
        world.swapon(DEVICES);
        (0..8).for_each(|page| world.fill(page, Content::Noise));
        world.swap_out();
        world.give_up(0..7);
        (0..7).for_each(|page| world.write(page));
    },
    actors: &[|world| world.swap_out(), |world| world.read(7), |world| world.swapoff("a")],
};
/// There is room, so who reads a slot gets its neighbour, too.
const STORED_BESIDE: &str =
    "out=drop,zswap.slots=device,zswap.keep=off,clean=off,folio=1,readahead=2,swapoff.depth=1";

#[test]
fn no_interleaving_gives_a_wrong_page_or_loses_a_place() {
    let models = [
        NO_ROOM,
        RAW,
        COMPRESSED,
        LEAVING_FOR_IT,
        GIVEN_UP,
        TAKEN_BACK,
        STORED_MEANWHILE,
        STORED_AND_READ,
    ];
    models.into_iter().for_each(|model| model.finds_nothing(100));
    for model in [TAKEN_BACK, BACK_IN_ITS_SLOT] {
        model.holds_with(&[Bug::HandsOut], 100);
    }
}

#[test]
fn mistakes_in_swapoff_are_found() {
    const RAW_BUGS: &[Bug] = &[Bug::EndedUnpublished, Bug::NotLookedAgain, Bug::FreedClaimed];
    RAW.finds_each(RAW_BUGS);
    GIVEN_UP.finds_each(&[Bug::WholeRunFreed, Bug::FreedByOwner]);
    NO_ROOM.finds_each(&[Bug::KeptWithoutRoom, Bug::ClosedInUse]);
    LEAVING_FOR_IT.finds_each(&[Bug::NotSynchronized]);
    BACK_IN_ITS_SLOT.finds(&[Bug::HandsOut, Bug::Unclaimed]);
    STORED_AND_READ.finds_each(&[Bug::FrameTrusted]);
    STORED_MEANWHILE.finds_each(&[Bug::LostTooSoon, Bug::ReadTooSoon]);
}
