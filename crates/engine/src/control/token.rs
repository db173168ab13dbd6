//! Which process of a job has the swap token.
//!
//! Processes that thrash drive out each other's pages: all are slow, for as long as all of them
//! work. One that has all its pages gets as much done as it does alone, and is soon finished, or
//! at rest. So where several thrash one has the *token* (Jiang and Zhang, "Token-ordered LRU",
//! 2005): the others give it what it wants, whoever needs it more, and it gives nothing. Then it is
//! the next one's turn.
//!
//! 1. Who thrashes and might fit takes the token where nobody has it.
//! 2. Its pages come in, for [`FILL_MOST`] at most. Others let it have the processor before they
//!    bring in pages themselves. Who still waits for pages then does not fit: it gives the token
//!    back, and tries again a while later, each time a longer one.
//! 3. Who has come to wait for hardly any keeps it for as many times as long as that took as there
//!    are processes that thrash, up to [`KEEPS_MOST`]. So of two each has its turn soon, and of
//!    many what it takes to bring pages in for each turn is a small part of it.
//!
//! Over some turns equal processes have equal shares; at any one moment they have not.
//!
//! The token is in the account ([`Account::take_token`]), for a moment only: who has it says so
//! again at each look. A process that is killed or stopped holds nobody up.
//!
//! Lock: none; the caller holds that of [`super::share`].

use crate::account::{Account, Member};
use std::time::{Duration, Instant};

/// Which part of what it does is faults, of a process that thrashes, and of one that has what it
/// works with, in parts of 10,000. One that gets something done at least goes on beside others: a
/// compiler in half of its memory, whose pages come back from the compressed tier, would not be
/// done sooner for all of them, and those that give it theirs wait for devices meanwhile.
pub const THRASHES: u64 = 8_000;
const FILLED: u64 = 1_000;
/// Processes that thrash where one is to have the token.
const CROWD: usize = 2;
/// How long the pages of who has it may take to come in.
const FILL_MOST: Duration = Duration::from_secs(5);
/// How many times as long it has the token at most, and within what bounds.
const KEEPS_MOST: usize = 8;
const LEAST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(40);
/// How long it leaves it to others, and one that does not fit, at first and at most.
const PAUSE: Duration = Duration::from_millis(250);
const RETRY_LEAST: Duration = Duration::from_secs(20);
const RETRY_MOST: Duration = Duration::from_secs(600);
/// For how long it is said that a process has the token, in milliseconds.
const SAID_FOR_MS: u64 = 400;

/// What a process sees of its job.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// Which part of what it does is faults that more memory would spare, lately and since the last
    /// look.
    pub strain: u64,
    pub strain_now: u64,
    /// Whether it is short of pages, and all that it has would fit.
    pub is_short: bool,
    pub fits: bool,
    /// Processes that thrash, itself among them.
    pub thrashing: usize,
    /// Whether another has the token.
    pub is_taken: bool,
}

/// What a process knows of its turns.
#[derive(Debug)]
pub struct Turns {
    /// Since when it has the token, and how long it took until it had its pages.
    since: Option<Instant>,
    filled: Option<Duration>,
    /// How many thrashed when it took it.
    crowd: usize,
    /// When it may have it next, and how long it waits for that where it does not fit.
    next: Instant,
    retry: Duration,
}

impl Turns {
    /// Of a process that begins.
    pub fn new(now: Instant) -> Turns {
        Turns { since: None, filled: None, crowd: CROWD, next: now, retry: RETRY_LEAST }
    }

    /// Whether the process has the token.
    pub fn has_token(&self) -> bool {
        self.since.is_some()
    }

    /// Whether the process is to have the token now.
    fn is_due(&mut self, now: Instant, sight: Sight) -> bool {
        let Some(since) = self.since else {
            let is_due = !sight.is_taken
                && now >= self.next
                && sight.strain >= THRASHES
                && sight.thrashing >= CROWD
                && sight.is_short
                && sight.fits;
            self.since = is_due.then_some(now);
            (self.filled, self.crowd) = (None, sight.thrashing);
            return is_due;
        };
        let held = now.duration_since(since);
        if self.filled.is_none() && sight.strain_now < FILLED && !held.is_zero() {
            self.filled = Some(held);
            self.retry = RETRY_LEAST;
        }
        let (goes_on, pause) = match self.filled {
            Some(filled) => {
                let keeps = self.crowd.min(KEEPS_MOST) as u32;
                (held < (filled * keeps).clamp(LEAST, MOST), PAUSE)
            }
            None => (held < FILL_MOST, self.retry),
        };
        if !goes_on && self.filled.is_none() {
            self.retry = (self.retry * 2).min(RETRY_MOST);
        }
        if !goes_on {
            (self.since, self.next) = (None, now + pause);
        }
        self.since.is_some()
    }

    /// Takes the token, keeps it or gives it back.
    pub fn look(&mut self, account: Account, own: Member, now_ms: u64, sight: Sight) {
        let had = self.has_token();
        if self.is_due(Instant::now(), sight) {
            // Another may have been first, now or when this process was late to say that it has it.
            let has = account.take_token(own, now_ms, now_ms + SAID_FOR_MS);
            self.since = self.since.filter(|_| has);
        } else if had {
            account.give_token_back(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_NEED: Sight = Sight {
        strain: THRASHES,
        strain_now: 9_000,
        is_short: true,
        fits: true,
        thrashing: CROWD,
        is_taken: false,
    };
    const CONTENT: Sight = Sight { strain_now: 0, is_short: false, ..IN_NEED };

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn who_thrashes_among_others_and_might_fit_takes_a_token_that_nobody_has() {
        let now = Instant::now();
        let takes = |sight| Turns::new(now).is_due(now, sight);
        assert!(takes(IN_NEED));
        assert!(!takes(Sight { is_taken: true, ..IN_NEED }));
        assert!(!takes(Sight { strain: THRASHES - 1, ..IN_NEED }));
        assert!(!takes(Sight { thrashing: 1, ..IN_NEED }), "nobody drives out its pages");
        assert!(!takes(Sight { is_short: false, ..IN_NEED }));
        assert!(!takes(Sight { fits: false, ..IN_NEED }));
    }

    #[test]
    fn who_has_its_pages_keeps_the_token_the_longer_the_more_thrash() {
        let lasts = |thrashing, filled| {
            let (mut turns, now) = (Turns::new(Instant::now()), Instant::now());
            assert!(turns.is_due(now, Sight { thrashing, ..IN_NEED }));
            assert!(turns.is_due(now + filled, CONTENT));
            (1..).find(|at| !turns.is_due(now + filled + ms(*at), CONTENT)).unwrap()
        };
        assert_eq!((lasts(2, ms(400)), lasts(5, ms(400))), (400, 1600));
        assert_eq!((lasts(8, ms(400)), lasts(100, ms(400))), (2800, 2800));
        assert_eq!(lasts(2, ms(100)), LEAST.as_millis() as u64 - 100);
    }

    #[test]
    fn who_has_given_it_back_leaves_it_to_others_first() {
        let now = Instant::now();
        let mut turns = Turns::new(now);
        let in_need = Sight { thrashing: 8, ..IN_NEED };
        assert!(turns.is_due(now, in_need) && turns.is_due(now + ms(150), in_need));
        assert!(turns.is_due(now + ms(200), CONTENT));
        // That it waits again does not matter.
        assert!(turns.is_due(now + ms(1590), in_need));
        assert!(!turns.is_due(now + ms(1600), in_need));
        assert!(!turns.is_due(now + ms(1700), in_need));
        assert!(turns.is_due(now + ms(1600) + PAUSE, in_need));
    }

    #[test]
    fn who_does_not_fit_tries_again_later_and_then_later_still() {
        let mut now = Instant::now();
        let mut turns = Turns::new(now);
        for wait in [RETRY_LEAST, 2 * RETRY_LEAST] {
            assert!(turns.is_due(now, IN_NEED));
            assert!(turns.is_due(now + FILL_MOST - ms(1), IN_NEED));
            now += FILL_MOST;
            assert!(!turns.is_due(now, IN_NEED) && !turns.is_due(now + wait - ms(1), IN_NEED));
            now += wait;
        }
        // Once it fits it is tried as soon as at first.
        assert!(turns.is_due(now, IN_NEED) && turns.is_due(now + ms(100), CONTENT));
        assert_eq!(turns.retry, RETRY_LEAST);
    }

    #[test]
    fn of_two_who_take_it_together_one_has_it() {
        let account = Account::without_job(1000).unwrap();
        let members = [0; 2].map(|_| account.enter().unwrap());
        let mut turns = [0; 2].map(|_| Turns::new(Instant::now()));
        let mut look = |who: usize, now_ms, sight| {
            turns[who].look(account, members[who], now_ms, sight);
            account.token(now_ms).map(|holder| holder.entry())
        };
        let [first, second] = members.map(|member| Some(member.entry()));
        assert_eq!(look(0, 1000, IN_NEED), first);
        // The second has not seen it yet.
        assert_eq!(look(1, 1000, IN_NEED), first);
        assert_eq!(look(0, 1100, IN_NEED), first);
        // Who does not say so again has lost it, to whoever is next.
        assert!(account.token(1100 + SAID_FOR_MS).is_none());
        assert_eq!(look(1, 1100 + SAID_FOR_MS, IN_NEED), second);
        assert_eq!(look(0, 1200 + SAID_FOR_MS, IN_NEED), second);
        assert_eq!([&turns[0], &turns[1]].map(Turns::has_token), [false, true]);
    }
}
