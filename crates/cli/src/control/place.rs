//! Where control sockets lie: `PID.sock` in a directory that belongs to one user.
//!
//! The directory is `$OVERSPILL_RUNTIME_DIR`; without it `$XDG_RUNTIME_DIR/overspill`, else
//! `/run/overspill` for root, else `/tmp/overspill-UID`. It is used only if it belongs to the user
//! and nobody else may write to it. Sockets are named through the open directory, so that what was
//! checked is what is used, and so that its path may be longer than the address of a socket.

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::{fs, io};

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
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens a directory that belongs to one of `owners`.
    pub fn open(path: &Path, owners: &[u32]) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let status = rustix::fs::fstat(&fd)?;
        if !owners.contains(&status.st_uid) {
            return Err(io::Error::other(format!("it belongs to user {}", status.st_uid)));
        }
        if status.st_mode & 0o022 != 0 {
            return Err(io::Error::other("others may write to it"));
        }
        Ok(Directory { fd, path: path.into() })
    }

    /// Opens the directory of `user`, making it if need be, and listens there as `pid`.
    pub fn listen(path: &Path, user: u32, pid: u32) -> io::Result<(Directory, UnixListener)> {
        let mut tries = 0..3;
        loop {
            match rustix::fs::mkdirat(CWD, path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let bound = Directory::open(path, &[user])
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
        if self.connect(pid).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let unnamed = format!(".{pid}.new");
        let _ = rustix::fs::unlinkat(&self.fd, &unnamed, AtFlags::empty());
        let listener = UnixListener::bind(self.at(&unnamed))?;
        rustix::fs::chmodat(&self.fd, &unnamed, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        // A process of this number that was killed may have left its socket.
        rustix::fs::renameat(&self.fd, &unnamed, &self.fd, name(pid))?;
        Ok(listener)
    }

    /// Connects to the socket of `pid`.
    pub fn connect(&self, pid: u32) -> io::Result<UnixStream> {
        UnixStream::connect(self.at(&name(pid)))
    }

    /// Removes the socket of `pid`.
    pub fn remove(&self, pid: u32) {
        let _ = rustix::fs::unlinkat(&self.fd, name(pid), AtFlags::empty());
    }

    /// Removes the directory, if nothing is in it.
    pub fn remove_if_empty(&self) {
        let _ = fs::remove_dir(&self.path);
    }

    /// Processes whose sockets are here.
    pub fn sockets(&self) -> Vec<u32> {
        let entries = fs::read_dir(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
            .into_iter()
            .flatten()
            .flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".sock")?.parse().ok())
            .collect()
    }

    fn at(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string()).join(name)
    }
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
            std::env::temp_dir().join(format!("overspill-place-{}-{name}", std::process::id()));
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
        let (dir, listener) = Directory::listen(&path, user(), 7).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("7.sock"))), (0o700, 0o600));
        dir.connect(7).unwrap();
        assert_eq!(dir.connect(8).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(
            Directory::listen(&path, user(), 7).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        drop(listener);
        assert_eq!(dir.connect(7).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let again = Directory::listen(&path, user(), 7).unwrap();
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
        let dir = Directory::open(&path, &[user()]).unwrap();
        std::thread::scope(|scope| {
            let listen = |pid| Directory::listen(&path, user(), pid).unwrap();
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
        let refused =
            |path: &Path, user| Directory::listen(path, user, 7).map(drop).unwrap_err().to_string();
        assert!(refused(&dir, user() + 1).contains("it belongs to user"));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&dir, user()).contains("others may write"));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&dir, dir.join("link")).unwrap();
        assert!(Directory::open(&dir.join("link"), &[user()]).is_err(), "a link may lead anywhere");
        fs::remove_dir_all(dir).unwrap();
    }
}
