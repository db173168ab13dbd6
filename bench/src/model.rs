//! What a bench declares ([`declare`]), what is planned and compared from that ([`ladder`]), the
//! rows of it ([`row`]), and all that was found ([`findings`]).
//!
//! Values are written as [`mod@format`] says.

pub mod declare;
pub mod findings;
pub mod format;
pub mod ladder;
pub mod row;

pub use declare::{Goal::*, How::*, Rows::*, *};
pub use findings::Findings;
pub use format::*;
pub use ladder::*;
pub use row::*;
