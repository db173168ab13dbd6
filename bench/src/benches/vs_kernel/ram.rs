//! How much RAM each gets: overspill what the peer took just before, all in all.
//!
//! The pools of zram and zswap lie outside of the cgroup whose limit is set, so that what a peer takes is known only
//! afterwards. Its limit is lowered by that in the next round, so that it comes to what was asked for. Where its pages do not
//! fit so, packed as they are, the limit stays, the peer takes more RAM than was asked for, and overspill gets as much.

use super::case::{Setting, Step};
use super::figures;
use crate::measure::Sample;
use overspill::base::Bytes;

/// The least that a limit is lowered to, as a share of what was asked for.
const LOWEST: u64 = 4;
/// What overspill takes beside its budget, until it is known: the program, its tables, the launcher.
const BESIDE: u64 = 6 << 20;

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Ram(Vec<Seen>);

#[derive(Debug)]
struct Seen {
    setting: Setting,
    /// What the peer's pool took at most, and all of it.
    pool: u64,
    total: u64,
    /// What overspill took beside its budget, by step.
    beside: [u64; 4],
}

impl Ram {
    /// The limit or the budget of the next measurement.
    pub fn of(&self, size: Bytes, setting: &Setting, step: Step) -> u64 {
        let asked = size.0 / u64::from(setting.overcommit);
        let seen = self.0.iter().find(|seen| seen.setting == *setting);
        match (seen, step) {
            (Some(seen), Step::Peer) => {
                asked.checked_sub(seen.pool).filter(|lowered| *lowered >= asked / LOWEST).unwrap_or(asked)
            }
            (None, Step::Peer) => asked,
            (Some(seen), step) if seen.total > 0 => {
                seen.total.saturating_sub(seen.beside[step as usize]).max(seen.total / 2)
            }
            (_, _) => asked,
        }
    }

    /// Takes note of a measurement.
    pub fn saw(&mut self, setting: &Setting, step: Step, sample: &Sample) {
        let get = |name: &str| sample.get(name).map(|value| *value as u64);
        let at = self.0.iter().position(|seen| seen.setting == *setting).unwrap_or_else(|| {
            self.0.push(Seen { setting: *setting, pool: 0, total: 0, beside: [BESIDE; 4] });
            self.0.len() - 1
        });
        let (seen, Some(total)) = (&mut self.0[at], get(figures::RAM)) else { return };
        if step == Step::Peer {
            seen.pool = get(figures::POOL).unwrap_or(0);
            seen.total = total;
        } else {
            seen.beside[step as usize] = total.saturating_sub(get(figures::LIMIT).unwrap_or(total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::Peer;
    use super::*;
    use crate::testing::sample;
    use overspill_bench::workload::{Packing, Workload};

    const MIB: u64 = 1 << 20;

    #[test]
    fn overspill_gets_what_the_peer_took_and_the_peer_less_next_time() {
        let setting = Setting {
            workload: Workload::SeqRead,
            peer: Peer::Zram,
            overcommit: 2,
            packing: Packing::Heap,
            threads: 1,
        };
        let (size, mut ram) = (Bytes(200 * MIB), Ram::default());
        let saw = |ram: &mut Ram, step, figures: [(&str, u64); 2]| {
            ram.saw(&setting, step, &sample(figures.map(|(name, mib)| (name, (mib * MIB) as f64))));
        };
        assert_eq!(ram.of(size, &setting, Step::Peer), 100 * MIB);
        assert_eq!(ram.of(size, &setting, Step::Library), 100 * MIB, "without a peer it is what was asked for");
        saw(&mut ram, Step::Peer, [(figures::POOL, 30), (figures::RAM, 130)]);
        assert_eq!(ram.of(size, &setting, Step::Library), 124 * MIB);
        saw(&mut ram, Step::Library, [(figures::LIMIT, 124), (figures::RAM, 134)]);
        assert_eq!(ram.of(size, &setting, Step::Library), 120 * MIB, "what it took beside its budget counts");
        assert_eq!(ram.of(size, &setting, Step::OverspillThread), 124 * MIB, "of each step by itself");
        assert_eq!(ram.of(size, &setting, Step::Peer), 70 * MIB);
        saw(&mut ram, Step::Peer, [(figures::POOL, 90), (figures::RAM, 190)]);
        assert_eq!(ram.of(size, &setting, Step::Peer), 100 * MIB, "it would not fit");
        assert_eq!(ram.of(size, &Setting { threads: 2, ..setting }, Step::Peer), 100 * MIB);
    }
}
