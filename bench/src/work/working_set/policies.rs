//! What a policy of replacement would miss: first in first out, least recently used, and Belady's
//! optimum, which knows what is to come (Belady, 1966).
//!
//! Each function takes a trace of page numbers and the number of frames, and returns for each
//! access whether the page was missing. Memory is empty at first, and nothing comes in before it is
//! touched.

use std::collections::BinaryHeap;

/// For each access of a trace, whether it missed.
pub type Misses = Vec<bool>;
/// A policy: which of these accesses miss with so many frames.
pub type Policy = fn(&[u32], usize) -> Misses;

pub fn fifo(trace: &[u32], frames: usize) -> Misses {
    highest_goes(trace, frames, by_age(trace), false)
}

/// Evicts what has not been touched for the longest time.
pub fn lru(trace: &[u32], frames: usize) -> Misses {
    highest_goes(trace, frames, by_age(trace), true)
}

/// Evicts what will not be touched for the longest time: no policy misses less often.
pub fn belady(trace: &[u32], frames: usize) -> Misses {
    // Backwards: when the page of each access is touched next.
    let mut after = vec![usize::MAX; pages(trace)];
    let accesses = trace.iter().enumerate().rev();
    let next = accesses.map(|(now, page)| std::mem::replace(&mut after[*page as usize], now));
    let mut next: Vec<usize> = next.collect();
    next.reverse();
    highest_goes(trace, frames, next.into_iter(), true)
}

/// The later an access is, the lower its rank.
fn by_age(trace: &[u32]) -> impl Iterator<Item = usize> {
    (0..trace.len()).map(|now| usize::MAX - now)
}

/// Each access gives its page a rank, or only one that brings it in; the page of the highest rank
/// is evicted.
fn highest_goes(
    trace: &[u32],
    frames: usize,
    ranks: impl Iterator<Item = usize>,
    each_ranks: bool,
) -> Misses {
    let mut rank_of: Vec<Option<usize>> = vec![None; pages(trace)];
    // All accesses; those that are not their page's last are passed over.
    let mut highest = BinaryHeap::new();
    let mut used = 0;
    let access = |(page, rank): (&u32, usize)| {
        let missed = rank_of[*page as usize].is_none();
        if missed && used < frames {
            used += 1;
        } else if missed {
            while let Some((rank, page)) = highest.pop() {
                if rank_of[page as usize] == Some(rank) {
                    rank_of[page as usize] = None;
                    break;
                }
            }
        }
        if missed || each_ranks {
            rank_of[*page as usize] = Some(rank);
            highest.push((rank, *page));
        }
        missed
    };
    trace.iter().zip(ranks).map(access).collect()
}

/// One more than the largest page number.
fn pages(trace: &[u32]) -> usize {
    trace.iter().max().map_or(0, |page| *page as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(misses: &Misses) -> String {
        misses.iter().map(|missed| if *missed { 'm' } else { '.' }).collect()
    }

    #[test]
    fn by_hand() {
        // Belady's own example of first in, first out: more frames, more misses.
        let trace = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
        let of = |policy: Policy| [3, 4].map(|frames| told(&policy(&trace, frames)));
        assert_eq!(of(fifo), ["mmmmmmm..mm.", "mmmm..mmmmmm"]);
        assert_eq!(of(lru), ["mmmmmmm..mmm", "mmmm..m..mmm"]);
        assert_eq!(of(belady), ["mmmm..m..mm.", "mmmm..m...m."]);
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
        let without = |victim: Option<&u32>| {
            let kept = present.iter().filter(|page| Some(*page) != victim).copied();
            fewest(rest, frames, &kept.chain([*page]).collect::<Vec<u32>>())
        };
        if present.len() < frames {
            return 1 + without(None);
        }
        1 + present.iter().map(|victim| without(Some(victim))).min().unwrap()
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
        fn the_optimum_is_the_best_of_all_choices(
            trace in prop::collection::vec(0u32..5, 0..13), frames in 1usize..4
        ) {
            let misses = belady(&trace, frames).iter().filter(|missed| **missed).count();
            prop_assert_eq!(misses, fewest(&trace, frames, &[]));
        }
    }
}
