//! What a process has is measured in a process that does nothing else meanwhile: other tests of a
//! process have memory too.

use overspill_os::rss::Rss;

#[test]
fn memory_that_is_written_counts() {
    let (before, rough) = (Rss::of_process().unwrap(), Rss::roughly().unwrap().pages());
    let block = std::hint::black_box(vec![1_u8; 64 << 20]);
    let now = Rss::of_process().unwrap();
    let pages = now.anonymous - before.anonymous;
    let rough = Rss::roughly().unwrap().pages() - rough;
    assert!((16_000..17_000).contains(&pages), "{} bytes, {pages} pages", block.len());
    // Each processor may have a few that are not in the sum yet.
    assert!((12_000..21_000).contains(&rough), "{} bytes, about {rough} pages", block.len());
}
