//! The control socket of a run: how other commands reach a job while it runs.
//!
//! [`Control`] listens for as long as the job runs, on threads of its own, so that waiting for the
//! program and passing signals on are not disturbed. Each connection is one request and one reply
//! ([`protocol`]), answered by the [`job`]; [`sockets`] says where the socket lies. [`find`] and
//! [`ask`] are the other end, for commands.
//!
//! Only the user of the job and root are listened to. Lines have a longest length, connections a
//! longest time, and there are only so many at once, so that nobody can keep the socket from others
//! by mistake.

pub mod job;
pub mod look;
pub mod protocol;
pub mod sockets;
mod swaps;

use crate::failure::Failure;
use crate::report::printable;
use crate::rundir::leftovers;
use job::Job;
use protocol::{Answer, Call, REPLY_MAX, REQUEST_MAX, Reply, Request, VERSION};
use sockets::{SocketDirectory, Variables, default_directory};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Longest time for one connection, request and reply together: both are a few lines between
/// processes of one machine.
const CONNECTION_TIME: Duration = Duration::from_secs(2);
/// Most connections at once; more are closed unanswered. Each has a thread.
const CONNECTIONS_MAX: usize = 16;
/// Stack of a connection's thread: requests are nested 128 deep at most (serde_json).
const STACK_BYTES: usize = 256 << 10;
/// Pause when connections cannot be accepted, as without a free descriptor.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait of a command for the reply: longer than the other side gives itself.
const REPLY_TIME: Duration = Duration::from_secs(5);

/// The socket of this process's job; gone when dropped.
#[derive(Debug)]
pub struct Control {
    directory: SocketDirectory,
    /// Whether the directory is overspill's own, to be removed when it is empty.
    own_directory: bool,
}

impl Control {
    /// Listens for requests to `job`, in the first directory that can be used.
    pub fn open(job: &Arc<Job>, variables: &Variables) -> Result<Control, Failure> {
        let user = rustix::process::geteuid().as_raw();
        let mut refusal = String::new();
        for path in variables.directories(user) {
            match SocketDirectory::listen(&path, user, std::process::id()) {
                Ok((directory, listener)) => {
                    directory.sweep();
                    let job = job.clone();
                    spawn("control", move || serve(&listener, &job))
                        .map_err(|error| Failure::own(format!("cannot start a thread: {error}")))?;
                    return Ok(Control { directory, own_directory: variables.own.is_none() });
                }
                Err(error) => {
                    refusal =
                        format!("'{}' cannot be used for its socket ({error})", path.display())
                }
            }
        }
        Err(Failure::own(format!(
            "{refusal}: set OVERSPILL_RUNTIME_DIR to a directory of your own"
        )))
    }
}

impl Found {
    /// The process of its `overspill run`.
    pub fn launcher(&self) -> u32 {
        self.launcher
    }

    /// The whole job, whichever process of it was named.
    pub fn whole(self) -> Found {
        Found { pid: self.launcher, ..self }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.directory.remove(std::process::id());
        if self.own_directory {
            self.directory.remove_if_empty();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body).map(drop)
}

fn serve(listener: &UnixListener, job: &Arc<Job>) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            thread::sleep(PAUSE);
            continue;
        };
        if connections.load(Relaxed) >= CONNECTIONS_MAX {
            continue;
        }
        connections.fetch_add(1, Relaxed);
        let (job, counted) = (job.clone(), connections.clone());
        let started = spawn("connection", move || {
            // Whoever is at the other end may have gone: nothing to be done about that.
            let _ = converse(stream, &job);
            counted.fetch_sub(1, Relaxed);
        });
        if started.is_err() {
            connections.fetch_sub(1, Relaxed);
        }
    }
}

/// One request and its reply.
fn converse(mut stream: UnixStream, job: &Job) -> io::Result<()> {
    let deadline = Instant::now() + CONNECTION_TIME;
    let user = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    let reply = if !user.is_root() && user != rustix::process::geteuid() {
        Reply::Refused(
            "this job belongs to another user: run the command as that user or as root".to_owned(),
        )
    } else {
        match read_line(&mut stream, REQUEST_MAX, deadline) {
            Ok(line) => {
                protocol::parse(&line).map_or_else(Reply::Refused, |call| job.answer(&call))
            }
            Err(error) => Reply::Refused(format!("this is no request to overspill: {error}")),
        }
    };
    stream.set_write_timeout(Some(CONNECTION_TIME))?;
    stream.write_all(&protocol::line(&Answer { version: VERSION, reply }))
}

/// Reads up to the end of a line, which is left out. What has come by the deadline counts, also if
/// this process did not run meanwhile.
fn read_line(stream: &mut UnixStream, longest: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut line, mut is_late) = (Vec::new(), false);
    let mut part = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if is_late {
            return Err(io::Error::new(ErrorKind::TimedOut, "it did not come in time"));
        }
        is_late = left.is_zero();
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let count = match stream.read(&mut part) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it has no end")),
            Ok(count) => count,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        line.extend_from_slice(&part[..count]);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
        if line.len() >= longest {
            return Err(io::Error::new(ErrorKind::InvalidData, "it is too long"));
        }
    }
}

/// A job that was found.
#[derive(Debug)]
pub struct Found {
    directory: SocketDirectory,
    /// The process of its `overspill run`.
    launcher: u32,
    /// The process that the user named.
    pid: u32,
}

/// Finds the job that process `pid` is of, or runs.
pub fn find(pid: u32) -> Result<Found, Failure> {
    leftovers::sweep();
    let user = rustix::process::geteuid().as_raw();
    let owner = fs::metadata(format!("/proc/{pid}")).ok().map(|process| process.uid());
    // 1. Where sockets may be.
    let owners: Vec<_> = owner.into_iter().chain([user]).collect();
    let mut denied = false;
    let mut stale = false;
    let directories: Vec<_> = places(pid, &owners)
        .into_iter()
        .filter_map(|(path, is_own)| {
            let opened = SocketDirectory::open(&path, &owners);
            denied |=
                opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
            Some((opened.ok()?, is_own))
        })
        .collect();
    // 2. A process with a socket is an `overspill run`; any other is looked for in all jobs.
    for (directory, is_own) in directories {
        let mut launchers = directory.sockets();
        launchers.sort_by_key(|launcher| *launcher != pid);
        for launcher in launchers {
            match exchange(&directory, launcher, pid, Request::Budget) {
                Ok(Reply::NotMine) => {}
                Ok(_) => return Ok(Found { directory, launcher, pid }),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    // Its process was killed: nobody listens there any more.
                    if is_own {
                        directory.sweep();
                    }
                    stale |= launcher == pid && is_own;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if launcher == pid => return Err(cannot_reach(pid, &error)),
                Err(error) => denied |= error.kind() == ErrorKind::PermissionDenied,
            }
        }
    }
    // 3. Why not.
    Err(Failure::failed(match owner {
        _ if stale => format!(
            "the job of process {pid} has ended; its socket, which it left behind, is removed now"
        ),
        None => {
            format!("there is no process {pid}: give that of `overspill run`, or one of its job")
        }
        Some(owner) if denied || owner != user && user != 0 => {
            format!(
                "process {pid} belongs to user {owner}, whose jobs you may not reach: run this as \
                 that user or as root"
            )
        }
        Some(_) => format!(
            "process {pid} is not of a job of `overspill run`, or its control socket is elsewhere: \
             set OVERSPILL_RUNTIME_DIR as it was when the job was started"
        ),
    }))
}

/// Directories of sockets that may lead to a job of process `pid`, and whether this user, the last
/// of `users`, has chosen it. Only there is anything changed: what is in the environment of a
/// process is the choice of its user.
fn places(pid: u32, users: &[u32]) -> Vec<(PathBuf, bool)> {
    // Where the job's own variables say, if they can be read; then where ours say.
    let theirs = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let theirs = Variables::read(|name| variable(&theirs, name));
    let ours = Variables::read(|name| std::env::var_os(name));
    let own: Vec<_> = users
        .last()
        .into_iter()
        .flat_map(|user| [ours.directories(*user), vec![default_directory(*user)]].concat())
        .collect();
    let mut paths: Vec<(PathBuf, bool)> = Vec::new();
    for user in users.iter().copied() {
        let rest = [default_directory(user), format!("/run/user/{user}/overspill").into()];
        let named = [theirs.directories(user), ours.directories(user), rest.into()].concat();
        for path in named {
            if paths.iter().all(|(other, _)| *other != path) {
                let is_own = own.contains(&path);
                paths.push((path, is_own));
            }
        }
    }
    paths
}

/// Finds the one job of this user that runs.
pub fn find_only() -> Result<Found, Failure> {
    let jobs = find_all();
    match jobs.as_slice() {
        [] => Err(Failure::failed(
            "no job of yours runs: start one with `overspill run`, or name another user's with \
             --pid PID",
        )),
        [job] => find(job.launcher),
        several => {
            let named = |job: &Found| match command(job.launcher) {
                name if name.is_empty() => job.launcher.to_string(),
                name => format!("{} ({name})", job.launcher),
            };
            let list: Vec<String> = several.iter().map(named).collect();
            Err(Failure::failed(format!(
                "several jobs run: name one of them with --pid: {}",
                list.join(", ")
            )))
        }
    }
}

/// All jobs of this user that run, by number.
pub fn find_all() -> Vec<Found> {
    leftovers::sweep();
    let user = rustix::process::geteuid().as_raw();
    let ours = Variables::read(|name| std::env::var_os(name));
    let mut jobs = Vec::new();
    for path in ours.directories(user) {
        let Ok(directory) = SocketDirectory::open(&path, &[user]) else { continue };
        // One that was killed leaves a socket at which nobody listens.
        directory.sweep();
        let launchers = directory.sockets().into_iter();
        jobs.extend(launchers.filter(|launcher| directory.connect(*launcher).is_ok()).filter_map(
            |launcher| {
                let directory = SocketDirectory::open(&path, &[user]).ok()?;
                Some(Found { directory, launcher, pid: launcher })
            },
        ));
    }
    jobs.sort_unstable_by_key(Found::launcher);
    jobs.dedup_by_key(|job| job.launcher);
    jobs
}

/// What a job runs, as far as it is to be seen.
fn command(launcher: u32) -> String {
    let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"))
        .unwrap_or_default();
    let child = children.split_whitespace().next().unwrap_or("");
    match fs::read_to_string(format!("/proc/{child}/comm")) {
        Ok(name) if !child.is_empty() => printable(name.trim_end()),
        _ => String::new(),
    }
}

/// Sends a request to a job.
pub fn ask(found: &Found, request: Request) -> Result<Reply, Failure> {
    let ended = || Failure::failed(format!("the job of process {} has ended meanwhile", found.pid));
    ask_while_it_runs(found, request)?.ok_or_else(ended)
}

/// The same; nothing once the job has ended.
pub fn ask_while_it_runs(found: &Found, request: Request) -> Result<Option<Reply>, Failure> {
    match exchange(&found.directory, found.launcher, found.pid, request) {
        Ok(reply) => Ok(Some(reply)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Ok(None),
            // It ended while it was asked.
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                if found.directory.connect(found.launcher).is_err() =>
            {
                Ok(None)
            }
            _ => Err(cannot_reach(found.launcher, &error)),
        },
    }
}

/// What it means that a reply is not the one that was asked for.
pub fn unexpected(reply: Reply) -> Failure {
    Failure::failed(match reply {
        Reply::Refused(sentence) => printable(&sentence),
        Reply::NotMine => "the process that was named has ended meanwhile".to_owned(),
        _ => "the job gives another answer than it was asked for: use the same overspill for both"
            .to_owned(),
    })
}

fn cannot_reach(pid: u32, error: &io::Error) -> Failure {
    Failure::failed(match error.kind() {
        ErrorKind::PermissionDenied => {
            format!(
                "the job of process {pid} is not yours to reach: run this as its user or as root"
            )
        }
        _ => format!(
            "the job of process {pid} does not answer ({error}): it may be stopped, then continue \
             it"
        ),
    })
}

fn exchange(
    directory: &SocketDirectory,
    launcher: u32,
    pid: u32,
    request: Request,
) -> io::Result<Reply> {
    let mut stream = directory.connect(launcher)?;
    stream.set_write_timeout(Some(REPLY_TIME))?;
    // Who is turned away finds the answer and a closed connection: the answer counts.
    let sent = stream.write_all(&protocol::line(&Call { version: VERSION, pid, request }));
    sent.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })?;
    let line = read_line(&mut stream, REPLY_MAX, Instant::now() + REPLY_TIME)?;
    Ok(protocol::parse_answer(&line)?.reply)
}

/// A variable in the form of /proc/PID/environ.
fn variable(environment: &[u8], name: &str) -> Option<OsString> {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.find_map(|variable| {
        let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(OsString::from_vec(value.to_vec()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rundir::RunDir;
    use overspill::units::Bytes;
    use std::sync::Mutex;

    /// A job in a directory of its own.
    fn open(name: &str) -> (Control, std::path::PathBuf) {
        let dir =
            std::env::temp_dir().join(format!("overspill-control-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let run_dir = Arc::new(Mutex::new(RunDir::create(None).unwrap()));
        let job = Job::create(&run_dir, Bytes(64 << 20), &[]).unwrap();
        let variables = Variables { own: Some(dir.join("sockets").into()), xdg: None };
        (Control::open(&Arc::new(job), &variables).unwrap(), dir)
    }

    fn said(control: &Control, bytes: &[u8]) -> String {
        let mut stream = control.directory.connect(std::process::id()).unwrap();
        // What is too long may be refused before all of it was sent.
        let _ = stream.write_all(bytes);
        let line = read_line(&mut stream, REPLY_MAX, Instant::now() + REPLY_TIME).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_request_is_answered_and_garbage_refused() {
        let (control, dir) = open("answers");
        let pid = std::process::id();
        let request = Request::Set { memory_bytes: 16 << 20 };
        let reply = exchange(&control.directory, pid, pid, request).unwrap();
        assert!(matches!(reply, Reply::Budget(budget) if budget.before_bytes == 64 << 20));
        for garbage in
            [&b"hello\n"[..], b"\n", b"\0\xff\n", b"{}\n", b"[[[[\n", b"{\"version\":9}\n"]
        {
            assert!(said(&control, garbage).contains("\"refused\""), "{garbage:?}");
        }
        assert!(said(&control, &vec![b'x'; REQUEST_MAX + 1]).contains("too long"));
        assert!(matches!(
            exchange(&control.directory, pid, pid, Request::Budget).unwrap(),
            Reply::Budget(_)
        ));
        drop(control);
        assert_eq!(fs::read_dir(dir.join("sockets")).unwrap().count(), 0, "the socket is gone");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn whoever_says_nothing_keeps_nobody_from_being_answered() {
        let (control, dir) = open("silence");
        let pid = std::process::id();
        let silent: Vec<_> =
            (0..CONNECTIONS_MAX - 1).map(|_| control.directory.connect(pid).unwrap()).collect();
        assert!(matches!(
            exchange(&control.directory, pid, pid, Request::Budget).unwrap(),
            Reply::Budget(_)
        ));
        for mut stream in silent {
            let line = read_line(&mut stream, REPLY_MAX, Instant::now() + 3 * REPLY_TIME).unwrap();
            assert!(String::from_utf8(line).unwrap().contains("did not come in time"));
        }
        drop(control);
        fs::remove_dir_all(dir).unwrap();
    }

    /// Where there are more processes than processors, whoever asks may not run for a while.
    #[test]
    fn an_answer_that_has_come_counts_also_when_it_is_read_late() {
        let (mut asks, mut answers) = UnixStream::pair().unwrap();
        let late = Instant::now();
        answers.write_all(b"here\n").unwrap();
        assert_eq!(read_line(&mut asks, REPLY_MAX, late).unwrap(), b"here");
        let silent = read_line(&mut asks, REPLY_MAX, late).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn variables_are_found_in_an_environment() {
        let environment = b"A=1\0XDG_RUNTIME_DIR_X=no\0XDG_RUNTIME_DIR=/run/user/7\0";
        assert_eq!(variable(environment, "XDG_RUNTIME_DIR"), Some("/run/user/7".into()));
        assert_eq!(variable(environment, "B"), None);
    }
}
