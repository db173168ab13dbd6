use super::*;
use crate::base::explore::{finds_each, finds_nothing};
use crate::base::seeded::Bug;
use proptest::prelude::*;
use std::process::Command;
use std::sync::Arc;

const BUDGET: u64 = 1000;

fn account() -> Account {
    Account::without_job(BUDGET).unwrap()
}

#[test]
fn a_lease_is_what_there_is_and_all_of_it_comes_back() {
    let account = account();
    let [first, second] = [account.enter(), account.enter()].map(Option::unwrap);
    assert_eq!((first.take(1, 600, 0), second.take(1, 600, 50)), (600, 350), "but the reserve");
    assert_eq!(first.take(51, 60, 0), 0, "not so many");
    assert_eq!((first.take(50, 60, 0), account.leased()), (50, BUDGET));
    // What has to be is above the budget, and then there is nothing for anybody.
    second.set(500);
    assert_eq!((account.leased(), first.take(1, 1, 0)), (1150, 0));
    first.leave();
    assert_eq!((account.leased(), account.members().count()), (500, 1));
    let told = Told {
        used: 3,
        unmanaged: 6,
        keeps: 7,
        rate: 4,
        strain: 10,
        want: 5,
        mood: Mood::AtRest,
        size: 8,
        adjusted: -9,
    };
    second.tell(told);
    assert_eq!(account.members().next().unwrap().told(), told);
    second.leave();
    let again = account.enter().unwrap();
    assert_eq!((again.entry(), again.told(), again.lease()), (1, Told::default(), 0));
}

#[test]
fn what_a_killed_process_leased_comes_back() {
    let account = account();
    let member = account.enter().unwrap();
    member.take(1, 700, 0);
    assert_eq!((account.reap(), account.leased()), (0, 700), "this process lives");
    // That of a process that is gone, as the number in it says.
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let word = (1 << 31) | u64::from(child.id());
    account.cells[ENTRY + 1].store(word, Relaxed);
    assert_eq!(account.members().count(), 0, "before anybody has cleared it");
    assert_eq!((account.reap(), account.leased()), (700, 0));
    assert_eq!((account.reap(), account.members().count()), (0, 0));
}

/// In a build many end between two looks of those that go on: what they had is free at once.
#[test]
fn what_the_dead_leased_counts_no_more() {
    const DIED: u64 = 1 << 30;
    let account = account();
    let [lives, dies] = [account.enter(), account.enter()].map(Option::unwrap);
    assert_eq!((lives.take(1, 300, 0), dies.take(1, 700, 0)), (300, 700));
    dies.tell(Told { unmanaged: 5, ..Told::default() });
    account.cells[2 * ENTRY + 1].store(DIED, Relaxed);
    assert_eq!((account.leased(), account.members().count()), (300, 1));
    assert_eq!((lives.take(700, 700, 0), account.reap()), (700, 700));
}

/// A process that is told to end may end by itself first, and another may have its entry then.
#[test]
fn who_has_the_entry_of_one_that_was_to_end_goes_on() {
    let account = account();
    let member = account.enter().unwrap();
    assert!(!member.is_doomed());
    member.introduce(17, Name([u64::from_le_bytes(*b"first\0\0\0"), 0]));
    let (process, name) = member.process();
    assert_eq!(name.to_string(), "first");
    member.leave();
    let member = account.enter().unwrap();
    member.doom(process);
    assert!(!member.is_doomed(), "not introduced yet");
    member.introduce(18, Name([0; 2]));
    assert!(!member.is_doomed(), "another process");
    member.doom(18);
    assert!(member.is_doomed());
    assert_eq!((account.victim().is_none(), account.set_victim(None, member, 5)), (true, true));
    let victim = account.victim().map(|(victim, ms)| (victim.entry(), ms));
    assert_eq!(victim, Some((member.entry(), 5)));
    assert!(!account.set_victim(None, member, 6), "somebody else has said who");
}

#[test]
fn there_is_an_end_to_entries() {
    let account = account();
    let entries = (1..PLACES).map(|entry| account.member(entry).unwrap());
    entries.for_each(|member| assert!(member.mark().take()));
    assert!(account.enter().is_none());
    account.member(7).unwrap().leave();
    assert_eq!(account.enter().map(|member| member.entry()), Some(7));
}

/// What a process of the model does.
#[derive(Clone, Debug)]
enum Step {
    Begin,
    Take(prop::sample::Index, u64, u64),
    Give(prop::sample::Index, u64),
    Need(prop::sample::Index, u64),
    End(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let who = any::<prop::sample::Index>;
    prop_oneof![
        Just(Step::Begin),
        (who(), 0..600u64, 0..100u64).prop_map(|(who, most, least)| Step::Take(who, most, least)),
        (who(), 0..600u64).prop_map(|(who, pages)| Step::Give(who, pages)),
        (who(), 0..50u64).prop_map(|(who, pages)| Step::Need(who, pages)),
        who().prop_map(Step::End),
    ]
}

proptest! {
    /// Processes that come, take, give back, need and go, beside a list of what each has.
    #[test]
    fn as_a_list_of_leases(steps in prop::collection::vec(step(), 0..100), reserve in 0..100u64) {
        let account = account();
        let mut model: Vec<(Member, u64)> = Vec::new();
        for step in steps {
            let sum: u64 = model.iter().map(|(_, lease)| lease).sum();
            let count = model.len();
            match step {
                Step::Begin => model.push((account.enter().unwrap(), 0)),
                _ if count == 0 => {}
                Step::Take(who, most, least) => {
                    let (member, lease) = &mut model[who.index(count)];
                    let there_is = BUDGET.saturating_sub(sum + reserve).min(most);
                    let expected = if there_is < least { 0 } else { there_is };
                    prop_assert_eq!(member.take(least, most, reserve), expected);
                    *lease += expected;
                }
                Step::Give(who, pages) => {
                    let (member, lease) = &mut model[who.index(count)];
                    *lease = lease.saturating_sub(pages);
                    member.set(*lease);
                }
                Step::Need(who, pages) => {
                    let (member, lease) = &mut model[who.index(count)];
                    *lease = (*lease).max(pages);
                    member.set(*lease);
                }
                Step::End(who) => model.swap_remove(who.index(count)).0.leave(),
            }
            let sum: u64 = model.iter().map(|(_, lease)| lease).sum();
            prop_assert_eq!((account.leased(), account.members().count()), (sum, model.len()));
        }
    }
}

/// What may stand in a cell that another process has written.
fn word() -> impl Strategy<Value = u64> {
    let places = PLACES as u64;
    let edges = [0, 1, places - 1, places, PAGES_MAX, 1 << 31, 1 << 63, u64::MAX];
    prop_oneof![prop::sample::select(edges.to_vec()), any::<u64>()]
}

proptest! {
    /// The table is memory of other processes: whatever is in it, it is read, and added up.
    #[test]
    fn whatever_others_wrote_is_read(
        head in prop::collection::vec(word(), ENTRY),
        entries in prop::collection::vec(word(), 4 * ENTRY),
        last in prop::collection::vec(word(), ENTRY),
    ) {
        let account = account();
        let fill = |at: usize, words: &[u64]| {
            let cells = account.cells[at..].iter().zip(words);
            cells.for_each(|(cell, word)| cell.store(*word, Relaxed));
        };
        fill(0, &head);
        fill(ENTRY, &entries);
        fill((PLACES - 1) * ENTRY, &last);
        let told: u64 = account.members().map(|member| member.told().unmanaged).sum();
        prop_assert!(told <= 5 * PAGES_MAX && account.leased() <= 5 * PAGES_MAX);
        prop_assert!(account.budget() <= PAGES_MAX && account.peak() <= PAGES_MAX);
        for (member, _) in account.members().map(|member| (member, 0)).chain(account.victim()) {
            let _ = (member.is_doomed(), member.process().1.to_string(), member.mark().is_own());
            prop_assert!(member.take(0, 100, 100) <= 100);
        }
        account.reap();
        prop_assert!(account.enter().is_none_or(|member| member.entry() < PLACES));
    }
}

/// Three processes take and give at the same time, and one of them goes: at no moment more is
/// granted than there is.
fn at_once() {
    let account = account();
    let granted = Arc::new(AtomicU64::new(0));
    let process = |takes: [u64; 2], leaves: bool| {
        let granted = granted.clone();
        let member = account.enter().unwrap();
        shuttle::thread::spawn(move || {
            let mut has = 0;
            for most in takes {
                let taken = member.take(1, most, 0);
                has += taken;
                let all = granted.fetch_add(taken, SeqCst) + taken;
                assert!(all <= BUDGET, "{all} pages are granted");
                point();
            }
            // What is given back is free from then on.
            granted.fetch_sub(has, SeqCst);
            if leaves { member.leave() } else { member.set(0) }
        })
    };
    let processes = [([600, 300], false), ([500, 700], true), ([300, 200], false)];
    let threads = processes.map(|(takes, leaves)| process(takes, leaves));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(account.leased(), 0);
}

#[test]
fn never_more_is_granted_than_there_is() {
    finds_nothing(2000, at_once);
}

#[test]
fn who_does_not_announce_is_found() {
    finds_each(&[Bug::TakenUnannounced], 2000, at_once);
}

#[test]
fn the_swap_token_is_one_processs_at_a_time_and_runs_out() {
    let account = Account::without_job(1000).unwrap();
    let [first, second] = [0; 2].map(|_| account.enter().unwrap());
    let holder = |now_ms| account.token(now_ms).map(|member| member.entry());
    assert_eq!(holder(0), None);
    assert!(account.take_token(first, 1000, 1400) && !account.take_token(second, 1100, 1500));
    assert_eq!(holder(1399), Some(first.entry()));
    assert!(account.take_token(first, 1200, 1600), "it may have it for longer");
    assert_eq!(holder(1500), Some(first.entry()));
    assert_eq!(holder(1600), None);
    assert!(account.take_token(second, 1600, 2000));
    // Who has lost it does not give back what is another's.
    account.give_token_back(first);
    assert_eq!(holder(1700), Some(second.entry()));
    account.give_token_back(second);
    assert_eq!(holder(1700), None);
    // What a broken process says does not hold for ever.
    assert!(account.take_token(first, 1700, 1 << 40));
    assert_eq!(holder(1700), None);
    assert!(account.take_token(second, 1700, 2000));
}
