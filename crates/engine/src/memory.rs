//! Memory: the words of pages, their extents, and the frames that hold content.

pub mod extent;
pub mod frames;
pub mod word;
