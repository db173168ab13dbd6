//! Functions of the C library's that begin with a jump to ours: whoever has got their addresses
//! without asking for the symbol first calls ours as well.

use crate::code::jump;
use crate::image;
use crate::rewrite::Writer;
use std::ffi::CStr;

/// A function of the C library's, and ours.
pub type Replacement = (&'static CStr, usize);

/// Changes these functions, which are where `find` says, or none; whether it did. Called while the
/// process has one thread. What has several names has one place: the first counts.
pub fn change<const COUNT: usize>(
    functions: [Replacement; COUNT],
    find: impl Fn(&CStr) -> usize,
) -> bool {
    if overspill_os::probe::simulated().no_patch {
        return false;
    }
    let Some(code) =
        image::of(libc::gnu_get_libc_version as *const () as usize).map(|library| library.code)
    else {
        return false;
    };
    let places = functions.map(|(name, ours)| (find(name), ours));
    let reach =
        |ours: usize| code.start.abs_diff(ours).max(code.end.abs_diff(ours)) < i32::MAX as usize;
    // Another library's, that the program is linked with, is that library's own affair.
    if places.iter().any(|(place, ours)| !code.contains(place) || !reach(*ours)) {
        return false;
    }
    let writer = Writer::new(libc::PROT_READ | libc::PROT_EXEC);
    for (n, (place, ours)) in places.iter().enumerate() {
        if places[..n].iter().all(|(before, _)| before != place) {
            // SAFETY: the first bytes of a function of the C library's, which is longer; the
            // process has one thread, and no call of the function is under way.
            if unsafe { writer.write(*place, &jump(*place, *ours)) }.is_err() {
                // What cannot be done for the first can be done for none.
                return false;
            }
        }
    }
    true
}
