use super::*;
use crate::account::Account;
use proptest::prelude::*;

const BUDGET: u64 = 32 << 10;

fn busy(lease: u64, rate: u64, want: u64) -> Side {
    Side {
        lease,
        told: Told { used: lease, keeps: FLOOR, rate, want, ..Told::default() },
        has_token: false,
    }
}

fn in_mood(mood: Mood, side: Side) -> Side {
    let keeps = if mood == Mood::AtRest { REST_PAGES } else { FLOOR };
    Side { told: Told { mood, keeps, ..side.told }, ..side }
}

fn gives_all(sides: &[Side]) -> Vec<u64> {
    sides.iter().map(|side| gives(*side, sides, BUDGET, 0)).collect()
}

#[test]
fn who_is_alone_gives_what_is_above_the_budget_and_no_more() {
    assert_eq!(gives_all(&[busy(BUDGET, 100, 0)]), [0]);
    assert_eq!(gives_all(&[busy(BUDGET, 100, 500)]), [0], "there is nobody who needs it less");
    assert_eq!(gives_all(&[busy(BUDGET + 700, 100, 0)]), [700]);
}

#[test]
fn what_is_above_the_budget_all_give_those_at_rest_first() {
    let [small, large] = [busy(FLOOR + 1000, 0, 0), busy(BUDGET - FLOOR, 9, 0)];
    let gives = gives_all(&[small, large]);
    assert!(gives.iter().sum::<u64>() >= 1000 && gives[1] > 20 * gives[0], "{gives:?}");
    let at_rest = in_mood(Mood::AtRest, small);
    assert_eq!(gives_all(&[at_rest, large]), [1000, 0]);
    // Who cannot give is not asked; a process that works keeps its floor.
    let sides = [in_mood(Mood::Stuck, busy(BUDGET, 0, 0)), busy(FLOOR, 0, 0), busy(5000, 0, 0)];
    assert_eq!(gives_all(&sides), [0, 0, 5000 - FLOOR]);
}

#[test]
fn those_at_rest_give_what_is_wanted_by_halves_down_to_128_kib() {
    let idle = in_mood(Mood::AtRest, busy(BUDGET / 2, 0, 0));
    assert_eq!(gives_all(&[idle, busy(BUDGET / 2, 50, 64)]), [64, 0]);
    let half = (BUDGET / 2 - REST_PAGES) / 2;
    assert_eq!(gives_all(&[idle, busy(BUDGET / 2, 50, BUDGET)]), [half, 0]);
    let small = in_mood(Mood::AtRest, busy(REST_PAGES + 1, 0, 0));
    assert_eq!(gives_all(&[small, busy(BUDGET - REST_PAGES - 1, 50, BUDGET)]), [1, 0]);
    let smallest = in_mood(Mood::AtRest, busy(REST_PAGES, 0, 0));
    assert_eq!(gives_all(&[smallest, busy(BUDGET - REST_PAGES, 50, BUDGET)]), [0, 0]);
    assert_eq!(gives_all(&[idle, busy(BUDGET / 2, 0, 0)]), [0, 0], "nobody wants any");
    // What is free is taken first.
    assert_eq!(gives_all(&[idle, busy(1000, 50, 2000)]), [0, 0]);
}

#[test]
fn who_needs_its_pages_less_gives_to_who_needs_them_more() {
    let sides = [busy(BUDGET / 2, 10, 0), busy(BUDGET / 2, 5000, 300)];
    assert_eq!(gives_all(&sides), [300, 0]);
    let sides = [busy(BUDGET / 2, 4900, 300), busy(BUDGET / 2, 5000, 300)];
    assert_eq!(gives_all(&sides), [0, 0], "they need them alike");
}

/// Two processes with the same load, one of which began with nearly everything.
#[test]
fn equal_loads_end_with_equal_shares() {
    let pages = 40_000;
    let mut leases = [BUDGET - FLOOR, FLOOR];
    for _ in 0..50 {
        let sides = leases.map(|lease| busy(lease, 10_000 * (pages - lease) / pages, lease / 4));
        let gives = gives_all(&sides);
        let moves = [(0, 1), (1, 0)].map(|(from, to)| (from, to, gives[from]));
        for (from, to, pages) in moves {
            leases[from] -= pages;
            leases[to] += pages;
        }
    }
    let [first, second] = leases;
    assert!(first.abs_diff(second) < BUDGET / 20, "{leases:?}");
}

#[test]
fn a_process_is_at_rest_after_a_second_without_a_processor() {
    let doing = Sharing::new().doing;
    let doing = &mut *lock(&doing);
    let ms = Duration::from_millis;
    let done = Done { worked: ms(5), ..Done::default() };
    doing.look(done);
    assert_eq!((doing.mood(false), doing.mood(true)), (Mood::Busy, Mood::Stuck));
    doing.busy -= REST_AFTER;
    doing.looked -= ms(100);
    // Less than a processor's time to look up now and then.
    let done = Done { worked: done.worked + Duration::from_micros(400), ..done };
    doing.look(Done { short_ns: 40_000_000, ..done });
    assert_eq!(doing.mood(false), Mood::AtRest);
    assert!(doing.rate > 300.0 && doing.rate < 500.0, "{}: 4,000 for 100 ms", doing.rate);
    let done = Done { worked: ms(50), ..done };
    doing.look(done);
    assert_eq!(doing.mood(false), Mood::Busy);
    doing.busy -= REST_AFTER;
    doing.look(Done { stalled_us: 9, ..done });
    assert_eq!(doing.mood(false), Mood::Busy, "who waits for memory is not at rest");
    doing.busy -= REST_AFTER_SCARCE;
    assert_eq!(doing.mood(false), Mood::Busy);
    doing.rest_after = REST_AFTER_SCARCE;
    assert_eq!(doing.mood(false), Mood::AtRest, "few pages are left");
}

/// One that wakes up now and then keeps what it needs for that; one that sleeps does not.
#[test]
fn who_is_at_rest_keeps_what_it_had_to_bring_in_again() {
    let doing = Sharing::new().doing;
    let doing = &mut *lock(&doing);
    let done = Done { zeros: 90_000, worked: Duration::from_millis(5), ..Done::default() };
    let back = |back| Done { back, ..done };
    doing.look(back(300));
    assert_eq!((doing.keeps(Mood::AtRest), doing.keeps(Mood::Busy)), (300, FLOOR));
    assert_eq!(doing.brought, 90_300);
    doing.looked -= BACK_OVER;
    doing.look(back(310));
    assert_eq!((doing.keeps(Mood::AtRest), doing.brought), (REST_PAGES, 10));
    doing.look(back(9_000));
    assert_eq!(doing.keeps(Mood::AtRest), FLOOR);
    doing.moved -= STILL_AFTER;
    assert_eq!(doing.keeps(Mood::AtRest), REST_PAGES);
}

#[test]
fn who_is_better_off_than_somebody_short_does_not_take_what_is_left() {
    let (rich, poor) = (busy(20_000, 5_000, 64), busy(5_000, 5_000, 1));
    assert!(is_better_off(rich, &[rich, poor]) && !is_better_off(poor, &[rich, poor]));
    // Who is not short needs no more, however little that is; and who wakes up needs some.
    let content = busy(5_000, 5_000, 0);
    assert!(!is_better_off(rich, &[rich, content]));
    assert!(!is_better_off(in_mood(Mood::AtRest, rich), &[rich, poor]));
}

/// All give to the one who has the token, who needs its pages least; it gives nothing, and what is
/// left is for it.
#[test]
fn who_has_the_token_gets_what_it_wants_and_gives_nothing() {
    let holder = Side { has_token: true, ..busy(BUDGET / 2, 5, BUDGET) };
    let [large, small] = [busy(BUDGET / 4 + FLOOR, 9_000, 300), busy(BUDGET / 4 - FLOOR, 9_000, 9)];
    let sides = [holder, large, small];
    assert_eq!(
        gives_all(&sides),
        sides.map(|side| if side.has_token { 0 } else { side.spare() / 4 })
    );
    assert_eq!(sides.map(|side| is_better_off(side, &sides)), [false, true, true]);
    // What it does not want the others have as ever.
    let content = Side { told: Told { want: 0, ..holder.told }, ..holder };
    let sides = [content, busy(BUDGET / 4, 9_000, 300), busy(BUDGET / 4, 4_000, 0)];
    assert_eq!(gives_all(&sides), [0, 0, 300]);
    assert!(!is_better_off(sides[1], &sides));
}

#[test]
fn who_sees_several_thrash_sees_whether_all_it_has_would_fit() {
    let in_strain = |side: Side| {
        let size = BUDGET - 4 * FLOOR;
        Side { told: Told { strain: THRASHES, size, ..side.told }, ..side }
    };
    let thrashing = in_strain(busy(BUDGET / 4, 9_000, 300));
    let calm = busy(BUDGET / 4, 0, 0);
    let sides = [thrashing, thrashing, in_mood(Mood::AtRest, thrashing), calm];
    let seen = sight(thrashing, 8_000.0, &sides, BUDGET);
    assert!(seen.fits && seen.is_short && !seen.is_taken && seen.thrashing == 2, "{seen:?}");
    let large = Side { told: Told { size: BUDGET - FLOOR, ..thrashing.told }, ..thrashing };
    assert!(!sight(large, 8_000.0, &sides, BUDGET).fits);
    let taken = [thrashing, Side { has_token: true, ..calm }];
    assert!(sight(thrashing, 8_000.0, &taken, BUDGET).is_taken);
    assert!(!sight(taken[1], 0.0, &taken, BUDGET).is_taken, "it has it itself");
}

/// What a program does beside waiting tells one that thrashes from one that only looks up.
#[test]
fn strain_is_the_part_of_what_is_done_that_is_faults() {
    let doing = Sharing::new().doing;
    let doing = &mut *lock(&doing);
    let mut look = |cost_ms: u64, own_ms: u64, worked_ms: u64| {
        doing.looked -= Duration::from_millis(100);
        let before = doing.done;
        let ms = Duration::from_millis;
        let short_ns = before.short_ns + 2 * cost_ms * 1_000_000;
        let (cost, own_cost) = (before.cost + ms(cost_ms), before.own_cost + ms(own_ms));
        doing.look(Done {
            short_ns,
            cost,
            own_cost,
            worked: before.worked + ms(worked_ms),
            ..before
        });
        doing.strain_now.round()
    };
    assert_eq!(look(60, 0, 20), 7_500.0);
    assert_eq!(look(60, 20, 40), 7_500.0, "by the program's own threads");
    assert_eq!(look(60, 30, 25), 10_000.0, "all that it does");
    assert_eq!(look(10, 0, 30), 2_500.0);
    assert_eq!(look(0, 0, 30), 0.0);
}

proptest! {
    /// Others say of themselves what they like: no more than there is comes of it.
    #[test]
    fn whatever_others_say_a_process_gives_what_it_has_at_most(
        said in prop::collection::vec(
            prop::array::uniform8(prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()]),
            1..5,
        ),
        budget in any::<u64>(),
    ) {
        let account = Account::without_job(budget).unwrap();
        let tell = |[lease, used, unmanaged, keeps, rate, want, mood, token]: [u64; 8]| {
            let moods = [Mood::Busy, Mood::AtRest, Mood::Stuck, Mood::Dormant];
            let mood = moods[mood as usize % moods.len()];
            let member = account.enter().unwrap();
            member.set(lease);
            member.tell(Told { used, unmanaged, keeps, rate, want, mood, ..Told::default() });
            Side { lease: member.lease(), told: member.told(), has_token: token == 1 }
        };
        let sides: Vec<Side> = said.into_iter().map(tell).collect();
        for own in &sides {
            prop_assert!(gives(*own, &sides, account.budget(), 1000) <= 2 * own.lease);
        }
    }
}
