//! Where control sockets lie: `PID.sock` in a directory that belongs to one user.
//!
//! The directory is `$OVERSPILL_RUNTIME_DIR`; without it `$XDG_RUNTIME_DIR/overspill`, else
//! `/run/overspill` for root, else `/tmp/overspill-UID`. It is used only if it belongs to the user
//! and nobody else may write to it. Sockets are named through the open directory, so that what was
//! checked is what is used, and so that its path may be longer than the address of a socket. A
//! socket is one of its owner's, at which that user listens.
//!
//! A socket is removed, and gets its name, under a lock on the directory: so none is taken for dead
//! that another process is just making.

use overspill_os::directory::{self, Unfit};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Attempts to lock a directory, a second in all: who may only read it can lock it for ever.
const LOCK_TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// The variables that decide.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// OVERSPILL_RUNTIME_DIR.
    pub own: Option<OsString>,
    /// XDG_RUNTIME_DIR.
    pub xdg: Option<OsString>,
}

impl Variables {
    /// Those that `get` finds.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Variables {
        let named = |name| get(name).filter(|value| !value.is_empty());
        Variables { own: named("OVERSPILL_RUNTIME_DIR"), xdg: named("XDG_RUNTIME_DIR") }
    }

    /// Those that a job of this user is to go by: without a directory of somebody else's, or one
    /// that others may write to; and a sentence about that.
    pub fn fit(self) -> (Variables, Option<String>) {
        let unfit = self.xdg.as_ref().and_then(|xdg| {
            let path = fs::canonicalize(xdg).ok()?;
            let unfit = directory::Directory::trusted(path.as_path()).err()?;
            let sentence = format!(
                "XDG_RUNTIME_DIR is not used, as '{}' is not this user's alone ({unfit}): set it \
                 to a directory of your own",
                path.display()
            );
            (!matches!(unfit, Unfit::Errno(_))).then_some(sentence)
        });
        match unfit {
            Some(sentence) => (Variables { xdg: None, ..self }, Some(sentence)),
            None => (self, None),
        }
    }

    /// Directories in which a user's sockets may lie, the best first.
    pub fn directories(&self, user: u32) -> Vec<PathBuf> {
        if let Some(own) = &self.own {
            return vec![own.into()];
        }
        let xdg = self
            .xdg
            .iter()
            .map(PathBuf::from)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join("overspill"));
        xdg.chain([default_directory(user)]).collect()
    }
}

/// Where a user's sockets lie if no variable says anything else.
pub fn default_directory(user: u32) -> PathBuf {
    if user == 0 { "/run/overspill".into() } else { format!("/tmp/overspill-{user}").into() }
}

/// A directory of sockets, open.
#[derive(Debug)]
pub struct SocketDirectory {
    directory: directory::Directory,
    /// Where it is, and its name there.
    parent: directory::Directory,
    name: OsString,
}

impl SocketDirectory {
    /// Opens a directory that belongs to one of `owners`.
    pub fn open(path: &Path, owners: &[u32]) -> io::Result<SocketDirectory> {
        let (parent, name) = split(path)?;
        SocketDirectory::open_in(parent, name, owners)
    }

    fn open_in(
        parent: directory::Directory,
        name: &OsStr,
        owners: &[u32],
    ) -> io::Result<SocketDirectory> {
        let directory = parent.directory(name)?;
        directory.check(|owner| owners.contains(&owner))?;
        if directory.is_open_to_others() {
            return Err(Unfit::Writable.into());
        }
        Ok(SocketDirectory { directory, parent, name: name.into() })
    }

    /// Opens the directory of `user`, making it if need be, and listens there as `pid`.
    pub fn listen(path: &Path, user: u32, pid: u32) -> io::Result<(SocketDirectory, UnixListener)> {
        let mut tries = 0..3;
        loop {
            let (parent, name) = split(path)?;
            match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let bound = SocketDirectory::open_in(parent, name, &[user])
                .and_then(|dir| dir.bind(pid).map(|listener| (dir, listener)));
            match bound {
                // Another run has just ended and taken the empty directory away.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries.next().is_some() => {
                }
                bound => return bound,
            }
        }
    }

    /// Who finds the socket's name can connect: it gets that name when it listens.
    fn bind(&self, pid: u32) -> io::Result<UnixListener> {
        let _lock = self.lock(LOCK_TRIES);
        if self.connect(pid).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let unnamed = format!(".{pid}.new");
        self.directory.remove(&unnamed);
        let listener = UnixListener::bind(self.directory.path().join(&unnamed))?;
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::chmodat(&self.directory, &unnamed, mode, AtFlags::empty())?;
        // A process of this number that was killed may have left its socket.
        self.directory.rename(&unnamed, &name(pid))?;
        Ok(listener)
    }

    /// Locks the directory; nothing if it cannot be had.
    fn lock(&self, tries: u32) -> Option<Lock<'_>> {
        for attempt in 0..tries {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            if flock(&self.directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Some(Lock(self));
            }
        }
        None
    }

    /// Connects to the socket of `pid`.
    pub fn connect(&self, pid: u32) -> io::Result<UnixStream> {
        self.connect_to(&name(pid))
    }

    /// What is no socket of the directory's owner, such as a link, is as if it were not there.
    fn connect_to(&self, name: &str) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&self.directory, name, flags, Mode::empty())?;
        let status = rustix::fs::fstat(&socket)?;
        let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
        if !is_socket || status.st_uid != self.directory.owner() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd()))?;
        match rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw() {
            user if user == self.directory.owner() => Ok(stream),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Removes the socket of `pid`.
    pub fn remove(&self, pid: u32) {
        self.directory.remove(&name(pid));
    }

    /// Removes the sockets at which nobody listens any more: their processes were killed.
    pub fn sweep(&self) {
        let Some(_lock) = self.lock(1) else { return };
        let is_socket = |name: &String| {
            let of_run = name.strip_suffix(".sock");
            let unnamed = || name.strip_prefix('.')?.strip_suffix(".new");
            of_run.or_else(unnamed).is_some_and(|pid| pid.parse::<u32>().is_ok())
        };
        // At its own somebody does, who would answer to being asked.
        let own = name(std::process::id());
        for name in self.directory.names().filter(|name| is_socket(name) && *name != own) {
            let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if self.connect_to(&name).as_ref().is_err_and(refused) {
                self.directory.remove(&name);
            }
        }
    }

    /// Removes the directory, if nothing is in it.
    pub fn remove_if_empty(&self) {
        let _ = rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }

    /// Processes whose sockets are here.
    pub fn sockets(&self) -> Vec<u32> {
        let pid = |name: String| name.strip_suffix(".sock")?.parse().ok();
        self.directory.names().filter_map(pid).collect()
    }
}

/// A directory that is locked until this goes.
#[derive(Debug)]
struct Lock<'a>(&'a SocketDirectory);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = flock(&self.0.directory, FlockOperation::Unlock);
    }
}

/// The directory that a path's last part is in, held, and that part.
fn split(path: &Path) -> io::Result<(directory::Directory, &OsStr)> {
    let (parent, name) = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
        (Some(parent), Some(name)) => (parent, name),
        _ => (path, OsStr::new(".")),
    };
    Ok((directory::Directory::open(fs::canonicalize(parent)?.as_path())?, name))
}

fn name(pid: u32) -> String {
    format!("{pid}.sock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("overspill-sockets-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn the_variables_decide() {
        let variables = |own: Option<&str>, xdg: Option<&str>| {
            Variables::read(|name| {
                let value = if name == "XDG_RUNTIME_DIR" { xdg } else { own };
                value.map(OsString::from)
            })
        };
        let shown = |variables: Variables, user| -> Vec<_> {
            variables.directories(user).iter().map(|dir| dir.display().to_string()).collect()
        };
        assert_eq!(shown(variables(Some("/x"), Some("/run/user/7")), 7), ["/x"]);
        assert_eq!(
            shown(variables(None, Some("/run/user/7")), 7),
            ["/run/user/7/overspill", "/tmp/overspill-7"]
        );
        assert_eq!(shown(variables(Some(""), Some("not/absolute")), 7), ["/tmp/overspill-7"]);
        assert_eq!(shown(variables(None, None), 0), ["/run/overspill"]);
    }

    #[test]
    fn a_socket_is_private_and_replaces_a_dead_one() {
        let parent = scratch("private");
        // Longer than the address of a socket.
        let path = parent.join("d".repeat(150));
        let (dir, listener) = SocketDirectory::listen(&path, user(), 7).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("7.sock"))), (0o700, 0o600));
        dir.connect(7).unwrap();
        assert_eq!(dir.connect(8).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(
            SocketDirectory::listen(&path, user(), 7).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        drop(listener);
        assert_eq!(dir.connect(7).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let again = SocketDirectory::listen(&path, user(), 7).unwrap();
        fs::write(path.join("x.sock"), "").unwrap();
        assert_eq!(again.0.sockets(), [7]);
        again.0.remove(7);
        again.0.remove_if_empty();
        assert!(path.exists(), "something else is in it");
        fs::remove_file(path.join("x.sock")).unwrap();
        again.0.remove_if_empty();
        assert!(!path.exists());
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_socket_that_is_seen_can_be_reached() {
        let path = scratch("seen");
        let dir = SocketDirectory::open(&path, &[user()]).unwrap();
        std::thread::scope(|scope| {
            let listen = |pid| SocketDirectory::listen(&path, user(), pid).unwrap();
            let listens = scope.spawn(move || (0..200).map(listen).collect::<Vec<_>>());
            for pid in 0..200 {
                let reached = loop {
                    match dir.connect(pid) {
                        Err(error)
                            if error.kind() == io::ErrorKind::NotFound
                                && !listens.is_finished() => {}
                        reached => break reached,
                    }
                };
                // The last may have been made between the look and the question whether all are.
                reached.or_else(|_| dir.connect(pid)).unwrap();
            }
        });
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn directories_of_others_are_not_used() {
        let dir = scratch("others");
        let refused = |path: &Path, user| {
            SocketDirectory::listen(path, user, 7).map(drop).unwrap_err().to_string()
        };
        assert!(refused(&dir, user() + 1).contains("it belongs to user"));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&dir, user()).contains("others may write"));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&dir, dir.join("link")).unwrap();
        assert!(
            SocketDirectory::open(&dir.join("link"), &[user()]).is_err(),
            "a link may lead anywhere"
        );
        fs::remove_dir_all(dir).unwrap();
    }
}
