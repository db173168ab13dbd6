//! How much of what the pool occupies is not data, for lengths as contents have them, while
//! compaction runs as in the background.

use super::*;

/// Where lengths come from.
type Lengths = fn(&mut Random) -> usize;

/// Lengths as LZ4 leaves them on pages of text, numbers and pointers: most from 800 to 2500 bytes,
/// some up to 3632, some tiny.
fn packed(random: &mut Random) -> usize {
    match random.below(100) {
        0..6 => 20 + random.below(400),
        6..30 => 800 + random.below(500),
        30..75 => 1100 + random.below(900),
        75..92 => 1900 + random.below(600),
        _ => 2500 + random.below(1133),
    }
}

/// Pages of one kind: lengths close to each other, as those of a large array.
fn narrow(random: &mut Random) -> usize {
    1500 + random.below(60) + random.below(60)
}

/// Two kinds of pages.
fn two_kinds(random: &mut Random) -> usize {
    if random.below(3) == 0 { 2300 + random.below(250) } else { 850 + random.below(150) }
}

fn uniform(random: &mut Random) -> usize {
    1 + random.below(3632)
}

/// Waste in percent after `bytes` of data were stored and each object was replaced `turnover` times
/// on average; with or without compaction.
fn waste(bytes: usize, lengths: Lengths, turnover: usize, compaction: bool) -> f64 {
    let frames = 2 * bytes / PAGE_SIZE + 4096;
    let source = FakeSource::new(frames, frames);
    let pool = source.pool(frames);
    let mut random = Random(7);
    let mut handles: Vec<Handle> = Vec::new();
    let data = content(1, PAGE_SIZE);
    while pool.stored_bytes() < bytes {
        let len = lengths(&mut random);
        handles.push(pool.store(&source, handles.len() as u64, &data[..len]).unwrap());
    }
    for turn in 0..turnover * handles.len() {
        let at = random.below(handles.len());
        pool.free(&source, handles[at]);
        handles[at] = pool.store(&source, at as u64, &data[..lengths(&mut random)]).unwrap();
        // As often as a background thread finds time.
        if compaction && turn % 1024 == 0 {
            pool.compact(&source, 256, &mut |owner, old, new| {
                std::mem::replace(&mut handles[owner as usize], new) == old
            });
        }
    }
    pool.check();
    100.0 * pool.waste()
}

#[test]
fn less_than_a_twentieth_is_wasted_with_compaction() {
    let all: [(&str, Lengths); 4] =
        [("packed", packed), ("narrow", narrow), ("two kinds", two_kinds), ("uniform", uniform)];
    for (name, lengths) in all {
        let waste = waste(64 << 20, lengths, 2, true);
        assert!(waste < 5.0, "{name}: {waste:.2} % of the pool is waste");
    }
}

#[test]
fn a_small_pool_wastes_little_too() {
    let waste = waste(16 << 20, packed, 2, true);
    assert!(waste < 8.0, "{waste:.2} % of the pool is waste");
}

#[test]
fn compaction_is_what_keeps_waste_low() {
    let [without, with] = [false, true].map(|compaction| waste(16 << 20, packed, 3, compaction));
    assert!(with + 2.0 < without, "{with:.2} % with compaction, {without:.2} % without");
}

#[test]
fn what_is_drained_comes_back() {
    let source = FakeSource::new(16384, 16384);
    let pool = source.pool(16384);
    let mut random = Random(3);
    let mut handles: Vec<Option<Handle>> = Vec::new();
    while pool.stored_bytes() < 24 << 20 {
        let len = packed(&mut random);
        handles.push(Some(pool.store(&source, handles.len() as u64, &vec![1; len]).unwrap()));
    }
    for handle in &mut handles {
        if random.below(10) > 0 {
            pool.free(&source, handle.take().unwrap());
        }
    }
    let (drained, wanted) = (pool.frames(), pool.compactable_frames());
    let moved = &mut |owner: u64, old, new| handles[owner as usize].replace(new) == Some(old);
    while pool.compact(&source, 100, moved).copied > 0 {}
    pool.trim(&source);
    pool.check();
    assert_eq!((pool.compactable_frames(), pool.frames() <= drained - wanted), (0, true));
    assert!(pool.frames() * PAGE_SIZE < 5 << 20, "{} frames for 2.4 MiB", pool.frames());
    let metadata = (48 * source.frames.frames_max()) >> ORDER_MIN;
    assert!(
        metadata * 300 < source.frames.frames_max() * PAGE_SIZE,
        "metadata above a third of a percent"
    );
}
