//! What all processes of a job are told: one table that each of them maps.
//!
//! Whoever started the job makes the file of the table and writes to it; the pool of each process
//! looks at it about ten times a second, and when it is made. So a process learns of a change
//! whenever and however it was started, and no process is forgotten because it was being started
//! just then. What it has taken note of, it says in its own table ([`crate::stats`]).
//!
//! Which swap devices the job has is a list in a file of its own ([`crate::device::list`]), of
//! which the table has the number.
//!
//! Behind it lies the account of the job's budget (`crate::account`).
//!
//! No locks: a request is one atomic cell. A request to reclaim pages has two more, for how far it
//! is; they bear its number, so that nobody adds to those of the next by mistake.

use crate::account::{Account, Member, Mood, Name, Told};
use crate::base::psi::JobPressure;
use crate::stats::Pressure;
use crate::units::Bytes;
use overspill_os::Errno;
use overspill_os::beside::program;
use overspill_os::directory::Directory;
use overspill_os::table::SharedCells;
use overspill_os::vm;
use rustix::fs::{FlockOperation, OFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Name of the file in the directory of a run.
pub const FILE_NAME: &str = "job";
/// Name of the file there for what processes report whose standard error is something else by now.
pub const REPORTS_NAME: &str = "reports";
/// The sign, in the directory of a run, that one of its processes has begun.
pub const BEGUN_NAME: &str = "begun";
/// How much memory that is not managed is to be expected beside a budget: a tenth of it, and what a
/// few processes have in any case. More is told at the end of a run.
pub fn tolerance(budget: Bytes) -> Bytes {
    const PART: u64 = 10;
    const LEAST: u64 = 8 << 20;
    Bytes((budget.0 / PART).max(LEAST))
}
/// First cell: "ovrsjob" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"ovrsjob\x02");
const CELL_BUDGET: usize = 1;
/// The pages that are to be reclaimed, those of them that processes have taken on, and those that
/// are.
const CELL_RECLAIM: usize = 2;
const CELL_TAKEN: usize = 3;
const CELL_RECLAIMED: usize = 4;
/// The number of the list of swap devices.
const CELL_SWAPS: usize = 5;
/// Whether a process has asked if it is the first.
const CELL_STARTED: usize = 6;
/// What all processes wait together.
const CELL_PRESSURE: usize = 16;
/// Room for what else a job will be told.
const TOLD: usize = 64;
/// All cells: the account is the rest.
const CELLS: usize = TOLD + Account::CELLS;
/// A request is its number and a number of pages, of which 40 bits are 4 PiB.
const PAGES_BITS: u32 = 40;
const PAGES_MAX: u64 = (1 << PAGES_BITS) - 1;
const NUMBER_MAX: u32 = (1 << (64 - PAGES_BITS)) - 1;

/// What a process says of its memory that is not managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// The process, by the number that it has for itself.
    pub pid: u32,
    /// How much it is.
    pub unmanaged: Bytes,
    /// Whether it has an engine, which counts all of it.
    pub has_engine: bool,
}

/// What the processes of a job are to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetRequest {
    /// Tells requests apart; 0 is none. Counts modulo 2^24, so it is compared for equality only.
    pub number: u32,
    /// Budget of all processes of the job together.
    pub memory: Bytes,
}

/// Pages that the processes of a job are to reclaim together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReclaimRequest {
    /// Tells requests apart, as that of a [`BudgetRequest`].
    pub number: u32,
    /// How much.
    pub memory: Bytes,
}

/// The next number: 0 means that nothing was ever asked for.
fn next(number: u32) -> u32 {
    if number >= NUMBER_MAX { 1 } else { number + 1 }
}

fn cell(number: u32, pages: u64) -> u64 {
    u64::from(number) << PAGES_BITS | pages.min(PAGES_MAX)
}

/// Number and pages of a cell.
fn parts(cell: u64) -> (u32, u64) {
    ((cell >> PAGES_BITS) as u32, cell & PAGES_MAX)
}

/// The table of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobTable {
    cells: SharedCells,
}

impl JobTable {
    /// Makes the table in a new file.
    pub fn create(file: BorrowedFd<'_>) -> Result<JobTable, Errno> {
        rustix::fs::ftruncate(file, CELLS as u64 * 8)?;
        let cells = SharedCells::shared(file, CELLS)?;
        cells[0].store(MAGIC, Release);
        Ok(JobTable { cells })
    }

    /// Maps the table that another process made in the directory of a run; `None` if there is none.
    pub fn open(run_dir: &Directory) -> Option<JobTable> {
        let file = run_dir.open_shared(FILE_NAME, OFlags::RDWR).ok()?;
        // Behind the end of a file that is too short there would be SIGBUS.
        if rustix::fs::fstat(&file).ok()?.st_size < CELLS as i64 * 8 {
            return None;
        }
        let cells = SharedCells::shared(file.as_fd(), CELLS).ok()?;
        (cells[0].load(Acquire) == MAGIC).then_some(JobTable { cells })
    }

    /// Says that a process of the job is there, as long as this one has its memory, and children of
    /// its forks theirs ([`JobTable::is_attended`]). Where that cannot be, nothing is said.
    pub fn attend(run_dir: &Directory) {
        if let Ok(file) = run_dir.open_shared(FILE_NAME, OFlags::RDONLY)
            && JobTable::mark_attended(file.as_fd()).is_ok()
        {
            let _ = vm::hold_open(file.as_fd());
        }
    }

    /// The same as long as the file is open.
    ///
    /// # Errors
    /// Those of flock(2).
    pub fn mark_attended(file: BorrowedFd<'_>) -> Result<(), Errno> {
        rustix::fs::flock(file, FlockOperation::NonBlockingLockShared)
    }

    /// Whether a process of the job is there.
    pub fn is_attended(file: BorrowedFd<'_>) -> bool {
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err()
    }

    /// The table in the directory of a run at a path.
    pub fn open_at(run_dir: &Path) -> Option<JobTable> {
        JobTable::open(&Directory::trusted(run_dir).ok()?)
    }

    /// How much the processes of the job wait for memory: the time in which any of them does.
    pub fn pressure(&self) -> Pressure {
        self.shared_pressure().pressure()
    }

    pub(crate) fn shared_pressure(&self) -> JobPressure {
        JobPressure::over(&self.cells.all()[CELL_PRESSURE..TOLD])
    }

    /// The most memory that was in use at once, by all processes together: looked at ten times a
    /// second.
    pub fn peak(&self) -> Bytes {
        Bytes::from_pages(self.account().peak())
    }

    /// Memory that processes share since a fork, as often as more than one of them says that it is
    /// in use there: in all it counts once.
    pub fn saved(&self) -> Bytes {
        Bytes::from_pages(self.account().saved())
    }

    /// The most memory that was not managed at once, of all processes together.
    pub fn unmanaged_peak(&self) -> Bytes {
        Bytes::from_pages(self.account().unmanaged_peak())
    }

    /// The processes that say what they have: their numbers, as they have them, and how much of it
    /// is not managed. Those with an engine count all that they have.
    pub fn tell_of_themselves(&self) -> Vec<Said> {
        let members = self.account();
        let said = |member: Member| {
            let told = member.told();
            let unmanaged = Bytes::from_pages(told.unmanaged);
            Said { pid: member.process().0, unmanaged, has_engine: told.mood != Mood::Dormant }
        };
        members.members().map(said).collect()
    }

    /// The account of the job's budget.
    pub(crate) fn account(&self) -> Account {
        Account::over(&self.cells.all()[TOLD..])
    }

    /// Has the account say that this process has so many pages, though it has no engine that would
    /// say so. `entry` is what the call before returned, 0 for none; with no pages, or where the
    /// account has no room, that is the result.
    pub fn hold(&self, entry: usize, pages: u64) -> usize {
        let (account, process) = (self.account(), program().as_raw_nonzero().get() as u32);
        let own = account.member(entry).filter(|member| member.mark().is_own());
        if pages == 0 {
            own.iter().for_each(Member::leave);
            return 0;
        }
        let enter = || {
            let member = account.enter()?;
            let name = rustix::thread::name().unwrap_or_default();
            member.introduce(process, Name::of(name.to_bytes()));
            Some(member)
        };
        let reaped = || if account.reap() > 0 { enter() } else { None };
        let Some(member) = own.or_else(enter).or_else(reaped) else { return 0 };
        let mood = Mood::Dormant;
        member.tell(Told { unmanaged: pages, keeps: pages, size: pages, mood, ..Told::default() });
        member.set(pages);
        member.entry()
    }

    /// A process of the job is about to write into the memory of another (process_vm_writev): pages
    /// of all leave by being moved only, from now on.
    pub fn note_remote_writes(&self) {
        self.account().note_remote_writes();
    }

    /// The processes that say so of themselves by [`JobTable::hold`], and what they have.
    pub fn held(&self) -> (u64, Bytes) {
        let account = self.account();
        let told = account.members().map(|member| member.told());
        let held = told.filter(|told| told.mood == Mood::Dormant);
        let (count, pages) =
            held.fold((0, 0), |(count, pages), told| (count + 1, pages + told.unmanaged));
        (count, Bytes::from_pages(pages))
    }

    /// Asks for another budget; returns the request as the processes will see it.
    ///
    /// One caller at a time: of two at once, either may be the last.
    pub fn ask_budget(&self, memory: Bytes) -> BudgetRequest {
        let number = next(self.budget().number);
        self.cells[CELL_BUDGET].store(cell(number, memory.pages()), Release);
        self.budget()
    }

    /// The latest request.
    pub fn budget(&self) -> BudgetRequest {
        let (number, pages) = parts(self.cells[CELL_BUDGET].load(Relaxed));
        BudgetRequest { number, memory: Bytes::from_pages(pages) }
    }

    /// Says that the list of swap devices of that number is in its file
    /// ([`crate::device::list::JobSwaps`]).
    pub fn set_swaps(&self, number: u32) {
        self.cells[CELL_SWAPS].store(number.into(), Release);
    }

    /// Whether the caller is the first of the job's processes. To be asked once by each.
    pub(crate) fn is_first(&self) -> bool {
        self.cells[CELL_STARTED].swap(1, Relaxed) == 0
    }

    /// Number of the list of swap devices.
    pub fn swaps(&self) -> u32 {
        self.cells[CELL_SWAPS].load(Acquire) as u32
    }

    /// A table of one process's own.
    pub(crate) fn anonymous() -> Result<JobTable, Errno> {
        Ok(JobTable { cells: SharedCells::anonymous(CELLS)? })
    }

    /// Asks for pages to be reclaimed, by all processes together; takes the place of a request that
    /// is under way. One caller at a time.
    pub fn ask_reclaim(&self, memory: Bytes) -> ReclaimRequest {
        let number = next(self.reclaim().number);
        // Whoever sees the request must find its other cells.
        self.cells[CELL_TAKEN].store(cell(number, 0), Relaxed);
        self.cells[CELL_RECLAIMED].store(cell(number, 0), Relaxed);
        self.cells[CELL_RECLAIM].store(cell(number, memory.pages()), Release);
        self.reclaim()
    }

    /// The latest request to reclaim pages.
    pub fn reclaim(&self) -> ReclaimRequest {
        let (number, pages) = parts(self.cells[CELL_RECLAIM].load(Acquire));
        ReclaimRequest { number, memory: Bytes::from_pages(pages) }
    }

    /// What has been reclaimed for a request; nothing if another has taken its place.
    pub fn reclaimed(&self, number: u32) -> Option<Bytes> {
        let (of, pages) = parts(self.cells[CELL_RECLAIMED].load(Acquire));
        (of == number).then_some(Bytes::from_pages(pages))
    }

    /// Takes up to `most` pages of a request on, as far as others have left some; how many.
    pub(crate) fn take_reclaim(&self, number: u32, most: u64) -> u64 {
        let wanted = self.reclaim();
        if wanted.number != number {
            return 0;
        }
        let takes = |taken: u64| wanted.memory.pages().saturating_sub(taken).min(most);
        let old = self.cells[CELL_TAKEN].fetch_update(Relaxed, Relaxed, |old| {
            let (of, taken) = parts(old);
            (of == number).then(|| cell(of, taken + takes(taken)))
        });
        old.map_or(0, |old| takes(parts(old).1))
    }

    /// Takes nothing for granted that was taken on and not reclaimed yet: whoever took it has
    /// ended.
    pub(crate) fn forget_taken(&self, number: u32) {
        let reclaimed = self.reclaimed(number).unwrap_or_default().pages();
        let _ = self.cells[CELL_TAKEN].fetch_update(Relaxed, Relaxed, |old| {
            let (of, taken) = parts(old);
            (of == number).then(|| cell(of, taken.min(reclaimed)))
        });
    }

    /// Says that of `taken` pages so many, or more, were reclaimed: what is missing is left to
    /// others.
    pub(crate) fn settle_reclaim(&self, number: u32, taken: u64, reclaimed: u64) {
        let change = |at: usize, less: u64, more: u64| {
            let _ = self.cells[at].fetch_update(Relaxed, Relaxed, |old| {
                let (of, pages) = parts(old);
                (of == number).then(|| cell(of, (pages + more).saturating_sub(less)))
            });
        };
        change(CELL_RECLAIMED, 0, reclaimed);
        change(CELL_TAKEN, taken, reclaimed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_reach_whoever_maps_the_file() {
        let path = std::env::temp_dir().join(format!("overspill-job-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let run_dir = Directory::open(&path).unwrap();
        assert!(JobTable::open(&run_dir).is_none());
        let file = run_dir.make_file(FILE_NAME, 0o600).unwrap();
        assert!(JobTable::open(&run_dir).is_none(), "an empty file");
        let ours = JobTable::create(file.as_fd()).unwrap();
        let theirs = JobTable::open(&run_dir).unwrap();
        assert_eq!(theirs.budget().number, 0);
        let asked = ours.ask_budget(Bytes((96 << 20) + 5));
        assert_eq!((asked.number, asked.memory), (1, Bytes(96 << 20)));
        assert_eq!(theirs.budget(), asked);
        assert_ne!(
            ours.ask_budget(asked.memory).number,
            asked.number,
            "the same budget again is another request"
        );
        assert_eq!(ours.ask_budget(Bytes(u64::MAX)).memory, Bytes::from_pages((1 << 40) - 1));
        std::fs::write(path.join(FILE_NAME), vec![0; 8 * CELLS]).unwrap();
        assert!(JobTable::open(&run_dir).is_none(), "something else");
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_tenth_is_tolerated_and_what_a_few_processes_have_in_any_case() {
        assert_eq!([1 << 30, 8 << 20].map(|budget| tolerance(Bytes(budget)).0 >> 20), [102, 8]);
    }

    #[test]
    fn numbers_go_on_from_one_after_the_last() {
        let table = JobTable::anonymous().unwrap();
        for at in [CELL_BUDGET, CELL_RECLAIM] {
            table.cells[at].store(cell(NUMBER_MAX, 5), Relaxed);
        }
        assert_eq!(table.ask_budget(Bytes(4 << 20)).number, 1);
        assert_eq!(
            table.ask_reclaim(Bytes(4 << 20)),
            ReclaimRequest { number: 1, memory: Bytes(4 << 20) }
        );
    }

    #[test]
    fn what_comes_late_does_not_count_for_the_next_request() {
        let table = JobTable::anonymous().unwrap();
        let first = table.ask_reclaim(Bytes::from_pages(100)).number;
        assert_eq!(table.take_reclaim(first, 60), 60);
        let second = table.ask_reclaim(Bytes::from_pages(50)).number;
        table.settle_reclaim(first, 60, 60);
        assert_eq!((table.take_reclaim(first, 10), table.reclaimed(first)), (0, None));
        assert_eq!((table.take_reclaim(second, 60), table.reclaimed(second)), (50, Some(Bytes(0))));
        table.settle_reclaim(second, 50, 52);
        assert_eq!(
            (table.take_reclaim(second, 60), table.reclaimed(second)),
            (0, Some(Bytes::from_pages(52)))
        );
    }

    #[test]
    fn what_processes_without_an_engine_have_is_in_the_account() {
        let table = JobTable::anonymous().unwrap();
        assert_eq!(table.hold(0, 0), 0);
        let first = table.hold(0, 100);
        let second = table.hold(0, 20);
        assert_eq!(table.hold(first, 150), first);
        assert_eq!(table.held(), (2, Bytes::from_pages(170)));
        assert_eq!(table.account().leased(), 170);
        assert_eq!(table.hold(first, 0), 0);
        assert_eq!((table.held(), table.account().leased()), ((1, Bytes::from_pages(20)), 20));
        assert_eq!(table.account().member(second).unwrap().process().0, std::process::id());
    }

    #[test]
    fn what_processes_share_counts_once() {
        let table = JobTable::anonymous().unwrap();
        let [parent, child] = [0; 2].map(|_| table.account().enter().unwrap());
        parent.set(30);
        parent.share_with(child, 5, 30);
        assert_eq!((table.saved(), table.account().leased()), (Bytes::from_pages(30), 35));
    }

    #[test]
    fn what_one_process_says_of_its_writes_all_know() {
        let table = JobTable::anonymous().unwrap();
        let account = table.account();
        let members = [account.enter().unwrap(), account.enter().unwrap()];
        members.iter().for_each(|member| member.set(5));
        assert!(!account.has_remote_writes());
        table.note_remote_writes();
        members.iter().for_each(|member| member.leave());
        assert!(account.has_remote_writes() && account.leased() == 0);
    }

    /// Which process takes how many pages at most, and how many more it gives.
    fn turn() -> impl Strategy<Value = (prop::sample::Index, u64, u64)> {
        (any::<prop::sample::Index>(), 1..64u64, 0..5u64)
    }

    proptest! {
        /// Processes that take, give some of it and take again: together they never give more than
        /// was wanted, but for what one batch has too much, and all of it if they have it.
        #[test]
        fn all_that_can_be_had_is_given_and_hardly_more(
            wanted in 0..500u64,
            has in prop::collection::vec(0..300u64, 1..5),
            turns in prop::collection::vec(turn(), 0..300),
        ) {
            let table = JobTable::anonymous().unwrap();
            let number = table.ask_reclaim(Bytes::from_pages(wanted)).number;
            let (all, processes) = (has.iter().sum::<u64>(), has.len());
            let mut has = has;
            let mut given = 0;
            let mut turn = |who: usize, most: u64, over: u64| {
                let taken = table.take_reclaim(number, most);
                assert!(taken <= most && (taken == 0 || given + taken <= wanted));
                let gives = if taken == 0 { 0 } else { (taken + over).min(has[who]) };
                has[who] -= gives;
                given += gives;
                table.settle_reclaim(number, taken, gives);
                assert_eq!(table.reclaimed(number).unwrap().pages(), given);
                assert!(given <= wanted + 4);
            };
            turns.into_iter().for_each(|(who, most, over)| turn(who.index(processes), most, over));
            (0..processes).for_each(|who| turn(who, 1000, 0));
            prop_assert!(given >= wanted.min(all));
        }
    }

    #[test]
    fn processes_at_once_give_what_is_wanted() {
        let table = JobTable::anonymous().unwrap();
        let number = table.ask_reclaim(Bytes::from_pages(10_000)).number;
        let took: Vec<u64> = std::thread::scope(|scope| {
            let process = |short: u64| {
                move || {
                    let mut took = 0;
                    while table.reclaimed(number).unwrap() < Bytes::from_pages(10_000) {
                        let taken = table.take_reclaim(number, 7);
                        // Some of it cannot be had, and is left to others.
                        let gives = taken.saturating_sub(short);
                        table.settle_reclaim(number, taken, gives);
                        took += gives;
                    }
                    took
                }
            };
            let threads = [0, 1, 6].map(|short| scope.spawn(process(short)));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(took.iter().sum::<u64>(), 10_000);
    }
}
