//! How frames are handed out, and what of it can be turned back.

use super::watermarks::Watermarks;

/// Baseline `frame.pick`: where the frames that go back in bulk are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FramePick {
    /// Before the zone's lock is taken.
    #[default]
    Outside,
    /// Under it.
    Inside,
}

/// How a [`super::FrameAllocator`] works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameSettings {
    /// Baseline `frame.percpu`: whether processors keep lists.
    pub percpu: bool,
    /// Baseline `frame.pick`.
    pub pick: FramePick,
    /// Setting `watermark`.
    pub watermarks: Watermarks,
}

impl Default for FrameSettings {
    fn default() -> FrameSettings {
        FrameSettings { percpu: true, pick: FramePick::Outside, watermarks: Watermarks::default() }
    }
}
