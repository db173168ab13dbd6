//! What changes the engine while it runs: the budget and its limit, requests for pages to leave,
//! advice, and swap devices that come and go.

pub mod advice;
pub mod job;
pub mod limit;
pub mod proactive;
pub mod swapoff;
