//! Exceptions: the engine's sentence, in the class that Python has for it.

use crate::blocks::{Closed, Given};
use overspill::Error;
use overspill::config::Delivery;
use overspill::device::SwapError;
use overspill::swapoff::SwapoffError;
use overspill::units::Bytes;
use overspill_os::Errno;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;

/// What is said beside the engine's sentence where faults cannot be served by a thread.
const USE_SIGNAL: &str = "thread delivery needs root, CAP_SYS_PTRACE, \
    vm.unprivileged_userfaultfd=1 or /dev/userfaultfd; or pass delivery=\"signal\", in which \
    system calls on memory that is out fail";
/// The same where they cannot be served by signal either.
const ALLOW: &str = "signal delivery needs the system call userfaultfd, which a container's \
    seccomp profile may forbid, or /dev/userfaultfd";
/// The same where the kernel cannot.
const OTHER_KERNEL: &str = "run Linux 5.7 or later, built with CONFIG_USERFAULTFD=y";

/// Of a value that says what is wrong with it.
pub fn value(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Of a pool that could not be made or changed.
pub fn pool(error: Error, delivery: Delivery) -> PyErr {
    let text = error.to_string();
    match error {
        Error::TooManyPools => PyOSError::new_err(text),
        Error::NoUserfaultfd { errno } => {
            let remedy = match (errno, delivery) {
                (Errno::NOSYS | Errno::OPNOTSUPP, _) => OTHER_KERNEL,
                (_, Delivery::Thread) => USE_SIGNAL,
                (_, Delivery::Signal) => ALLOW,
            };
            // Python makes a PermissionError of it where the number is of one.
            PyOSError::new_err((errno.raw_os_error(), format!("{text}; {remedy}")))
        }
        Error::AddressSpace { .. } => PyMemoryError::new_err(text),
        Error::Thread => PyOSError::new_err(text),
        Error::Swap(error) => swap(error),
        _ => PyValueError::new_err(text),
    }
}

/// Of a swap device.
pub fn swap(error: SwapError) -> PyErr {
    PyOSError::new_err(error.to_string())
}

/// Of one that is to go.
pub fn swapoff(error: SwapoffError) -> PyErr {
    let text = error.to_string();
    match error {
        SwapoffError::NoRoom { .. } => PyMemoryError::new_err(text),
        SwapoffError::Unknown(_) | SwapoffError::Interrupted { .. } => PyValueError::new_err(text),
    }
}

impl From<Closed> for PyErr {
    fn from(_: Closed) -> PyErr {
        PyValueError::new_err("the pool is closed: make another")
    }
}

/// Of a pool that is closed too early.
pub fn in_use(given: Given) -> PyErr {
    let Given { blocks, bytes, .. } = given;
    let arrays = if blocks == 1 { "array is" } else { "arrays are" };
    PyBufferError::new_err(format!(
        "{blocks} {arrays} still in the pool, {}: delete them and their views, or copy them out, \
         before it is closed",
        Bytes(bytes as u64)
    ))
}
