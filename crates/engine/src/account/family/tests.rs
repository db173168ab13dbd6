use super::*;
use crate::base::explore::{finds_each, finds_nothing};
use crate::base::seeded::Bug;
use proptest::prelude::*;
use std::collections::HashSet;
use std::process::Command;

const BUDGET: u64 = 1000;

fn account() -> Account {
    Account::without_job(BUDGET).unwrap()
}

/// A process with so many pages, all of which its child shares.
fn family(account: &Account, pages: u64) -> [Member; 2] {
    let [parent, child] = [account.enter(), account.enter()].map(Option::unwrap);
    parent.set(pages);
    parent.share_with(child, 10, pages);
    [parent, child]
}

#[test]
fn what_two_share_counts_once_until_one_has_it_for_itself() {
    let account = account();
    let [parent, child] = family(&account, 100);
    assert_eq!((account.leased(), account.saved(), child.lease()), (110, 100, 110));
    assert_eq!(
        [parent, child].map(|member| (member.saves(), member.part_of_saved())),
        [(100, 50); 2]
    );
    // The child writes to 30, and its parent gives up 20: those stay where they are.
    assert_eq!((child.unshare(30), account.leased()), (30, 140));
    assert_eq!(parent.unshare(20), 20);
    parent.set(80);
    assert_eq!((account.leased(), child.shared(), parent.shared()), (140, 70, 80));
    // One end of it is the end of all that is shared.
    child.leave();
    assert_eq!((account.leased(), account.saved(), parent.saves()), (80, 0, 0));
    assert_eq!((parent.unshare(80), account.leased()), (0, 80), "it has them for itself");
}

#[test]
fn the_first_of_a_family_may_end_first() {
    let account = account();
    let [parent, child] = family(&account, 100);
    let third = account.enter().unwrap();
    child.share_with(third, 10, 100);
    assert_eq!(account.leased(), 120);
    parent.leave();
    assert_eq!((account.leased(), third.saves()), (120, 100), "two are left");
    // Another process has its entry.
    let other = account.enter().unwrap();
    assert_eq!((other.entry(), other.saves(), other.shared()), (parent.entry(), 0, 0));
    other.leave();
    third.leave();
    assert_eq!((account.leased(), account.saved()), (110, 0));
}

#[test]
fn what_the_dead_shared_counts_until_somebody_clears_it() {
    const DIED: u64 = 1 << 30;
    let account = account();
    let [parent, child] = family(&account, 100);
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    account.cells[child.at * super::super::ENTRY + 1].store(DIED, Relaxed);
    assert_eq!((account.leased(), parent.part_of_saved()), (100, 0));
    assert_eq!((account.reap(), account.leased(), account.saved()), (110, 100, 0));
}

/// What a process of the model does.
#[derive(Clone, Debug)]
enum Step {
    Fork(prop::sample::Index),
    Write(prop::sample::Index, prop::sample::Index),
    Drop(prop::sample::Index, prop::sample::Index),
    Bring(prop::sample::Index),
    End(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<prop::sample::Index>;
    prop_oneof![
        any().prop_map(Step::Fork),
        (any(), any()).prop_map(|(who, page)| Step::Write(who, page)),
        (any(), any()).prop_map(|(who, page)| Step::Write(who, page)),
        (any(), any()).prop_map(|(who, page)| Step::Drop(who, page)),
        any().prop_map(Step::Bring),
        any().prop_map(Step::End),
    ]
}

/// A process: its entry, and of each page that it has which memory it is, and whether it is marked.
struct Process {
    member: Member,
    pages: Vec<(usize, bool)>,
}

/// All processes, and how many pages of memory there ever were.
struct Model {
    account: Account,
    processes: Vec<Process>,
    made: usize,
}

impl Model {
    fn begin() -> Model {
        let account = account();
        let member = account.enter().unwrap();
        let pages: Vec<_> = (0..20).map(|page| (page, false)).collect();
        member.set(pages.len() as u64);
        Model { account, processes: vec![Process { member, pages }], made: 20 }
    }

    fn new_page(&mut self) -> usize {
        self.made += 1;
        self.made - 1
    }

    fn step(&mut self, step: Step) {
        let count = self.processes.len();
        match step {
            _ if count == 0 => {}
            Step::Fork(who) if count < 6 => {
                let parent = &mut self.processes[who.index(count)];
                parent.pages.iter_mut().for_each(|(_, marked)| *marked = true);
                let (pages, child) = (parent.pages.clone(), self.account.enter().unwrap());
                parent.member.share_with(child, 0, pages.len() as u64);
                self.processes.push(Process { member: child, pages });
            }
            Step::Fork(_) => {}
            Step::Write(who, page) => {
                let new = self.new_page();
                let Process { member, pages } = &mut self.processes[who.index(count)];
                let at = (!pages.is_empty()).then(|| page.index(pages.len()));
                if at.is_some_and(|at| std::mem::replace(&mut pages[at], (new, false)).1) {
                    member.unshare(1);
                }
            }
            Step::Drop(who, page) => {
                let Process { member, pages } = &mut self.processes[who.index(count)];
                if !pages.is_empty() {
                    let (_, marked) = pages.swap_remove(page.index(pages.len()));
                    if marked {
                        member.unshare(1);
                    }
                    member.set(pages.len() as u64);
                }
            }
            Step::Bring(who) => {
                let new = self.new_page();
                let Process { member, pages } = &mut self.processes[who.index(count)];
                pages.push((new, false));
                member.set(pages.len() as u64);
            }
            Step::End(who) => self.processes.swap_remove(who.index(count)).member.leave(),
        }
    }

    /// Pages of memory that somebody has.
    fn in_memory(&self) -> usize {
        let pages = self.processes.iter().flat_map(|process| &process.pages);
        pages.map(|(page, _)| page).collect::<HashSet<_>>().len()
    }
}

proptest! {
    /// Processes that fork, write, give up and end, beside which memory each of their pages is:
    /// never less counts than there is, and with one process left just what it has.
    #[test]
    fn as_a_set_of_pages(steps in prop::collection::vec(step(), 0..150)) {
        let mut model = Model::begin();
        for step in steps {
            model.step(step.clone());
            let (counts, there_is) = (model.account.leased(), model.in_memory() as u64);
            prop_assert!(counts >= there_is, "{step:?}: {counts} count, and there are {there_is}");
            let shared = model.processes.iter().any(|process| process.member.saves() > 0);
            if model.processes.len() == 1 {
                prop_assert_eq!((counts, shared), (there_is, false));
            }
            let parts: u64 = model.processes.iter().map(|p| p.member.part_of_saved()).sum();
            prop_assert!(parts <= model.account.saved());
        }
    }
}

/// A process forks while another takes what is left and a third, which shares as well, has pages of
/// its own and ends: at no moment less counts than there is.
fn at_once() {
    let account = account();
    let [parent, relative] = family(&account, 300);
    let child = account.enter().unwrap();
    let forks = shuttle::thread::spawn(move || parent.share_with(child, 10, 300));
    let shares = shuttle::thread::spawn(move || {
        relative.unshare(100);
        point();
        relative.leave();
    });
    // With what it takes there are its own pages, those of the parent, and ten at least.
    let takes = shuttle::thread::spawn(move || {
        let member = account.enter().unwrap();
        for most in [400, 400] {
            member.take(1, most, 0);
            let all = member.lease() + 300;
            assert!(all <= BUDGET, "{all} pages are granted");
            point();
        }
    });
    [forks, shares, takes].into_iter().for_each(|thread| thread.join().unwrap());
    assert!(account.saved() <= 300, "{} are saved", account.saved());
}

#[test]
fn never_more_is_saved_than_is_shared() {
    finds_nothing(2000, at_once);
}

#[test]
fn who_saves_too_early_is_found() {
    finds_each(&[Bug::SavedFirst], 2000, at_once);
}
