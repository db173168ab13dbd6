//! The working set: what refaults tell about the size of the compressed tier and its codec.
//!
//! Numbers in, decisions out.

pub mod history;
pub mod tier_size;
