//! Everything that meets at a page word, in interleavings that a checker explores.
//!
//! The words and their transitions are the engine's own ([`PageCell`]). Around them stands a model
//! of what the engine moves: page tables whose entries carry a version in place of content, a
//! device, and frames with the list of the swap cache. The steps of an actor are those of the
//! engine's function named with it, in the same order; who changes one changes the other.
//!
//! Checked at every access and at every change of place: the program reads what was written last; a
//! page is in exactly one place, which has that version; nothing is read after it was given up, or
//! given up twice; the engine never touches an absent page. A [`Bug`] is a wrong order of steps
//! that the model must find, which shows that it can.

use super::{PageCell, PageWord, State};
use crate::units::{FrameId, SlotId};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

type Word = shuttle::sync::atomic::AtomicU64;

const PAGES: usize = 2;
/// The frame that a page in the page tables owns: one without memory of its own, which plays no
/// part here.
const OWN: FrameId = FrameId(0);
/// What a copy holds that was made while the page changed.
const TORN: u64 = u64::MAX;

/// How faults are told apart: thread delivery says whether protection was the cause, a signal only
/// what was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Delivery {
    Thread,
    Signal,
}

/// Mistakes that one could make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// Eviction: the new place is published while the page is still mapped.
    PublishBeforeDrop,
    /// Eviction: a page taken back while it was stored is dropped all the same.
    DropWithoutCommit,
    /// Fault: the stored copy is given up before the page is installed.
    FreeBeforeInstall,
    /// Fault: a page is made writable without its lock, when a new eviction may have protected it
    /// again.
    UnprotectUnlocked,
    /// Range calls: pages are cleared without the extent's lock.
    ClearWithoutExtent,
}

/// An entry of the page tables, and what the program must find there.
#[derive(Default)]
struct Entry {
    present: bool,
    protected: bool,
    content: u64,
    truth: u64,
}

/// Slots of a device or frames: whose page is in each, and its version. The lowest free place is
/// the next to be taken, so that places are soon used again.
struct Places(Vec<Option<(usize, u64)>>);

impl Places {
    /// Room for all pages, or too little.
    fn some() -> Mutex<Places> {
        Mutex::new(Places(vec![None; thread_rng().gen_range(1..=PAGES)]))
    }

    fn put(&mut self, page: usize, content: u64) -> Option<u32> {
        let free = self.0.iter().position(Option::is_none)?;
        self.0[free] = Some((page, content));
        Some(free as u32)
    }

    fn get(&self, page: usize, place: u32) -> u64 {
        let (owner, content) = self.0[place as usize].expect("a place in use is read");
        assert_eq!(owner, page, "the page in place {place}");
        content
    }

    fn free(&mut self, place: u32) {
        self.0[place as usize].take().expect("a place in use is given up");
    }
}

struct Process {
    delivery: Delivery,
    bug: Option<Bug>,
    words: [Word; PAGES],
    entries: [Mutex<Entry>; PAGES],
    device: Mutex<Places>,
    frames: Mutex<Places>,
    /// The swap cache, oldest first.
    list: Mutex<VecDeque<(usize, u32)>>,
    extent: Mutex<()>,
    versions: std::sync::atomic::AtomicU64,
}

/// A page being evicted in place, and the slot and version of its copy.
type Pick = (usize, Option<(u32, u64)>);

impl Process {
    fn new(delivery: Delivery, bug: Option<Bug>) -> Process {
        Process {
            delivery,
            bug,
            words: Default::default(),
            entries: Default::default(),
            device: Places::some(),
            frames: Places::some(),
            list: Default::default(),
            extent: Default::default(),
            versions: Default::default(),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn cell(&self, page: usize) -> PageCell<'_, Word> {
        PageCell(&self.words[page])
    }

    fn entry(&self, page: usize) -> shuttle::sync::MutexGuard<'_, Entry> {
        self.entries[page].lock().unwrap()
    }

    /// The program reads a page, or writes a new version to it.
    fn access(&self, page: usize, write: bool) {
        loop {
            let by_protection = {
                let mut entry = self.entry(page);
                if entry.present && !(write && entry.protected) {
                    assert_eq!(entry.content, entry.truth, "the content of page {page}");
                    if write {
                        let version =
                            1 + self.versions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        (entry.content, entry.truth) = (version, version);
                    }
                    return;
                }
                entry.present
            };
            let wp = if self.delivery == Delivery::Thread { by_protection } else { write };
            // Nothing waits here: the event is set aside, or the signal handler begins again.
            while !self.serve(page, wp) {
                shuttle::thread::yield_now();
            }
            shuttle::thread::yield_now();
        }
    }

    /// `Fault::serve`. False: the page is somebody else's just now.
    fn serve(&self, page: usize, wp: bool) -> bool {
        let word = self.cell(page).load();
        if word.is_locked() {
            return false;
        }
        match word.state() {
            State::Resident(_) | State::Evicting(_) if wp && self.has(Bug::UnprotectUnlocked) => {
                if matches!(word.state(), State::Evicting(_))
                    && self.cell(page).try_update(PageWord::take_back).is_none()
                {
                    return false;
                }
                self.entry(page).protected = false;
                true
            }
            State::Resident(_) | State::Evicting(_) if wp => self.make_writable(page),
            State::Evicting(_) => true,
            State::Resident(_) => self.reinstall(page),
            state => self.load(page, state),
        }
    }

    fn try_lock_in(&self, page: usize, state: State) -> Option<PageWord> {
        let update =
            self.cell(page).try_update(|w| if w.state() == state { w.lock() } else { None });
        update.map(|(_, word)| word)
    }

    /// `Fault::make_writable`.
    fn make_writable(&self, page: usize) -> bool {
        let Some((_, word)) = self.cell(page).try_update(PageWord::lock_in_place) else {
            return false;
        };
        self.entry(page).protected = false;
        self.publish(page, word.with_state(State::Resident(OWN)));
        true
    }

    /// `Fault::reinstall`: an old event. In the model nobody drops pages behind the engine's back.
    fn reinstall(&self, page: usize) -> bool {
        let Some(word) = self.try_lock_in(page, State::Resident(OWN)) else { return false };
        assert!(self.entry(page).present, "page {page} is resident and absent");
        self.publish(page, word);
        true
    }

    /// `Fault::load`, `install_run`, `publish_run` and `free_spent`.
    fn load(&self, page: usize, state: State) -> bool {
        // 1. Lock.
        let Some(word) = self.try_lock_in(page, state) else { return false };
        // 2. Load and install.
        let mut spent = None;
        match state {
            State::Empty => self.install(page, 0),
            State::Stored(slot) => {
                if self.has(Bug::FreeBeforeInstall) {
                    self.forget(state);
                }
                let content = self.device.lock().unwrap().get(page, slot.offset() as u32);
                self.install(page, content);
            }
            State::Cached(frame) => {
                let content = self.frames.lock().unwrap().get(page, frame.0);
                self.install(page, content);
                self.unlist(frame.0);
                // Moved: the frame is a hole at once. Copied: it waits to be dropped with others.
                if thread_rng().gen_bool(0.5) {
                    self.frames.lock().unwrap().free(frame.0);
                } else {
                    spent = Some(frame.0);
                }
            }
            state => unreachable!("{state:?}"),
        }
        // 3. Publish, then give the old copy up.
        self.publish(
            page,
            word.with_state(State::Resident(OWN)).referenced(matches!(state, State::Cached(_))),
        );
        if !self.has(Bug::FreeBeforeInstall) {
            self.forget(state);
        }
        if let Some(frame) = spent {
            self.frames.lock().unwrap().free(frame);
        }
        true
    }

    /// UFFDIO_COPY into a page that is nowhere in the page tables.
    fn install(&self, page: usize, content: u64) {
        let mut entry = self.entry(page);
        assert!(!entry.present, "page {page} is in the page tables and somewhere else");
        assert_eq!(content, entry.truth, "the content that comes back to page {page}");
        (entry.present, entry.protected, entry.content) = (true, false, content);
    }

    /// `Swap::forget`.
    fn forget(&self, state: State) {
        if let State::Stored(slot) = state {
            self.device.lock().unwrap().free(slot.offset() as u32);
        }
    }

    fn unlist(&self, frame: u32) {
        let mut list = self.list.lock().unwrap();
        let at = list
            .iter()
            .position(|(_, listed)| *listed == frame)
            .expect("a frame of the swap cache");
        list.remove(at);
    }

    /// Gives the lock of a page back, with a word that must tell the truth.
    fn publish(&self, page: usize, word: PageWord) {
        if !self.has(Bug::PublishBeforeDrop) {
            self.check_place(page, word.state());
        }
        self.cell(page).unlock_as(word);
    }

    fn check_place(&self, page: usize, state: State) {
        let entry = self.entry(page);
        let resident = matches!(state, State::Resident(_) | State::Evicting(_));
        assert_eq!(
            entry.present, resident,
            "whether page {page} is in the page tables as {state:?}"
        );
        let content = match state {
            State::Stored(slot) => self.device.lock().unwrap().get(page, slot.offset() as u32),
            State::Cached(frame) => self.frames.lock().unwrap().get(page, frame.0),
            State::Empty => 0,
            _ => entry.content,
        };
        assert_eq!(content, entry.truth, "page {page} as {state:?}");
    }

    /// `Reclaim::scan_extent` with `evict_in_place`.
    fn evict_in_place(&self) {
        let Ok(_extent) = self.extent.try_lock() else { return };
        // 1. Isolate.
        let begins = |page: &usize| self.cell(*page).try_update(PageWord::begin_evict).is_some();
        let mut picks: Vec<Pick> = (0..PAGES).filter(begins).map(|page| (page, None)).collect();
        let (Some((first, _)), Some((last, _))) = (picks.first(), picks.last()) else { return };
        // 2. Protect the window.
        (*first..last + 1).for_each(|page| self.entry(page).protected = true);
        // 3. Store from where they are.
        for (page, stored) in &mut picks {
            if self.cell(*page).load().state() == State::Evicting(OWN) {
                let content = self.copy(*page);
                *stored =
                    self.device.lock().unwrap().put(*page, content).map(|slot| (slot, content));
            }
        }
        // 4. Commit.
        picks.retain(|(page, stored)| {
            let Some((slot, _)) = stored else {
                self.cell(*page).try_update(PageWord::take_back);
                return false;
            };
            let committed = self.cell(*page).try_update(PageWord::commit_evict).is_some();
            if !committed && self.has(Bug::DropWithoutCommit) {
                self.cell(*page).lock();
                return true;
            }
            if !committed {
                self.device.lock().unwrap().free(*slot);
            }
            committed
        });
        // 5. Drop.
        if self.has(Bug::PublishBeforeDrop) {
            self.publish_stored(&picks);
        }
        for (page, stored) in &picks {
            let mut entry = self.entry(*page);
            assert!(entry.present, "page {page} is dropped while it is absent");
            assert_eq!(
                stored.map(|(_, content)| content),
                Some(entry.content),
                "the stored copy of page {page}"
            );
            (entry.present, entry.protected) = (false, false);
        }
        // 6. Publish where they are now.
        if !self.has(Bug::PublishBeforeDrop) {
            self.publish_stored(&picks);
        }
    }

    fn publish_stored(&self, picks: &[Pick]) {
        for (page, stored) in picks {
            let (slot, _) = stored.expect("kept in step 4");
            self.publish(
                *page,
                self.cell(*page).load().with_state(State::Stored(SlotId::new(0, slot as u64))),
            );
        }
    }

    /// Reads a page in place; the program may write to it meanwhile if it has taken it back.
    fn copy(&self, page: usize) -> u64 {
        let [begin, end] = [(); 2].map(|()| {
            let entry = self.entry(page);
            assert!(entry.present, "the engine touches page {page}, which is absent");
            entry.content
        });
        if begin == end { begin } else { TORN }
    }

    /// `Reclaim::move_out` of one page.
    fn move_out(&self, page: usize) {
        let Ok(_extent) = self.extent.try_lock() else { return };
        let Some(word) = self.try_lock_in(page, State::Resident(OWN)) else { return };
        let frame = {
            let mut entry = self.entry(page);
            assert!(entry.present, "page {page} is moved while it is absent");
            let frame = self.frames.lock().unwrap().put(page, entry.content);
            if frame.is_some() {
                (entry.present, entry.protected) = (false, false);
            }
            frame
        };
        let Some(frame) = frame else { return self.publish(page, word) };
        self.list.lock().unwrap().push_back((page, frame));
        self.publish(page, word.with_state(State::Cached(FrameId(frame))));
    }

    /// `Reclaim::shrink_cache` for the oldest page.
    fn shrink_cache(&self) {
        // 1. Isolate.
        let Some((page, frame)) = self.list.lock().unwrap().front().copied() else { return };
        let Some(word) = self.try_lock_in(page, State::Cached(FrameId(frame))) else { return };
        self.unlist(frame);
        // 2. Store.
        let content = self.frames.lock().unwrap().get(page, frame);
        let slot = self.device.lock().unwrap().put(page, content);
        // 3. Publish, then free the frame.
        let Some(slot) = slot else {
            self.list.lock().unwrap().push_back((page, frame));
            return self.publish(page, word);
        };
        self.publish(page, word.with_state(State::Stored(SlotId::new(0, slot as u64))));
        self.frames.lock().unwrap().free(frame);
    }

    /// `Space::clear` of all pages: MADV_DONTNEED, munmap.
    fn clear(&self) {
        // 1. Keep reclaim and faults out.
        let _extent = (!self.has(Bug::ClearWithoutExtent)).then(|| self.extent.lock().unwrap());
        let mut used = false;
        for page in 0..PAGES {
            used |= self.cell(page).lock().state() != State::Empty;
        }
        // 2. Drop what is in the page tables. To the program this is the moment.
        for page in 0..PAGES {
            let mut entry = self.entry(page);
            assert!(used || !entry.present && entry.truth == 0, "page {page} is empty");
            (entry.present, entry.protected, entry.truth) = (false, false, 0);
        }
        // 3. Forget every stored copy.
        let mut frames = Vec::new();
        for page in 0..PAGES {
            let word = self.cell(page).load();
            match word.state() {
                State::Resident(_) | State::Evicting(_) => {}
                State::Cached(frame) => {
                    self.unlist(frame.0);
                    frames.push(frame.0);
                }
                state => self.forget(state),
            }
            self.publish(page, word.with_state(State::Empty).referenced(false));
        }
        frames.into_iter().for_each(|frame| self.frames.lock().unwrap().free(frame));
    }

    /// After the last thread: every word tells the truth, and nothing else is in use.
    fn check_at_rest(&self) {
        let (mut slots, mut frames) = (0, 0);
        for page in 0..PAGES {
            let word = self.cell(page).load();
            assert!(
                !word.is_locked() && word.state() != State::Evicting(OWN),
                "page {page} at the end: {word:?}"
            );
            self.check_place(page, word.state());
            slots += usize::from(matches!(word.state(), State::Stored(_)));
            frames += usize::from(matches!(word.state(), State::Cached(_)));
        }
        let in_use = |places: &Mutex<Places>| places.lock().unwrap().0.iter().flatten().count();
        assert_eq!(
            (in_use(&self.device), in_use(&self.frames)),
            (slots, frames),
            "slots and frames in use"
        );
        assert_eq!(self.list.lock().unwrap().len(), frames);
    }
}

/// Two threads of the program, two that reclaim, and one that clears the range, on two pages.
fn scenario(delivery: Delivery, bug: Option<Bug>) {
    let process = Arc::new(Process::new(delivery, bug));
    (0..PAGES).for_each(|page| process.access(page, true));
    // As an eviction leaves pages that lie between those it chose.
    process.entries.iter().for_each(|entry| entry.lock().unwrap().protected = true);
    let actors: [fn(&Process); 5] = [
        |p| {
            [(0, true), (1, true), (0, false), (0, true)]
                .into_iter()
                .for_each(|(page, write)| p.access(page, write))
        },
        |p| {
            [(1, true), (0, true), (1, false)]
                .into_iter()
                .for_each(|(page, write)| p.access(page, write))
        },
        |p| {
            p.evict_in_place();
            p.move_out(0);
            p.evict_in_place();
            p.shrink_cache();
        },
        |p| {
            p.move_out(1);
            p.shrink_cache();
            p.evict_in_place();
        },
        |p| p.clear(),
    ];
    let threads = actors.map(|actor| {
        let process = process.clone();
        shuttle::thread::spawn(move || actor(&process))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    process.check_at_rest();
    (0..PAGES).for_each(|page| process.access(page, false));
}

fn explore(scheduler: impl Scheduler + 'static, delivery: Delivery, bug: Option<Bug>) {
    shuttle::Runner::new(scheduler, shuttle::Config::default())
        .run(move || scenario(delivery, bug));
}

/// Schedules that each scheduler makes up; all of them take some seconds in a build with debug
/// assertions.
const SCHEDULES: usize = 4_000;
/// Changes of priority that an error may need, for the scheduler that looks for rare ones.
const DEPTHS: [usize; 4] = [2, 3, 4, 5];

#[test]
fn no_interleaving_loses_a_write_or_a_place() {
    for delivery in [Delivery::Thread, Delivery::Signal] {
        explore(RandomScheduler::new(SCHEDULES), delivery, None);
        DEPTHS
            .into_iter()
            .for_each(|depth| explore(PctScheduler::new(depth, SCHEDULES), delivery, None));
    }
}

#[test]
fn the_model_finds_every_seeded_bug() {
    const BUGS: [Bug; 5] = [
        Bug::PublishBeforeDrop,
        Bug::DropWithoutCommit,
        Bug::FreeBeforeInstall,
        Bug::UnprotectUnlocked,
        Bug::ClearWithoutExtent,
    ];
    for bug in BUGS {
        let scheduler = RandomScheduler::new_from_seed(1, SCHEDULES);
        let found = std::panic::catch_unwind(|| explore(scheduler, Delivery::Thread, Some(bug)));
        assert!(found.is_err(), "{bug:?} was not found");
    }
}
