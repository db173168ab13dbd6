//! The C interface of overspill, over the crate `overspill`. `overspill.h` is made of it.
//!
//! What C passes is not to be trusted further than it has to be: handles and regions are looked up
//! in a table, numbers of enumerations are checked, and what is wrong becomes a code and a
//! sentence. Strings and places for results have to be what their type says.

mod calls;
mod error;
mod fork;
mod options;
mod pools;
