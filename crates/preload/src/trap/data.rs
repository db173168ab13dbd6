//! Calls that read and write data: through a buffer.
//!
//! What is unmanaged of a vector stays as it is, what is managed has a piece of the buffer in its
//! place. Input is copied out when the call is over, output is copied in before. More than fits in
//! a buffer ([`super::bounce::CHUNK`]) goes in parts where that cannot be told from one call:
//! output, and input from files and with MSG_WAITALL. Pieces begin at the same place in their page
//! as the memory they stand for, so that direct I/O works.
//!
//! The calls are in three groups, [`vector`], [`address`] and [`messages`], over what all of them
//! need ([`pending`]).

use super::record::{Next, Record};
use shape::Form;
pub use shape::{Shape, shape};

mod address;
mod descriptor;
mod messages;
mod pending;
mod shape;
mod vector;

/// Prepares a call; None where its memory is not as it should be.
pub fn begin(record: &mut Record, shape: Shape, arguments: [usize; 6]) -> Option<Next> {
    match shape.form {
        Form::Plain(_) | Form::Vector(_) => vector::begin(record, shape, arguments),
        Form::Address => address::begin(record, shape, arguments),
        Form::Message | Form::Messages => messages::begin(record, shape, arguments),
    }
}

/// After the call.
pub fn finish(record: &mut Record, shape: Shape) -> Next {
    match shape.form {
        Form::Plain(_) | Form::Vector(_) => vector::finish(record, shape),
        Form::Address => address::finish(record, shape),
        Form::Message | Form::Messages => messages::finish(record, shape),
    }
}
