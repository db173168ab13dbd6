//! How much memory a job needs: what one run of it tells of other budgets.
//!
//! Each page that comes back tells how much more memory would have kept it. [`curve`] makes of
//! that the pages that come back with each amount of memory, [`model`] the time that a job takes
//! (and [`around`] what of it the engine does not see),
//! [`report`] what is told of it, [`mod@page`] a page with a picture. [`watch`] looks at a job
//! while it runs, [`profile`] keeps what was found for the next run of the same command.

pub mod around;
mod curve;
pub mod model;
mod page;
pub mod profile;
pub mod report;
pub mod watch;

pub use page::page;
