//! What calls are made on: a file, a pipe, sockets. They are as new before each call.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

/// Bytes of the file.
const FILE: usize = 100 << 10;
/// Datagrams that wait to be received, by length.
const DATAGRAMS: [usize; 4] = [10, 5000, 0, 40 << 10];
/// Bytes that wait in the stream, and in the pipe.
const WAITING: usize = 50 << 10;

/// What was written to the file, the pipe, and the other ends of the sockets; where the file is at.
pub type Received = [Vec<u8>; 4];

pub struct Descriptors {
    file: File,
    pipe: [File; 2],
    stream: [UnixStream; 2],
    datagram: [UnixDatagram; 2],
    listener: UnixListener,
    epoll: OwnedFd,
    /// Where what was received is read into: zeros.
    buffer: Vec<u8>,
    /// What the file begins with.
    content: Vec<u8>,
}

fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: new, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7) as u8 ^ 0x5a).collect()
}

impl Descriptors {
    pub fn new() -> Descriptors {
        let name: &CStr = c"explore";
        // SAFETY: 1. a name; 2. room for two descriptors; 3. a number.
        let (file, pipe, epoll) = unsafe {
            let mut pipe = [0; 2];
            assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC), 0);
            let file = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
            (file, pipe, libc::epoll_create1(libc::EPOLL_CLOEXEC))
        };
        // Bound to a name of the kernel's choice, which datagrams come from.
        let unnamed = || UnixDatagram::unbound().expect("a socket");
        let datagram = [unnamed(), unnamed()];
        let names = datagram.each_ref().map(bind);
        connect(&datagram[0], &names[1]);
        connect(&datagram[1], &names[0]);
        let stream: [UnixStream; 2] = UnixStream::pair().expect("sockets").into();
        // SAFETY: numbers.
        let listener = owned(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) });
        bind(&listener);
        // SAFETY: numbers.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 1) }, 0);
        let listener = UnixListener::from(listener);
        let all = "sockets can be made so";
        stream.iter().for_each(|end| end.set_nonblocking(true).expect(all));
        datagram.iter().for_each(|end| end.set_nonblocking(true).expect(all));
        listener.set_nonblocking(true).expect(all);
        Descriptors {
            file: File::from(owned(file)),
            pipe: pipe.map(|end| File::from(owned(end))),
            stream,
            datagram,
            listener,
            epoll: owned(epoll),
            buffer: vec![0; 256 << 10],
            content: pattern(FILE),
        }
    }

    /// Those that a call may name: all, a directory, and one that is none.
    pub fn all(&self) -> [RawFd; 9] {
        [
            self.file.as_raw_fd(),
            self.stream[0].as_raw_fd(),
            self.datagram[0].as_raw_fd(),
            self.pipe[0].as_raw_fd(),
            self.pipe[1].as_raw_fd(),
            self.listener.as_raw_fd(),
            self.epoll.as_raw_fd(),
            -1,
            self.file.as_raw_fd(),
        ]
    }

    /// As before the first call.
    pub fn prepare(&mut self) {
        self.received();
        let all = "what is not full takes it";
        self.file.set_len(0).expect(all);
        self.file.write_all_at(&self.content, 0).expect(all);
        self.file.seek(SeekFrom::Start(100)).expect(all);
        let waiting = &self.content[..WAITING];
        send(self.stream[1].as_raw_fd(), waiting);
        for len in DATAGRAMS {
            send(self.datagram[1].as_raw_fd(), &waiting[..len]);
        }
        let mut pipe = &self.pipe[1];
        std::io::Write::write_all(&mut pipe, waiting).expect(all);
    }

    /// What is there to be read, which is gone then.
    pub fn received(&mut self) -> Received {
        let at = self.file.stream_position().expect("a file");
        let mut file = at.to_le_bytes().to_vec();
        self.file.rewind().expect("a file");
        (&self.file).read_to_end(&mut file).expect("a file can be read");
        let [mut stream, mut datagrams, mut pipe] = [const { Vec::new() }; 3];
        for end in &self.stream {
            drain(&mut self.buffer, &mut stream, |buffer| (&mut &*end).read(buffer));
        }
        for end in &self.datagram {
            let receive = |buffer: &mut [u8]| end.recv(buffer).map(|len| len + 1);
            drain(&mut self.buffer, &mut datagrams, receive);
        }
        drain(&mut self.buffer, &mut pipe, |buffer| (&self.pipe[0]).read(buffer));
        [file, stream, datagrams, pipe]
    }
}

/// Reads until there is no more, each time with a mark behind it. A datagram counts one more than
/// it has, so that an empty one is none.
fn drain(
    buffer: &mut [u8],
    all: &mut Vec<u8>,
    mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
) {
    while let Ok(len) = read(buffer)
        && len > 0
    {
        all.extend_from_slice(&buffer[..len]);
        buffer[..len].fill(0);
    }
}

fn send(fd: RawFd, bytes: &[u8]) {
    // SAFETY: so many bytes.
    let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(sent, bytes.len() as isize, "{}", std::io::Error::last_os_error());
}

/// Gives a socket a name of the kernel's choice; which.
fn bind(socket: &impl AsRawFd) -> Vec<u8> {
    let family = (libc::AF_UNIX as u16).to_ne_bytes();
    let (mut name, mut len) = (vec![0u8; 128], 128u32);
    // SAFETY: 1. a name of two bytes; 2. room for a name, and its length.
    unsafe {
        assert_eq!(libc::bind(socket.as_raw_fd(), family.as_ptr().cast(), 2), 0);
        let got = libc::getsockname(socket.as_raw_fd(), name.as_mut_ptr().cast(), &mut len);
        assert_eq!(got, 0);
    }
    name.truncate(len as usize);
    name
}

fn connect(socket: &impl AsRawFd, name: &[u8]) {
    // SAFETY: a name of so many bytes.
    let done =
        unsafe { libc::connect(socket.as_raw_fd(), name.as_ptr().cast(), name.len() as u32) };
    assert_eq!(done, 0);
}
