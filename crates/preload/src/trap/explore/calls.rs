//! The calls, and what they are told by.

use super::descriptors::Descriptors;
use super::{Call, Choices, ProgramMemory};
use crate::memory::vectors::FILE_VECTORS;
use libc::{iovec, mmsghdr, msghdr};

/// Most elements of a vector that is made up; the kernel's limit is refused without looking.
const VECTOR: usize = 40;

/// Makes up a call.
pub fn call(choices: &mut Choices<'_>, memory: &mut ProgramMemory, fds: &Descriptors) -> Call {
    let fd = choices.one_of(&fds.all()) as usize;
    let kind = choices.byte() % 4;
    let (number, arguments) = match kind {
        0 => plain(choices, memory, fd),
        1 => messages(choices, memory, fd),
        2 => waiting(choices, memory, fd),
        _ => taking(choices, memory, fd, fds),
    };
    Call { number, arguments, around: choices.byte().is_multiple_of(2) }
}

/// The bytes of a value without padding.
fn bytes<T: Copy>(values: &[T]) -> Vec<u8> {
    // SAFETY: plain numbers and addresses, of so many bytes.
    unsafe {
        std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)).to_vec()
    }
}

/// How many elements a call says that its array has, which has `count`.
fn count(choices: &mut Choices<'_>, count: usize) -> usize {
    match choices.byte() % 16 {
        0 => choices.one_of(&[0, count / 2, 1025, usize::MAX, 1 << 32 | count, 1 << 60]),
        _ => count,
    }
}

/// A vector, and how long it is said to be.
fn vector(choices: &mut Choices<'_>, memory: &mut ProgramMemory) -> [usize; 2] {
    let wanted = match choices.byte() % 4 {
        0 => usize::from(choices.byte()) % VECTOR,
        few => usize::from(few),
    };
    let piece = |choices: &mut Choices<'_>, memory: &mut ProgramMemory| iovec {
        iov_base: memory.data(choices) as *mut _,
        iov_len: choices.len(),
    };
    let pieces: Vec<iovec> = (0..wanted).map(|_| piece(choices, memory)).collect();
    [memory.told(choices, &bytes(&pieces)), count(choices, wanted)]
}

/// read and write in all forms, sendto and recvfrom.
fn plain(choices: &mut Choices<'_>, memory: &mut ProgramMemory, fd: usize) -> (i64, [usize; 6]) {
    let others = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
    ];
    let number = choices.one_of(&[&others[..], &FILE_VECTORS].concat());
    let offset = match choices.byte() % 8 {
        0 => usize::MAX >> (choices.byte() % 64),
        1 => usize::MAX - choices.word(),
        _ => choices.word(),
    };
    let arguments = match number {
        libc::SYS_recvfrom => {
            let len = memory.one_len(choices);
            let room = memory.room(choices);
            [fd, memory.data(choices), choices.len(), flags(choices), room, len]
        }
        libc::SYS_sendto => {
            let [name, len] = memory.name(choices);
            [fd, memory.data(choices), choices.len(), flags(choices), name, len]
        }
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64 => {
            [fd, memory.data(choices), choices.len(), offset, 0, 0]
        }
        _ => {
            let [vector, count] = vector(choices, memory);
            [fd, vector, count, offset, 0, 0]
        }
    };
    // A file of any size can be had by a write far behind its end.
    match (number, arguments[3]) {
        (libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2, far)
            if far < usize::MAX >> 1 =>
        {
            (number, [fd, arguments[1], arguments[2], far % (64 << 10), 0, 0])
        }
        _ => (number, arguments),
    }
}

/// Of those of a socket's calls that change what is told, and none that waits.
fn flags(choices: &mut Choices<'_>) -> usize {
    let all =
        [0, 0, libc::MSG_PEEK, libc::MSG_TRUNC, libc::MSG_WAITALL, libc::MSG_ERRQUEUE, 1 << 30];
    (choices.one_of(&all) | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize
}

impl ProgramMemory {
    /// Room for a name that is received.
    fn room(&mut self, choices: &mut Choices<'_>) -> usize {
        if choices.byte().is_multiple_of(4) { 0 } else { self.told(choices, &[0xee; 128]) }
    }

    /// A length that says how much room there is.
    fn one_len(&mut self, choices: &mut Choices<'_>) -> usize {
        let len = choices.one_of(&[0u32, 1, 2, 4, 8, 16, 110, 128, 129, 1 << 31, u32::MAX]);
        self.told(choices, &len.to_ne_bytes())
    }

    /// A name to send to, mostly none: that of nobody.
    fn name(&mut self, choices: &mut Choices<'_>) -> [usize; 2] {
        if choices.byte().is_multiple_of(2) {
            return [0, 0];
        }
        let mut name = [0u8; 128];
        name[0] = choices.one_of(&[libc::AF_UNIX as u8, 77]);
        (name[3], name[4]) = (b'?', b'?');
        let len = choices.one_of(&[0, 1, 2, 5, 110, 111, 128, 129, usize::MAX, 1 << 32 | 5]);
        [self.told(choices, &name), len]
    }

    /// A path.
    fn path(&mut self, choices: &mut Choices<'_>) -> usize {
        let path = choices.one_of(&[&b"/dev/stdin\0"[..], b"/nowhere\0", b"\0", b"no end"]);
        self.told(choices, path)
    }

    /// The header of a message.
    fn header(&mut self, choices: &mut Choices<'_>, input: bool) -> msghdr {
        let [iov, iovlen] = vector(choices, self);
        // SAFETY: zeros are null pointers and numbers.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (iov as *mut _, iovlen);
        if input {
            header.msg_name = self.room(choices) as *mut _;
            header.msg_namelen = choices.one_of(&[0, 1, 16, 128, 129, 1 << 31]);
        } else {
            let [name, len] = self.name(choices);
            (header.msg_name, header.msg_namelen) = (name as *mut _, len as u32);
        }
        if choices.byte().is_multiple_of(4) {
            let len = choices.one_of(&[0, 1, 16, 24, 64, 70_000, usize::MAX]);
            let mut control = vec![0u8; 64];
            control[0] = choices.byte();
            control[8] = choices.byte() % 2;
            control[12] = choices.byte() % 4;
            header.msg_control = self.told(choices, &control) as *mut _;
            header.msg_controllen = len;
        }
        header.msg_flags = choices.byte().into();
        header
    }
}

/// sendmsg, recvmsg, sendmmsg, recvmmsg.
fn messages(choices: &mut Choices<'_>, memory: &mut ProgramMemory, fd: usize) -> (i64, [usize; 6]) {
    let number = choices.one_of(&[
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_sendmmsg,
        libc::SYS_recvmmsg,
    ]);
    let input = matches!(number, libc::SYS_recvmsg | libc::SYS_recvmmsg);
    if matches!(number, libc::SYS_sendmsg | libc::SYS_recvmsg) {
        let header = memory.header(choices, input);
        let header = memory.told(choices, &bytes(&[header]));
        return (number, [fd, header, flags(choices), 0, 0, 0]);
    }
    let wanted = usize::from(choices.byte() % 5);
    let headers: Vec<mmsghdr> = (0..wanted)
        .map(|_| mmsghdr { msg_hdr: memory.header(choices, input), msg_len: 0xabab })
        .collect();
    let list = memory.told(choices, &bytes(&headers));
    let count = match choices.byte() % 8 {
        0 => wanted / 2,
        _ => wanted,
    };
    (number, [fd, list, count, flags(choices), 0, 0])
}

/// Calls that wait, without waiting.
fn waiting(choices: &mut Choices<'_>, memory: &mut ProgramMemory, fd: usize) -> (i64, [usize; 6]) {
    let number = choices.one_of(&[
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_select,
        libc::SYS_pselect6,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_accept4,
    ]);
    let wanted = usize::from(choices.byte() % 8);
    // No time at all; a null pointer would be for ever.
    let time = match memory.told(choices, &[0; 16]) {
        0 => 64,
        time => time,
    };
    let set = if choices.byte().is_multiple_of(2) { 0 } else { memory.told(choices, &[0; 8]) };
    let arguments = match number {
        libc::SYS_poll | libc::SYS_ppoll => {
            let polled = libc::pollfd { fd: fd as i32, events: choices.word() as i16, revents: 7 };
            let list = memory.told(choices, &bytes(&vec![polled; wanted]));
            let count = count(choices, wanted);
            match number {
                libc::SYS_poll => [list, count, 0, 0, 0, 0],
                _ => [list, count, time, set, choices.one_of(&[8, 8, 16]), 0],
            }
        }
        libc::SYS_select | libc::SYS_pselect6 => {
            let mut of = || match choices.byte() % 3 {
                0 => 0,
                _ => memory.told(choices, &choices.0.first_chunk().copied().unwrap_or([1u8; 128])),
            };
            let [read, write, except] = [of(), of(), of()];
            let most = choices.one_of(&[0, 1, 8, 64, 65, 1024, usize::MAX]);
            let both = memory.told(choices, &bytes(&[set, 8]));
            let sixth = if number == libc::SYS_select { 0 } else { both };
            [most, read, write, except, time, sixth]
        }
        libc::SYS_accept4 => {
            let len = memory.one_len(choices);
            [fd, memory.room(choices), len, libc::SOCK_NONBLOCK as usize, 0, 0]
        }
        _ => {
            let events = memory.told(choices, &[9; 12 * 8]);
            let most = choices.one_of(&[0, 1, 8, usize::MAX, 1 << 30]);
            let set = if number == libc::SYS_epoll_wait { 0 } else { set };
            [fd, events, most, 0, set, 8]
        }
    };
    (number, arguments)
}

/// Calls that take or tell something.
fn taking(
    choices: &mut Choices<'_>,
    memory: &mut ProgramMemory,
    fd: usize,
    fds: &Descriptors,
) -> (i64, [usize; 6]) {
    let number = choices.one_of(&[
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_getsockopt,
        libc::SYS_bind,
        libc::SYS_sendfile,
        libc::SYS_splice,
        libc::SYS_prlimit64,
        libc::SYS_rt_sigprocmask,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_access,
        libc::SYS_readlink,
        libc::SYS_uname,
        libc::SYS_getdents64,
    ]);
    let [file, .., other] = fds.all().map(|fd| fd as usize);
    let few = usize::from(choices.byte());
    let arguments = match number {
        libc::SYS_getsockname | libc::SYS_getpeername => {
            let len = memory.one_len(choices);
            [fd, memory.room(choices), len, 0, 0, 0]
        }
        libc::SYS_getsockopt => {
            let len = memory.one_len(choices);
            // Not those from SO_PEERPIDFD on, which makes a new descriptor each time.
            let option = usize::from(choices.byte() % 77);
            [fd, libc::SOL_SOCKET as usize, option, memory.room(choices), len, 0]
        }
        libc::SYS_bind => {
            let [name, len] = memory.name(choices);
            [fds.all()[2] as usize, name, len, 0, 0, 0]
        }
        libc::SYS_sendfile | libc::SYS_splice => {
            let at = choices.one_of(&[7u64, 0, u64::MAX]).to_ne_bytes();
            let at = memory.told(choices, &at);
            match number {
                libc::SYS_sendfile => [fd, file, at, few * 64, 0, 0],
                _ => [other, at, fds.all()[4] as usize, 0, few * 64, 2],
            }
        }
        libc::SYS_prlimit64 => [0, few % 20, 0, memory.told(choices, &[5; 16]), 0, 0],
        // No way to change a mask has this number.
        libc::SYS_rt_sigprocmask => {
            let set = memory.told(choices, &[0; 8]);
            let old = memory.told(choices, &[1; 8]);
            let way = if set == 0 { 0 } else { 99 };
            [way, set, old, choices.one_of(&[8, 8, 16]), 0, 0]
        }
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
            let ([local, count], [remote, others]) =
                (vector(choices, memory), vector(choices, memory));
            [std::process::id() as usize, local, count, remote, others, 0]
        }
        libc::SYS_access => [memory.path(choices), 0, 0, 0, 0, 0],
        libc::SYS_readlink => {
            let path = memory.path(choices);
            [path, memory.told(choices, &[3; 64]), few, 0, 0, 0]
        }
        libc::SYS_uname => [memory.told(choices, &[3; 390]), 0, 0, 0, 0, 0],
        _ => [fd, memory.told(choices, &[3; 512]), few, 0, 0, 0],
    };
    (number, arguments)
}
