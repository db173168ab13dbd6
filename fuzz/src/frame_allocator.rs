//! Drives the frame allocator with calls that the fuzzer makes up, against a set of the frames that
//! are handed out.

use arbitrary::Arbitrary;
use overspill::units::FrameId;
use overspill::frame::{FrameAllocator, FrameSettings, MAX_ORDER, Mobility, Need, FramePick};
use overspill::stats::Stats;
use overspill_os::cpu::Topology;
use std::collections::BTreeSet;

const LIMIT: u64 = 3000;

#[derive(Arbitrary, Debug)]
struct Input {
    percpu: bool,
    outside: bool,
    two_nodes: bool,
    calls: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Alloc { order: u8, mobility: u8, need: u8 },
    Folio { pages: u8 },
    Free { which: u16 },
    FreeMany { from: u16, count: u8 },
    Drain,
    Decay,
    Limit { pages: u16 },
    Resize { pages: u16 },
    GiveUp,
}

/// What is handed out: frames, and the blocks that they were handed out as.
#[derive(Default)]
struct Owned {
    frames: BTreeSet<u32>,
    blocks: Vec<(FrameId, u8)>,
}

impl Owned {
    fn take(&mut self, first: FrameId, order: u8) {
        for frame in first.run(1 << order) {
            assert!(self.frames.insert(frame.0), "{frame:?} was handed out twice");
        }
        self.blocks.push((first, order));
    }

    fn give(&mut self, which: usize) -> Option<(FrameId, u8)> {
        let which = which.checked_rem(self.blocks.len())?;
        let (first, order) = self.blocks.swap_remove(which);
        first.run(1 << order).for_each(|frame| assert!(self.frames.remove(&frame.0)));
        Some((first, order))
    }
}

/// The target.
pub fn run(bytes: &[u8]) {
    let Some(input) = crate::made_of::<Input>(bytes) else { return };
    let settings = FrameSettings {
        percpu: input.percpu,
        pick: if input.outside { FramePick::Outside } else { FramePick::Inside },
        ..FrameSettings::default()
    };
    let nodes = vec![vec![0]; 1 + usize::from(input.two_nodes)];
    let stats = Stats::anonymous().expect("memory for the counters");
    let allocator = FrameAllocator::new(LIMIT, 2 * LIMIT, settings, Topology::new(1, &nodes), stats)
        .expect("address space for the tables");
    let resize = |pages| allocator.resize(pages, |_| Ok::<_, ()>(())).expect("it cannot fail");
    resize(LIMIT);
    let mut owned = Owned::default();
    for call in input.calls {
        match call {
            Call::Alloc { order, mobility, need } => {
                let order = order % (MAX_ORDER + 1);
                let need = [Need::Fault, Need::Reclaim, Need::Over][usize::from(need % 3)];
                let mobility = Mobility::ALL[usize::from(mobility % 3)];
                if let Some(first) = allocator.alloc(order, mobility, need) {
                    assert!(!allocator.is_isolated(first));
                    owned.take(first, order);
                }
            }
            Call::Folio { pages } => {
                let mut frames = Vec::new();
                allocator.alloc_folio(usize::from(pages), Need::Fault, &mut frames);
                frames.into_iter().for_each(|frame| owned.take(frame, 0));
            }
            Call::Free { which } => {
                if let Some((first, order)) = owned.give(usize::from(which)) {
                    allocator.free(first, order);
                }
            }
            Call::FreeMany { from, count } => {
                let blocks: Vec<_> =
                    (0..count).filter_map(|_| owned.give(usize::from(from))).collect();
                let frames: Vec<_> =
                    blocks.iter().flat_map(|(first, order)| first.run(1 << order)).collect();
                allocator.free_many(&frames);
            }
            Call::Drain => {
                allocator.drain();
                assert_eq!(allocator.used(), owned.frames.len() as u64);
            }
            Call::Decay => allocator.decay(),
            Call::Limit { pages } => allocator.set_limit(u64::from(pages) % (2 * LIMIT)),
            Call::Resize { pages } => {
                resize(u64::from(pages) % (2 * LIMIT));
                allocator.drain();
            }
            Call::GiveUp => allocator.give_up_surplus(|frames| {
                let used = owned.frames.range(frames).next();
                assert!(used.is_none(), "a frame in use left the arena");
            }),
        }
    }
    while let Some((first, order)) = owned.give(0) {
        allocator.free(first, order);
    }
    allocator.drain();
    allocator.check();
    assert_eq!(allocator.used(), 0);
    allocator.give_up_surplus(|_| {});
    assert!(!allocator.has_surplus());
}
