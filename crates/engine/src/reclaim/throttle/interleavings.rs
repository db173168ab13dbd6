//! Threads that reclaim, wait for their turn, and go, in interleavings that a checker explores: the
//! throttle's own code over the checker's locks and bells.
//!
//! A bell here is waited for without a time limit: a wake-up that is lost is a deadlock, which the
//! checker finds.

use super::*;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

impl LineLock for Mutex<Line> {
    fn new(line: Line) -> Self {
        Mutex::new(line)
    }

    fn with<R>(&self, change: impl FnOnce(&mut Line) -> R) -> R {
        change(&mut self.lock().unwrap())
    }
}

#[derive(Default)]
struct TestBell {
    rung: Mutex<u32>,
    wake: Condvar,
}

impl Bell for TestBell {
    fn rung(&self) -> u32 {
        *self.rung.lock().unwrap()
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() += 1;
        self.wake.notify_all();
    }

    fn wait(&self, rung: u32, _: Duration) {
        let mut now = self.rung.lock().unwrap();
        while *now == rung {
            now = self.wake.wait(now).unwrap();
        }
    }
}

type TestThrottle = Throttle<Mutex<Line>, TestBell>;

const THREADS: usize = 5;
const TURNS: usize = 2;

/// Free frames, which one reclaim makes more of and each thread takes one of.
type Frames = Mutex<u64>;

fn free(frames: &Frames) -> Free {
    let pages = *frames.lock().unwrap();
    // One frame is as much as a reclaim frees on the machine.
    Free { pages: pages * SPARE, min: 0, high: 4 * SPARE }
}

/// A thread that needs a frame, until it has one.
fn fault(throttle: &TestThrottle, frames: &Frames, reclaiming: &AtomicUsize) {
    let mut waits: Option<Ticket> = None;
    loop {
        let turn = match waits.take() {
            Some(ticket) => throttle.look(ticket, free(frames)).0,
            None => {
                {
                    let mut frames = frames.lock().unwrap();
                    if *frames > 0 {
                        *frames -= 1;
                        return;
                    }
                }
                throttle.enter().0
            }
        };
        match turn {
            Turn::Mine(turn) => {
                assert!(
                    turn < TURNS && reclaiming.fetch_add(1, SeqCst) < TURNS,
                    "more reclaim than there are turns"
                );
                shuttle::thread::yield_now();
                // Others than faults take frames too.
                *frames.lock().unwrap() += thread_rng().gen_range(0..4);
                reclaiming.fetch_sub(1, SeqCst);
                throttle.leave(turn);
            }
            Turn::Wait(ticket) => {
                throttle.wait(&ticket);
                waits = Some(ticket);
            }
            Turn::Enough => {}
            Turn::Full => shuttle::thread::yield_now(),
        }
    }
}

fn scenario(places: usize, recheck: Recheck) {
    let throttle: Arc<TestThrottle> = Arc::new(Throttle::with_places(TURNS, places, recheck));
    let (frames, reclaiming) = (Arc::new(Frames::new(0)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (throttle, frames, reclaiming) =
                (throttle.clone(), frames.clone(), reclaiming.clone());
            shuttle::thread::spawn(move || {
                (0..2).for_each(|_| fault(&throttle, &frames, &reclaiming))
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    throttle
        .line
        .with(|line| assert_eq!((line.active(), line.waiting), (0, 0), "everybody is gone"));
}

fn explore(scheduler: impl Scheduler + 'static, scenario: fn()) {
    shuttle::Runner::new(scheduler, shuttle::Config::default()).run(scenario);
}

#[test]
fn no_wake_up_is_lost_and_no_turn() {
    let scenario = || scenario(THREADS, Recheck::Wake);
    explore(RandomScheduler::new(2_000), scenario);
    explore(PctScheduler::new(3, 2_000), scenario);
}

#[test]
fn nor_where_the_line_is_too_short_or_nobody_looks_for_frames() {
    explore(RandomScheduler::new(1_000), || scenario(2, Recheck::Wake));
    explore(RandomScheduler::new(1_000), || scenario(THREADS, Recheck::Timed));
}

/// A thread that waits is overtaken by those before it in the line and by nobody else, however they
/// are scheduled.
#[test]
fn who_came_first_has_the_first_turn() {
    explore(RandomScheduler::new(2_000), || {
        let throttle: Arc<TestThrottle> =
            Arc::new(Throttle::with_places(1, THREADS, Recheck::Wake));
        let Turn::Mine(turn) = throttle.enter().0 else { panic!("nobody else is there") };
        let order = Arc::new(Mutex::new(Vec::new()));
        let tickets: Vec<_> = (0..THREADS).map(|_| throttle.enter().0).collect();
        let threads: Vec<_> = (tickets.into_iter().enumerate())
            .map(|(at, mut turn)| {
                let (throttle, order) = (throttle.clone(), order.clone());
                shuttle::thread::spawn(move || {
                    while let Turn::Wait(ticket) = turn {
                        throttle.wait(&ticket);
                        turn = throttle.look(ticket, Free { pages: 0, min: 0, high: 0 }).0;
                    }
                    let Turn::Mine(turn) = turn else { panic!("{turn:?}") };
                    order.lock().unwrap().push(at);
                    throttle.leave(turn);
                })
            })
            .collect();
        throttle.leave(turn);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*order.lock().unwrap(), (0..THREADS).collect::<Vec<_>>());
    });
}
