//! The account of a job: how many pages its processes may have together, and who has how many.
//!
//! One table in memory that all processes of the job map. Each has an entry, its [`Member`], which
//! says how many pages it *leases*: what it may have. No sum is kept. Who wants more announces that
//! in its own entry first and adds up all entries then; what does not fit it takes back. So the
//! leases that were granted never exceed the budget, and a process that is killed at any
//! instruction leaves nothing behind but its own entry. The kernel marks that when the process ends
//! ([`EntryOwner`]). From then on it counts no more, and whoever looks next clears it: in a build a
//! hundred processes may end between two looks.
//!
//! What processes share since a fork is leased by each of them, and counts once: see [`family`].
//!
//! A lease can be *forced*: each process has what it needs to run at all, whatever the others have.
//! Then the sum is above the budget for a moment, until others have given as much back.
//!
//! What else an entry says is told to the others, who decide by it what to give
//! ([`crate::control`]). Such figures may be a moment old.
//!
//! Locks: none. Only its process changes an entry: one thread at a time.

mod family;

use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::point;
use overspill_os::Errno;
use overspill_os::table::SharedCells;
use overspill_os::token::EntryOwner;
use std::fmt::{self, Write};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Processes at most. One for which there is no entry has what it needs to run at all.
const PLACES: usize = 1 << 14;
/// Cells of an entry: three cache lines.
const ENTRY: usize = 24;
const LEASE: usize = EntryOwner::CELLS;
const FAMILY: usize = LEASE + 1;
const SHARED: usize = FAMILY + 1;
/// What the family that has the number of this entry saves, whoever has the entry by now.
const SAVED: usize = SHARED + 1;
const USED: usize = SAVED + 1;
const RATE: usize = USED + 1;
const WANT: usize = RATE + 1;
const MOOD: usize = WANT + 1;
const UNMANAGED: usize = MOOD + 1;
const KEEPS: usize = UNMANAGED + 1;
const SIZE: usize = KEEPS + 1;
const ADJUSTED: usize = SIZE + 1;
const PROCESS: usize = ADJUSTED + 1;
const NAME: usize = PROCESS + 1;
const DOOMED: usize = NAME + 2;
const STRAIN: usize = DOOMED + 1;
/// The first entry is nobody's, and holds the budget, the highest entry that was ever used, who is
/// to end for want of room, whether the processes write into each other's memory, the most that was
/// in use and that was not managed, and who has the swap token.
const BUDGET: usize = LEASE;
const HIGH: usize = BUDGET + 1;
const VICTIM: usize = HIGH + 1;
const PEAK: usize = VICTIM + 1;
const WRITING: usize = PEAK + 1;
const UNMANAGED_PEAK: usize = WRITING + 1;
const TOKEN: usize = UNMANAGED_PEAK + 1;
/// Most pages that a cell counts: as many as addresses reach. Other processes write the table, and
/// whatever they wrote, sums of all entries stay within a word, in bytes too.
const PAGES_MAX: u64 = 1 << 35;
/// Of that cell, the bits of the entry; the rest is when it was chosen, in milliseconds.
const VICTIM_BITS: u32 = PLACES.trailing_zeros();
/// For how long the token is given at most, in milliseconds.
const TOKEN_MOST_MS: u64 = 1000;

/// The account.
#[derive(Clone, Copy)]
pub struct Account {
    cells: &'static [AtomicU64],
}

/// How a process is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Mood {
    /// It works.
    #[default]
    Busy,
    /// It has not had a processor for a while.
    AtRest,
    /// It has tried to give pages back, and nothing takes them.
    Stuck,
    /// It has no engine, and so nothing that it could give.
    Dormant,
}

/// What a process tells the others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Told {
    /// Pages in use that are managed, and those that are not.
    pub used: u64,
    pub unmanaged: u64,
    /// Pages of its lease that it keeps, whatever others need.
    pub keeps: u64,
    /// How much of the time its threads lately had faults that more memory would spare, in parts of
    /// 10,000 of each one's.
    pub rate: u64,
    /// Which part of what it lately did was to wait for such faults, in parts of 10,000.
    pub strain: u64,
    /// Pages that it could not get.
    pub want: u64,
    /// How it is.
    pub mood: Mood,
    /// Pages that it has, in memory or not: what ends with it.
    pub size: u64,
    /// Its oom_score_adj (proc(5)): by how many thousandths of the budget it counts for more.
    pub adjusted: i64,
}

/// The entry of a process.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    account: Account,
    at: usize,
}

impl Account {
    /// Cells of the table.
    pub const CELLS: usize = PLACES * ENTRY;

    /// The account in cells that all processes of a job map; they were zero at first.
    ///
    /// # Panics
    /// When there are not [`Account::CELLS`].
    pub fn over(cells: &'static [AtomicU64]) -> Account {
        Account { cells: &cells[..Account::CELLS] }
    }

    /// The account of one process and the children that it forks.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn without_job(budget: u64) -> Result<Account, Errno> {
        let account = Account::over(SharedCells::inherited(Account::CELLS)?.all());
        account.set_budget(budget);
        Ok(account)
    }

    /// Pages that all may have together.
    pub fn budget(&self) -> u64 {
        self.cells[BUDGET].load(Relaxed).min(PAGES_MAX)
    }

    /// Changes it.
    pub fn set_budget(&self, pages: u64) {
        self.cells[BUDGET].store(pages, Relaxed);
    }

    /// An entry for this process, or for a child that it is about to make; `None` when there is no
    /// more.
    pub fn enter(&self) -> Option<Member> {
        let mut entries = (1..PLACES).map(|at| Member { account: *self, at });
        let member = entries.find(|member| member.mark().take())?;
        // Who was told to end is another process, and who shared something.
        [PROCESS, DOOMED, FAMILY, SHARED]
            .iter()
            .for_each(|cell| member.cell(*cell).store(0, Relaxed));
        self.cells[HIGH].fetch_max(member.at as u64, SeqCst);
        member.tell(Told::default());
        Some(member)
    }

    /// That of an entry; `None` for 0.
    pub fn member(&self, entry: usize) -> Option<Member> {
        (entry != 0).then_some(Member { account: *self, at: entry })
    }

    fn entries(&self) -> impl Iterator<Item = Member> + '_ {
        let high = self.cells[HIGH].load(SeqCst).min(PLACES as u64 - 1);
        (1..=high as usize).filter_map(|at| self.member(at))
    }

    /// Everybody who leases something, and is not gone.
    pub fn members(&self) -> impl Iterator<Item = Member> + '_ {
        self.entries().filter(|member| !member.mark().is_free() && !member.mark().is_gone())
    }

    /// Pages that are leased, by all that have not died; what is shared counts once.
    pub fn leased(&self) -> u64 {
        let leases = self.entries().map(|member| match member.mark().has_died() {
            true => member.shared(),
            false => member.lease(),
        });
        leases.sum::<u64>().saturating_sub(self.saved())
    }

    /// Notes that so many pages are in use by all together.
    pub fn note_used(&self, pages: u64) {
        self.cells[PEAK].fetch_max(pages, Relaxed);
    }

    /// The most that were, as far as it was noted.
    pub fn peak(&self) -> u64 {
        self.cells[PEAK].load(Relaxed).min(PAGES_MAX)
    }

    /// Notes that so many pages are not managed, of all together.
    pub fn note_unmanaged(&self, pages: u64) {
        self.cells[UNMANAGED_PEAK].fetch_max(pages, Relaxed);
    }

    /// The most that were not, as far as it was noted.
    pub fn unmanaged_peak(&self) -> u64 {
        self.cells[UNMANAGED_PEAK].load(Relaxed).min(PAGES_MAX)
    }

    /// A process of the job is about to write into the memory of one, for the first time: said
    /// before the kernel looks for the pages.
    pub fn note_remote_writes(&self) {
        point();
        self.cells[WRITING].store(1, SeqCst);
    }

    /// Forgets that one was.
    #[cfg(test)]
    pub fn forget_remote_writes(&self) {
        self.cells[WRITING].store(0, SeqCst);
    }

    /// Whether one ever was.
    pub fn has_remote_writes(&self) -> bool {
        point();
        self.cells[WRITING].load(SeqCst) != 0
    }

    /// Who is to end for want of room, and when that was said, in milliseconds of the same clock.
    pub fn victim(&self) -> Option<(Member, u64)> {
        let cell = self.cells[VICTIM].load(Acquire);
        let member = self.member((cell & (PLACES as u64 - 1)) as usize)?;
        Some((member, cell >> VICTIM_BITS))
    }

    /// Has `member` end after the one that was to before; whether nobody else has said who.
    pub fn set_victim(&self, before: Option<(Member, u64)>, member: Member, now_ms: u64) -> bool {
        let cell = |(member, ms): (Member, u64)| ms << VICTIM_BITS | member.at as u64;
        let (before, after) = (before.map_or(0, cell), cell((member, now_ms)));
        self.cells[VICTIM].compare_exchange(before, after, AcqRel, Relaxed).is_ok()
    }

    /// Who has the swap token, in milliseconds of the same clock.
    pub fn token(&self, now_ms: u64) -> Option<Member> {
        let cell = self.cells[TOKEN].load(Acquire);
        let left = (cell >> VICTIM_BITS).saturating_sub(now_ms);
        let member = self.member((cell & (PLACES as u64 - 1)) as usize);
        member.filter(|_| (1..=TOKEN_MOST_MS).contains(&left))
    }

    /// Gives `member` the swap token until then, unless another has it; whether it has it.
    pub fn take_token(&self, member: Member, now_ms: u64, until_ms: u64) -> bool {
        let before = self.cells[TOKEN].load(Acquire);
        if self.token(now_ms).is_some_and(|holder| holder.at != member.at) {
            return false;
        }
        let after = until_ms << VICTIM_BITS | member.at as u64;
        self.cells[TOKEN].compare_exchange(before, after, AcqRel, Relaxed).is_ok()
    }

    /// Leaves the swap token to others.
    pub fn give_token_back(&self, member: Member) {
        let cell = self.cells[TOKEN].load(Acquire);
        if cell & (PLACES as u64 - 1) == member.at as u64 {
            let _ = self.cells[TOKEN].compare_exchange(cell, 0, AcqRel, Relaxed);
        }
    }

    /// Clears the entries of processes that are gone; how many pages they leased.
    pub fn reap(&self) -> u64 {
        let gone = self.entries().filter(|member| member.mark().take_from_gone());
        gone.map(|member| {
            let lease = member.lease();
            member.leave();
            lease
        })
        .sum()
    }
}

impl Member {
    fn cell(&self, cell: usize) -> &'static AtomicU64 {
        &self.account.cells[self.at * ENTRY + cell]
    }

    /// Who holds it.
    pub fn mark(&self) -> EntryOwner {
        EntryOwner::of(&self.account.cells[self.at * ENTRY..])
    }

    /// Its number.
    pub fn entry(&self) -> usize {
        self.at
    }

    /// Pages that it may have.
    pub fn lease(&self) -> u64 {
        self.cell(LEASE).load(SeqCst).min(PAGES_MAX)
    }

    /// Leases up to `most` pages more, and none if there are not `least`, so that `reserve` pages
    /// of the budget are left to others; how many. Of two who ask at the same time both may get
    /// less than there is.
    pub fn take(&self, least: u64, most: u64, reserve: u64) -> u64 {
        let before = self.lease();
        // 1. Announced, so that whoever adds up after this counts it.
        let announced = if is_seeded(Bug::TakenUnannounced) { 0 } else { most };
        self.set(before + announced);
        point();
        // 2. What does not fit is taken back.
        let leased = self.account.leased() + (most - announced);
        let over = (leased + reserve).saturating_sub(self.account.budget());
        let taken = most.saturating_sub(over);
        let taken = if taken < least { 0 } else { taken };
        if taken != announced {
            self.set(before + taken);
        }
        taken
    }

    /// Leases so many pages, whatever others have: fewer than before, or what the process needs at
    /// least.
    pub fn set(&self, pages: u64) {
        point();
        self.cell(LEASE).store(pages, SeqCst);
    }

    /// What it has told.
    pub fn told(&self) -> Told {
        let get = |cell| self.cell(cell).load(Relaxed);
        let mood = match get(MOOD) {
            0 => Mood::Busy,
            1 => Mood::AtRest,
            2 => Mood::Stuck,
            _ => Mood::Dormant,
        };
        let pages = |cell| get(cell).min(PAGES_MAX);
        let [used, unmanaged, keeps] = [USED, UNMANAGED, KEEPS].map(pages);
        let [rate, strain, want] = [RATE, STRAIN, WANT].map(pages);
        let (size, adjusted) = (pages(SIZE), get(ADJUSTED) as i64);
        Told { used, unmanaged, keeps, rate, strain, want, mood, size, adjusted }
    }

    /// Tells the others.
    pub fn tell(&self, told: Told) {
        let set = |cell, value| self.cell(cell).store(value, Relaxed);
        set(USED, told.used);
        set(UNMANAGED, told.unmanaged);
        set(KEEPS, told.keeps);
        set(RATE, told.rate);
        set(STRAIN, told.strain);
        set(WANT, told.want);
        set(MOOD, told.mood as u64);
        set(SIZE, told.size);
        set(ADJUSTED, told.adjusted as u64);
    }

    /// Says whose it is: the number of the process, and its name.
    pub fn introduce(&self, process: u32, name: Name) {
        self.cell(PROCESS).store(process.into(), Relaxed);
        let words = name.0.into_iter().enumerate();
        words.for_each(|(at, word)| self.cell(NAME + at).store(word, Relaxed));
    }

    /// The number of the process, as it has it, and its name.
    pub fn process(&self) -> (u32, Name) {
        let words = [0, 1].map(|at| self.cell(NAME + at).load(Relaxed));
        (self.cell(PROCESS).load(Relaxed) as u32, Name(words))
    }

    /// Has a process end itself, if the entry is still its.
    pub fn doom(&self, process: u32) {
        self.cell(DOOMED).store(process.into(), Release);
    }

    /// Whether its process is to end.
    pub fn is_doomed(&self) -> bool {
        let doomed = self.cell(DOOMED).load(Acquire);
        doomed != 0 && doomed == self.cell(PROCESS).load(Relaxed)
    }

    /// Tells them that so many pages could not be had.
    pub fn want(&self, pages: u64) {
        self.cell(WANT).store(pages, Relaxed);
    }

    /// In the child for which its parent took the entry.
    pub fn adopt(&self) {
        self.mark().adopt();
    }

    /// Gives everything back.
    pub fn leave(&self) {
        self.unshare(self.shared());
        self.set(0);
        self.tell(Told::default());
        point();
        self.mark().give_back();
    }
}

/// The name of a process: up to 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name(pub [u64; 2]);

impl Name {
    /// Of these bytes, as far as there is room.
    pub fn of(bytes: &[u8]) -> Name {
        let mut all = [0; 16];
        all.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        Name([0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| all[at + byte]))))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0);
        bytes
            .map(|byte| if byte.is_ascii_graphic() { char::from(byte) } else { '?' })
            .try_for_each(|c| f.write_char(c))
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let high = self.cells[HIGH].load(Acquire);
        write!(f, "Account({} of {} pages, {high} entries)", self.leased(), self.budget())
    }
}

#[cfg(test)]
mod tests;
