//! Every decision of the line, on a clock that the test turns.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn ticket(turn: Turn) -> Ticket {
    match turn {
        Turn::Wait(ticket) => ticket,
        other => panic!("{other:?} is not a place in the line"),
    }
}

#[test]
fn who_looks_at_every_wake_needs_some_frames() {
    let enough =
        |pages, waited| is_enough(Recheck::Wake, Free { pages, min: 100, high: 400 }, waited);
    assert!(enough(132, Duration::ZERO) && enough(132, ms(5000)));
    assert!(!enough(131, Duration::ZERO) && !enough(0, ms(5000)));
}

#[test]
fn who_looks_after_a_second_needs_four_times_the_high_watermark() {
    let enough =
        |pages, waited| is_enough(Recheck::Timed, Free { pages, min: 100, high: 400 }, waited);
    assert!(enough(1601, ms(1001)));
    assert!(!enough(1600, ms(1001)) && !enough(1601, ms(1000)) && !enough(u64::MAX, ms(999)));
}

#[test]
fn there_are_so_many_turns_and_then_a_line() {
    let mut line = Line::new(2, 3);
    assert_eq!((line.enter(ms(0)), line.enter(ms(0))), (Turn::Mine(0), Turn::Mine(1)));
    let tickets: Vec<_> = (1..4).map(|at| ticket(line.enter(ms(at)))).collect();
    assert_eq!(line.enter(ms(4)), Turn::Full);
    assert_eq!(line.active(), 2);
    // The turn goes to the first, and to nobody else.
    assert_eq!(line.leave(1, ms(5)), tickets[0].place);
    assert_eq!(line.look(tickets[1], ms(6), false), (Turn::Wait(tickets[1]), NONE));
    assert_eq!(line.look(tickets[0], ms(6), false), (Turn::Mine(1), NONE));
    assert_eq!(line.active(), 2);
    // Turns come back in any order; nobody who comes overtakes those who wait.
    assert_eq!(line.leave(0, ms(7)), tickets[1].place);
    let late = ticket(line.enter(ms(8)));
    assert_eq!(line.leave(1, ms(9)), tickets[2].place);
    for (ticket, turn) in [(tickets[1], 0), (tickets[2], 1)] {
        assert_eq!(line.look(ticket, ms(10), false), (Turn::Mine(turn), NONE));
    }
    assert_eq!(line.leave(0, ms(11)), late.place);
    assert_eq!(line.look(late, ms(12), false), (Turn::Mine(0), NONE));
    assert_eq!((line.leave(0, ms(13)), line.leave(1, ms(13))), (NONE, NONE));
    assert_eq!((line.active(), line.waiting), (0, 0));
}

#[test]
fn who_finds_frames_goes_without_a_turn_and_passes_it_on() {
    let mut line = Line::new(1, 4);
    assert_eq!(line.enter(ms(0)), Turn::Mine(0));
    let tickets: Vec<_> = (0..4).map(|at| ticket(line.enter(ms(at)))).collect();
    // From the middle of the line.
    assert_eq!(line.look(tickets[1], ms(5), true), (Turn::Enough, NONE));
    assert_eq!(line.leave(0, ms(6)), tickets[0].place);
    // One who was called calls the next.
    assert_eq!(line.look(tickets[0], ms(7), true), (Turn::Enough, tickets[2].place));
    assert_eq!(line.look(tickets[3], ms(8), true), (Turn::Enough, NONE));
    assert_eq!(line.look(tickets[2], ms(9), true), (Turn::Enough, NONE));
    assert_eq!((line.active(), line.waiting), (0, 0));
    assert_eq!(line.enter(ms(10)), Turn::Mine(0));
}

#[test]
fn a_turn_that_is_not_taken_up_passes_on() {
    let mut line = Line::new(1, 4);
    line.enter(ms(0));
    let [gone, next, last] = [1, 2, 3].map(|at| ticket(line.enter(ms(at))));
    line.leave(0, ms(10));
    assert_eq!(
        line.look(last, ms(1010), false),
        (Turn::Wait(last), NONE),
        "it has been a second, and no more"
    );
    assert_eq!(line.look(last, ms(1011), false), (Turn::Wait(last), next.place));
    assert_eq!(line.look(next, ms(1012), false), (Turn::Mine(0), NONE));
    // If it comes after all, it waits anew: or goes, if there are frames.
    let again = line.look(gone, ms(1013), false).0;
    assert_ne!(ticket(again).number, gone.number);
    assert_eq!(line.look(gone, ms(1014), true).0, Turn::Enough);
    assert_eq!(line.waiting, 2);
}

#[test]
fn a_turn_of_the_last_one_there_passes_to_who_comes_next() {
    let mut line = Line::new(1, 4);
    line.enter(ms(0));
    let _gone = ticket(line.enter(ms(1)));
    line.leave(0, ms(2));
    let next = ticket(line.enter(ms(500)));
    assert_eq!(line.look(next, ms(1003), false), (Turn::Wait(next), next.place));
    assert_eq!(line.look(next, ms(1004), false), (Turn::Mine(0), NONE));
}

#[test]
fn the_line_of_a_child_is_empty() {
    let throttle = Throttle::new(2, Recheck::Wake);
    let turns: Vec<_> = (0..5).map(|_| throttle.enter().0).collect();
    throttle.reset_in_child();
    let none = Free { pages: 0, min: 1, high: 1 };
    // A ticket of the parent's is of no use here.
    let (turn, _) = throttle.look(ticket(turns[2]), none);
    assert_eq!((turn, throttle.enter()), (Turn::Mine(0), (Turn::Mine(1), 2)));
}

/// What a thread is at in the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Outside,
    Reclaiming(usize),
    Waiting(Ticket),
    /// It ended while it waited.
    Gone,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Step { thread: usize, enough: bool },
    End { thread: usize },
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..8usize, any::<bool>()).prop_map(|(thread, enough)| Op::Step { thread, enough }),
        1 => (0..8usize).prop_map(|thread| Op::End { thread }),
        3 => (1..700u64).prop_map(Op::Pass),
    ]
}

/// The line beside a queue: turns are never more than there are, go to who has waited longest, and
/// are not lost.
struct Queue {
    line: Line,
    threads: [At; 8],
    /// Who waits or has a turn, in the order of coming.
    order: VecDeque<usize>,
    now: u64,
}

impl Queue {
    fn new(turns: usize) -> Queue {
        let order = VecDeque::new();
        Queue { line: Line::new(turns, 8), threads: [At::Outside; 8], order, now: 0 }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Pass(time) => self.now += time,
            // A thread that has a turn gives it back before it can end.
            Op::End { thread } => {
                if matches!(self.threads[thread], At::Waiting(_)) {
                    self.threads[thread] = At::Gone;
                }
            }
            Op::Step { thread, enough } => match self.threads[thread] {
                At::Outside => {
                    self.order.push_back(thread);
                    let turn = self.line.enter(ms(self.now));
                    self.answer(thread, turn);
                }
                At::Waiting(ticket) => {
                    let turn = self.line.look(ticket, ms(self.now), enough).0;
                    self.answer(thread, turn);
                }
                At::Reclaiming(turn) => {
                    self.line.leave(turn, ms(self.now));
                    self.threads[thread] = At::Outside;
                }
                At::Gone => {}
            },
        }
    }

    /// What the line says to a thread.
    fn answer(&mut self, thread: usize, turn: Turn) {
        match turn {
            Turn::Mine(turn) => {
                let is_free = self.threads.iter().all(|at| *at != At::Reclaiming(turn));
                assert!(is_free, "turn {turn} twice");
                self.check_overtakes_nobody(thread);
                self.threads[thread] = At::Reclaiming(turn);
            }
            Turn::Wait(ticket) => {
                // To the end of the line, if it has lost its turn.
                if ![At::Waiting(ticket), At::Outside].contains(&self.threads[thread]) {
                    self.order.retain(|other| *other != thread);
                    self.order.push_back(thread);
                }
                self.threads[thread] = At::Waiting(ticket);
                return;
            }
            Turn::Enough | Turn::Full => self.threads[thread] = At::Outside,
        }
        self.order.retain(|other| *other != thread);
    }

    /// Before a thread that gets a turn nobody waits who has not been called.
    fn check_overtakes_nobody(&self, thread: usize) {
        for other in self.order.iter().take_while(|other| **other != thread) {
            if let At::Waiting(ticket) = self.threads[*other] {
                let waiter = self.line.waiters[ticket.place as usize];
                assert!(
                    waiter.number != ticket.number || waiter.state != WaiterState::Waiting,
                    "{thread} overtook {other}"
                );
            }
        }
    }

    /// Everybody goes home; who is gone holds up for so long and no longer.
    fn finish(mut self) {
        for _ in 0..8 * 4 {
            self.now += 1001;
            let now = ms(self.now);
            for at in &mut self.threads {
                *at = match *at {
                    At::Reclaiming(turn) => {
                        self.line.leave(turn, now);
                        At::Outside
                    }
                    At::Waiting(ticket) => match self.line.look(ticket, now, false).0 {
                        Turn::Mine(turn) => At::Reclaiming(turn),
                        Turn::Wait(ticket) => At::Waiting(ticket),
                        _ => At::Outside,
                    },
                    other => other,
                };
            }
        }
        let is_home = |at: &At| matches!(at, At::Outside | At::Gone);
        assert!(self.threads.iter().all(is_home), "{:?} {:?}", self.threads, self.line);
    }
}

proptest! {
    #[test]
    fn any_sequence_keeps_order_and_loses_no_turn(
        ops in prop::collection::vec(op(), 1..300),
        turns in 1..4usize,
    ) {
        let mut queue = Queue::new(turns);
        ops.into_iter().for_each(|op| queue.step(op));
        let is_reclaiming = |at: &&At| matches!(at, At::Reclaiming(_));
        let reclaiming = queue.threads.iter().filter(is_reclaiming).count();
        prop_assert!(reclaiming <= queue.line.active() && queue.line.active() <= turns);
        queue.finish();
    }
}
