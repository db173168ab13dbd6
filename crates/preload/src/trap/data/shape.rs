//! Calls that move data, and how each is handed them.

/// How a call is handed its data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub form: Form,
    pub input: bool,
}

/// Which of its arguments say where they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A buffer and its length; true with an offset behind it.
    Plain(bool),
    /// A vector and its length; true with an offset behind it.
    Vector(bool),
    /// sendto and recvfrom.
    Address,
    /// sendmsg and recvmsg.
    Message,
    /// sendmmsg and recvmmsg.
    Messages,
}

/// The shape of a call that moves data; None of any other.
pub fn shape(number: i64) -> Option<Shape> {
    let (form, input) = match number {
        libc::SYS_read => (Form::Plain(false), true),
        libc::SYS_write => (Form::Plain(false), false),
        libc::SYS_pread64 => (Form::Plain(true), true),
        libc::SYS_pwrite64 => (Form::Plain(true), false),
        libc::SYS_readv => (Form::Vector(false), true),
        libc::SYS_writev => (Form::Vector(false), false),
        libc::SYS_preadv | libc::SYS_preadv2 => (Form::Vector(true), true),
        libc::SYS_pwritev | libc::SYS_pwritev2 => (Form::Vector(true), false),
        libc::SYS_recvfrom => (Form::Address, true),
        libc::SYS_sendto => (Form::Address, false),
        libc::SYS_recvmsg => (Form::Message, true),
        libc::SYS_sendmsg => (Form::Message, false),
        libc::SYS_recvmmsg => (Form::Messages, true),
        libc::SYS_sendmmsg => (Form::Messages, false),
        _ => return None,
    };
    Some(Shape { form, input })
}

impl Shape {
    /// Whether what a call of this shape has done may be done although it fails with EFAULT: data
    /// are taken, and gone then; a message is sent whose length cannot be written beside it.
    pub fn is_once(self) -> bool {
        self.input || self.form == Form::Messages
    }
}
