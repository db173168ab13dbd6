//! What a policy of replacement would miss: first in first out, least recently used, and Belady's
//! optimum, which knows what is to come (Belady, 1966).
//!
//! Each function takes a trace of page numbers and the number of frames, and returns for each
//! access whether the page was missing. Memory is empty at first, and nothing comes in before it is
//! touched.

use std::collections::{BinaryHeap, VecDeque};

/// For each access of a trace, whether it missed.
pub type Misses = Vec<bool>;
/// A policy: which of these accesses miss with so many frames.
pub type Policy = fn(&[u32], usize) -> Misses;

/// Evicts what came in first.
pub fn fifo(trace: &[u32], frames: usize) -> Misses {
    let mut present = vec![false; pages(trace)];
    let mut queue = VecDeque::with_capacity(frames);
    let access = |page: &u32| {
        let missed = !present[*page as usize];
        if missed {
            if queue.len() == frames {
                let first: u32 = queue.pop_front().expect("there are frames");
                present[first as usize] = false;
            }
            queue.push_back(*page);
            present[*page as usize] = true;
        }
        missed
    };
    trace.iter().map(access).collect()
}

/// Evicts what has not been touched for the longest time.
pub fn lru(trace: &[u32], frames: usize) -> Misses {
    // When each page was touched last, if it is present.
    let mut touched: Vec<Option<usize>> = vec![None; pages(trace)];
    // All touches; those that are not their page's last are passed over.
    let mut touches = VecDeque::new();
    let mut used = 0;
    let access = |(now, page): (usize, &u32)| {
        touches.push_back((now, *page));
        let missed = touched[*page as usize].replace(now).is_none();
        if missed && used < frames {
            used += 1;
        } else if missed {
            while let Some((when, oldest)) = touches.pop_front() {
                if touched[oldest as usize] == Some(when) {
                    touched[oldest as usize] = None;
                    break;
                }
            }
        }
        missed
    };
    trace.iter().enumerate().map(access).collect()
}

/// Evicts what will not be touched for the longest time: no policy misses less often.
pub fn belady(trace: &[u32], frames: usize) -> Misses {
    // 1. Backwards: when the page of each access is touched next.
    let mut after = vec![usize::MAX; pages(trace)];
    let mut next: Vec<usize> = trace
        .iter()
        .enumerate()
        .rev()
        .map(|(now, page)| std::mem::replace(&mut after[*page as usize], now))
        .collect();
    next.reverse();
    // 2. Forwards. The heap has all accesses; those that are not their page's last are passed over.
    let mut due: Vec<Option<usize>> = vec![None; after.len()];
    let mut latest = BinaryHeap::new();
    let mut used = 0;
    let access = |(page, next): (&u32, usize)| {
        let missed = due[*page as usize].is_none();
        if missed && used < frames {
            used += 1;
        } else if missed {
            while let Some((when, page)) = latest.pop() {
                if due[page as usize] == Some(when) {
                    due[page as usize] = None;
                    break;
                }
            }
        }
        due[*page as usize] = Some(next);
        latest.push((next, *page));
        missed
    };
    trace.iter().zip(next).map(access).collect()
}

/// One more than the largest page number.
fn pages(trace: &[u32]) -> usize {
    trace.iter().max().map_or(0, |page| *page as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(misses: &Misses) -> usize {
        misses.iter().filter(|missed| **missed).count()
    }

    fn told(misses: &Misses) -> String {
        misses.iter().map(|missed| if *missed { 'm' } else { '.' }).collect()
    }

    #[test]
    fn by_hand() {
        // Belady's own example of first in, first out: more frames, more misses.
        let trace = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
        assert_eq!(
            (told(&fifo(&trace, 3)), told(&fifo(&trace, 4))),
            ("mmmmmmm..mm.".into(), "mmmm..mmmmmm".into())
        );
        assert_eq!(
            (told(&lru(&trace, 3)), told(&lru(&trace, 4))),
            ("mmmmmmm..mmm".into(), "mmmm..m..mmm".into())
        );
        assert_eq!(
            (told(&belady(&trace, 3)), told(&belady(&trace, 4))),
            ("mmmm..m..mm.".into(), "mmmm..m...m.".into())
        );
        // A loop that is longer than memory by a page.
        let trace = [0, 1, 2, 0, 1, 2, 0, 1, 2];
        assert_eq!(
            (count(&fifo(&trace, 2)), count(&lru(&trace, 2)), told(&belady(&trace, 2))),
            (9, 9, "mmm.m.m.m".into())
        );
        for policy in [fifo, lru, belady] {
            assert_eq!(told(&policy(&[7, 7, 3, 7], 1)), "m.mm");
            assert!(policy(&[], 1).is_empty());
        }
    }

    /// The fewest misses that any choice of victims leads to.
    fn fewest(trace: &[u32], frames: usize, present: &[u32]) -> usize {
        let Some((page, rest)) = trace.split_first() else { return 0 };
        if present.contains(page) {
            return fewest(rest, frames, present);
        }
        let with = |victim: Option<usize>| {
            let kept = present
                .iter()
                .enumerate()
                .filter(|(at, _)| Some(*at) != victim)
                .map(|(_, page)| *page);
            fewest(rest, frames, &kept.chain([*page]).collect::<Vec<u32>>())
        };
        let best = if present.len() < frames {
            with(None)
        } else {
            (0..frames).map(|at| with(Some(at))).min().unwrap()
        };
        1 + best
    }

    proptest! {
        #[test]
        fn lru_misses_what_was_touched_before_as_many_others_as_there_are_frames(
            trace in prop::collection::vec(0u32..20, 0..200), frames in 1usize..20
        ) {
            let mut by_age: Vec<u32> = Vec::new();
            for (page, missed) in trace.iter().zip(lru(&trace, frames)) {
                let age = by_age.iter().rev().position(|other| other == page);
                prop_assert_eq!(missed, age.is_none_or(|others| others >= frames));
                by_age.retain(|other| other != page);
                by_age.push(*page);
            }
        }

        #[test]
        fn what_lru_holds_it_holds_with_more_frames_too(
            trace in prop::collection::vec(0u32..40, 0..300),
            frames in 1usize..40,
            more in 1usize..10
        ) {
            let [fewer, more] = [frames, frames + more].map(|frames| lru(&trace, frames));
            prop_assert!(fewer.iter().zip(&more).all(|(fewer, more)| *fewer || !*more));
        }

        #[test]
        fn no_policy_misses_less_than_the_optimum(
            trace in prop::collection::vec(0u32..40, 0..300), frames in 1usize..40
        ) {
            let least = count(&belady(&trace, frames));
            prop_assert!(least <= count(&lru(&trace, frames)));
            prop_assert!(least <= count(&fifo(&trace, frames)));
            let mut pages = trace.clone();
            pages.sort_unstable();
            pages.dedup();
            prop_assert!(least >= pages.len() && (frames < pages.len() || least == pages.len()));
        }

        #[test]
        fn the_optimum_is_the_best_of_all_choices(
            trace in prop::collection::vec(0u32..5, 0..13), frames in 1usize..4
        ) {
            prop_assert_eq!(count(&belady(&trace, frames)), fewest(&trace, frames, &[]));
        }
    }
}
