//! Directories that are held open: what was looked at is what is used, whatever others do meanwhile
//! to the path by which it was found. What is in one is named through it, and no link is followed.
//!
//! The directory of a run may have files of several users: root's can be written by whoever knows
//! its name, and is sticky. What all processes use of it is made by who starts the job, before
//! anybody else knows the name. So a file is the job's if it has the owner of the directory, and
//! was there before ([`Directory::open_shared`]); what a process makes for itself it makes anew
//! ([`Directory::replace_file`]). No locks.

use crate::units::Errno;
use crate::{confined, descriptors};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::path::Arg;
use rustix::process::geteuid;
use std::ffi::CString;
use std::fmt;
use std::path::PathBuf;

/// The user that stands for all who have no number in a user namespace (`overflowuid`).
const UNMAPPED: u32 = 65534;

/// A directory, held open.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    owner: u32,
    mode: u32,
}

/// Why a directory is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// It cannot be opened.
    Errno(Errno),
    /// It belongs to this user.
    Owner(u32),
    /// Others may write to it, and what they may remove there is not only their own.
    Writable,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Errno(errno) => errno.fmt(f),
            Unfit::Owner(user) => write!(f, "it belongs to user {user}"),
            Unfit::Writable => f.write_str("others may write to it"),
        }
    }
}

impl From<Unfit> for std::io::Error {
    fn from(unfit: Unfit) -> std::io::Error {
        match unfit {
            Unfit::Errno(errno) => errno.into(),
            unfit => std::io::Error::other(unfit.to_string()),
        }
    }
}

/// Whether a user may change what this process uses: itself, and root.
pub fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw() || user == UNMAPPED && has_unmapped_users()
}

/// Whether root may be among the users that have no number here.
fn has_unmapped_users() -> bool {
    let mut text = [0; 64];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let map =
        descriptors::open_path(|| rustix::fs::open(c"/proc/self/uid_map", flags, Mode::empty()));
    let read = map.and_then(|map| rustix::io::read(&map, &mut text)).unwrap_or(0);
    let fields = std::str::from_utf8(&text[..read]).unwrap_or_default().split_ascii_whitespace();
    read > 0 && !fields.eq(["0", "0", "4294967295"])
}

impl Directory {
    /// Opens a directory; the last part of the path is no link.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: impl Arg + Copy) -> Result<Directory, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Directory::of(descriptors::open_path(|| rustix::fs::open(path, flags, Mode::empty()))?)
    }

    /// Opens a directory in which nobody but root and this user can change what is theirs.
    ///
    /// # Errors
    /// Why it is not used.
    pub fn trusted(path: impl Arg + Copy) -> Result<Directory, Unfit> {
        let directory = Directory::open(path).map_err(Unfit::Errno)?;
        directory.check(is_trusted).map(|()| directory)
    }

    fn of(fd: OwnedFd) -> Result<Directory, Errno> {
        let Stat { st_uid: owner, st_mode: mode, .. } = rustix::fs::fstat(&fd)?;
        Ok(Directory { fd, owner, mode })
    }

    /// Whether nobody else can change what is in it but what is his own.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, is_trusted: impl FnOnce(u32) -> bool) -> Result<(), Unfit> {
        let mode = Mode::from_raw_mode(self.mode);
        match () {
            () if !is_trusted(self.owner) => Err(Unfit::Owner(self.owner)),
            () if self.is_open_to_others() && !mode.contains(Mode::SVTX) => Err(Unfit::Writable),
            () => Ok(()),
        }
    }

    /// Whether others may make files in it.
    pub fn is_open_to_others(&self) -> bool {
        Mode::from_raw_mode(self.mode).intersects(Mode::WGRP | Mode::WOTH)
    }

    /// Whose it is.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// The same directory, held once more.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn duplicate(&self) -> Result<Directory, Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?;
        Ok(Directory { fd, ..*self })
    }

    /// A directory in it.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn directory(&self, name: impl Arg + Copy) -> Result<Directory, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        Directory::of(descriptors::open_path(open)?)
    }

    /// Makes a directory in it, with exactly these rights.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn make_directory(&self, name: &str, mode: u32) -> Result<Directory, Errno> {
        confined::allows_paths()?;
        rustix::fs::mkdirat(&self.fd, name, Mode::RWXU)?;
        let made = self.directory(name)?;
        if made.owner != geteuid().as_raw() {
            return Err(Errno::PERM);
        }
        rustix::fs::fchmod(&made.fd, Mode::from_raw_mode(mode))?;
        Ok(Directory { mode, ..made })
    }

    /// Makes a file in it, to read and write, with these rights.
    ///
    /// # Errors
    /// Those of open(2); EEXIST where there is anything of that name.
    pub fn make_file(&self, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = self.open_at(name, flags)?;
        // A program's own filter may not know that call: it is made only where others have rights.
        if mode & 0o077 != 0 {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        }
        Ok(file)
    }

    /// The same in the place of what has that name, as far as that may be removed.
    ///
    /// # Errors
    /// As [`Directory::make_file`].
    pub fn replace_file(&self, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
        self.remove(name);
        self.make_file(name, mode)
    }

    /// Opens a file that is there, whoever has made it.
    ///
    /// # Errors
    /// Those of open(2); EINVAL for anything else than a file.
    pub fn open_file(&self, name: impl Arg + Copy, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_checked(name, flags).map(|(file, _)| file)
    }

    /// Opens a file that all processes share.
    ///
    /// # Errors
    /// Those of open(2); EPERM for one that belongs to somebody else than the directory.
    pub fn open_shared(&self, name: impl Arg + Copy, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.open_checked(name, flags)? {
            (file, owner) if owner == self.owner => Ok(file),
            _ => Err(Errno::PERM),
        }
    }

    fn open_checked(&self, name: impl Arg + Copy, flags: OFlags) -> Result<(OwnedFd, u32), Errno> {
        let file = self.open_at(name, flags)?;
        let status = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => Ok((file, status.st_uid)),
            _ => Err(Errno::INVAL),
        }
    }

    fn open_at(&self, name: impl Arg + Copy, flags: OFlags) -> Result<OwnedFd, Errno> {
        const ALWAYS: OFlags =
            OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
        let mode = Mode::RUSR | Mode::WUSR;
        descriptors::open_path(|| rustix::fs::openat(&self.fd, name, flags | ALWAYS, mode))
    }

    /// What a link says that belongs to the owner of the directory.
    ///
    /// # Errors
    /// Those of readlink(2); EPERM for somebody else's.
    pub fn link_target(&self, name: &str) -> Result<CString, Errno> {
        confined::allows_paths()?;
        let status = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // Nobody else can remove it, so it is still that one when it is read.
        if status.st_uid != self.owner {
            return Err(Errno::PERM);
        }
        rustix::fs::readlinkat(&self.fd, name, Vec::new())
    }

    /// Makes a link in it.
    ///
    /// # Errors
    /// Those of symlink(2).
    pub fn make_link(&self, target: &str, name: &str) -> Result<(), Errno> {
        confined::allows_paths()?;
        rustix::fs::symlinkat(target, &self.fd, name)
    }

    /// Gives something in it another name, in the place of what has that.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        confined::allows_paths()?;
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
    }

    /// Removes a name that is no directory.
    pub fn remove(&self, name: &str) {
        let _ = confined::allows_paths()
            .and_then(|()| rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()));
    }

    /// Makes a sign: a directory, which can be seen and holds nothing.
    pub fn make_sign(&self, name: &str) {
        let _ =
            confined::allows_paths().and_then(|()| rustix::fs::mkdirat(&self.fd, name, Mode::RWXU));
    }

    /// Whether something has that name.
    pub fn has(&self, name: &str) -> bool {
        confined::allows_paths()
            .and_then(|()| rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW))
            .is_ok()
    }

    /// All names in it that are UTF-8.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        descriptors::names(&self.path()).into_iter().flatten()
    }

    /// A path that leads to it as long as it is held, for what takes none but paths.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("overspill-directory-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        path
    }

    fn fit(path: &Path) -> Result<(), Unfit> {
        Directory::open(path).map_err(Unfit::Errno)?.check(is_trusted)
    }

    #[test]
    fn directories_that_others_can_change_are_unfit() {
        let path = scratch("unfit");
        let with = |mode| {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            fit(&path)
        };
        assert_eq!([0o700, 0o755, 0o1777].map(with), [Ok(()); 3]);
        assert_eq!([0o775, 0o702].map(with), [Err(Unfit::Writable); 2]);
        with(0o700).unwrap();
        let theirs = Directory::open(&path).unwrap().check(|_| false);
        assert_eq!(theirs, Err(Unfit::Owner(geteuid().as_raw())));
        symlink(&path, path.join("link")).unwrap();
        assert!(matches!(fit(&path.join("link")), Err(Unfit::Errno(_))), "a link leads anywhere");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn nothing_in_it_leads_out_of_it() {
        let path = scratch("links");
        let inside = Directory::open(&path).unwrap();
        fs::write(path.join("victim"), "kept").unwrap();
        symlink("victim", path.join("link")).unwrap();
        fs::hard_link(path.join("victim"), path.join("hard")).unwrap();
        assert!(inside.open_file("link", OFlags::RDWR).is_err());
        assert_eq!(inside.make_file("link", 0o600).unwrap_err(), Errno::EXIST);
        for name in ["link", "hard"] {
            let made = inside.replace_file(name, 0o640).unwrap();
            assert_eq!(rustix::fs::fstat(&made).unwrap().st_mode & 0o7777, 0o640);
            rustix::fs::ftruncate(&made, 7).unwrap();
        }
        assert_eq!(fs::read(path.join("victim")).unwrap(), b"kept");
        inside.make_sign("sign");
        assert_eq!(inside.open_file("sign", OFlags::RDONLY).unwrap_err(), Errno::INVAL);
        // A name that is taken away does not lead to another place.
        let moved = path.with_extension("moved");
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        inside.make_file("late", 0o600).unwrap();
        assert!(moved.join("late").exists() && !path.join("late").exists());
        assert!(inside.names().any(|name| name == "late"));
        fs::remove_dir_all(path).unwrap();
        fs::remove_dir_all(moved).unwrap();
    }

    #[test]
    fn what_is_shared_has_the_owner_of_the_directory() {
        let path = scratch("shared");
        fs::write(path.join("file"), "").unwrap();
        symlink("/target", path.join("link")).unwrap();
        let inside = Directory::open(&path).unwrap();
        assert!(inside.open_shared("file", OFlags::RDONLY).is_ok());
        assert_eq!(inside.link_target("link").unwrap().to_str(), Ok("/target"));
        let theirs = Directory { owner: inside.owner + 1, ..inside };
        assert_eq!(theirs.open_shared("file", OFlags::RDONLY).unwrap_err(), Errno::PERM);
        assert_eq!(theirs.link_target("link").unwrap_err(), Errno::PERM);
        assert!(theirs.open_file("file", OFlags::RDONLY).is_ok());
        fs::remove_dir_all(path).unwrap();
    }
}
