//! Swap devices as the user names them, checked and made absolute.

use crate::failure::Failure;
use overspill::config::SwapSpec;
use overspill::device;
use overspill::units::Bytes;
use rustix::fs::{Access, Mode, OFlags, access, open, statfs, statvfs};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Types of file systems that keep their files in memory: statfs(2) names tmpfs, ramfs and
/// hugetlbfs so.
pub const IN_MEMORY: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// The default: `$TMPDIR`, else /var/tmp; `None` if neither is a writable directory on a disk.
pub fn default_directory(tmpdir: Option<OsString>) -> Option<PathBuf> {
    let tmpdir = tmpdir.filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let usable = |dir: &PathBuf| check(&SwapSpec::new(dir)).is_ok_and(|_| dir.is_dir());
    tmpdir.into_iter().chain([PathBuf::from("/var/tmp")]).find(usable)
}

/// Checks that the device can be used, and returns it with an absolute path that survives its
/// textual form.
pub fn check(spec: &SwapSpec) -> Result<SwapSpec, Failure> {
    let name = spec.path.display();
    if spec.size.is_some_and(|size| size.pages() == 0) {
        return Err(Failure::usage(format!(
            "swap '{spec}' has no room for a page: give it a size such as 4G"
        )));
    }
    if spec.ram.is_some() {
        return Ok(spec.clone());
    }
    let path = fs::canonicalize(&spec.path).map_err(|error| {
        Failure::own(format!(
            "cannot use swap '{name}' ({error}): name an existing directory, file or block device"
        ))
    })?;
    let metadata = fs::metadata(&path)
        .map_err(|error| Failure::own(format!("cannot look at swap '{name}': {error}")))?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        if spec.insecure {
            return Err(Failure::usage(format!(
                "swap '{spec}' is a directory, whose file nobody else can open: leave insecure=on \
                 away"
            )));
        }
        check_in_memory(&path)?;
        access(&path, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
            Failure::own(format!("cannot make files in the swap directory '{name}': {error}"))
        })?;
        check_room(&path, spec.size, 0)?;
    } else if kind.is_file() {
        check_in_memory(&path)?;
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        if kernel_swaps(&swaps).any(|used| used == path) {
            return Err(in_use(&path));
        }
        open_for_io(&path, OFlags::empty())?;
        check_unchanged(&path, spec)?;
        check_room(&path, spec.size, metadata.blocks() * 512)?;
    } else if kind.is_block_device() {
        // O_EXCL on a block device: refused while it is mounted or in use as swap.
        let device = fs::File::from(open_for_io(&path, OFlags::EXCL)?);
        check_unchanged(&path, spec)?;
        let capacity = rustix::fs::seek(&device, rustix::fs::SeekFrom::End(0)).unwrap_or(0);
        if spec.size.is_some_and(|size| size.0 > capacity) {
            let capacity = Bytes(capacity);
            return Err(Failure::own(format!(
                "swap '{spec}' is larger than the device: it has {capacity}"
            )));
        }
    } else {
        return Err(Failure::own(format!(
            "swap '{name}' is neither a directory, a file nor a block device"
        )));
    }
    let spec = SwapSpec { path, ..spec.clone() };
    survives_as_text(&spec)?;
    Ok(spec)
}

fn in_use(path: &Path) -> Failure {
    Failure::own(format!(
        "swap '{}' is in use by the kernel (mounted, or swap): name another",
        path.display()
    ))
}

fn open_for_io(path: &Path, flags: OFlags) -> Result<rustix::fd::OwnedFd, Failure> {
    open(path, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty()).map_err(|error| match error {
        Errno::BUSY | Errno::TXTBSY => in_use(path),
        _ => Failure::own(format!("cannot read and write swap '{}': {error}", path.display())),
    })
}

/// Whether it holds somebody's data, or others could read what comes to be on it.
fn check_unchanged(path: &Path, spec: &SwapSpec) -> Result<(), Failure> {
    device::check_unchanged(&SwapSpec { path: path.into(), ..spec.clone() })
        .map_err(|error| Failure::own(error.to_string()))
}

fn check_in_memory(path: &Path) -> Result<(), Failure> {
    match statfs(path) {
        Ok(fs) if IN_MEMORY.contains(&(fs.f_type as u64 & 0xffff_ffff)) => {
            Err(Failure::own(format!(
                "swap '{}' lies on tmpfs, which is memory itself: name a directory on a disk, \
                 such as /var/tmp",
                path.display()
            )))
        }
        _ => Ok(()),
    }
}

/// A size that the file system cannot hold would show as write errors much later; `own` bytes are
/// there already.
fn check_room(path: &Path, size: Option<Bytes>, own: u64) -> Result<(), Failure> {
    let (Some(size), Ok(fs)) = (size, statvfs(path)) else { return Ok(()) };
    let room = Bytes(fs.f_bavail * fs.f_frsize + own);
    if size > room {
        let path = path.display();
        return Err(Failure::own(format!(
            "swap '{path}' has room for {room}, not for {size}: give a smaller size"
        )));
    }
    Ok(())
}

/// Files and devices in /proc/swaps.
fn kernel_swaps(text: &str) -> impl Iterator<Item = PathBuf> {
    text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(PathBuf::from)
}

/// The preload library reads the device back from a comma-separated list.
pub fn survives_as_text(spec: &SwapSpec) -> Result<(), Failure> {
    if spec.to_string().parse().as_ref() == Ok(spec) {
        return Ok(());
    }
    Err(Failure::own(format!(
        "swap '{}' cannot be named in a list: choose a path of UTF-8 without commas that does not \
         end in a colon and a digit",
        spec.path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn spec(text: &str) -> SwapSpec {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        check(&spec(text)).unwrap_err().sentence
    }

    /// A directory of the build, which is on a disk.
    fn scratch(name: &str) -> PathBuf {
        let dir =
            std::env::current_exe().unwrap().parent().unwrap().join(format!("swap-test-{name}"));
        fs::create_dir_all(&dir).unwrap();
        dir.canonicalize().unwrap()
    }

    #[test]
    fn directories_and_files_become_absolute() {
        let dir = scratch("absolute");
        let file = dir.join("file");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let detour = dir.join("..").join(dir.file_name().unwrap());
        assert_eq!(
            check(&SwapSpec { size: Some(Bytes(8192)), prio: Some(7), ..SwapSpec::new(detour) })
                .unwrap()
                .to_string(),
            format!("{}:8192,prio=7", dir.display())
        );
        assert_eq!(check(&SwapSpec::new(&file)).unwrap().path, file);
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_the_reason() {
        assert!(refusal("/no/such/place").contains("name an existing directory"));
        assert!(refusal("/dev/null").contains("neither a directory"));
        assert!(refusal("/var/tmp:0").contains("no room for a page"));
        assert!(refusal("ram:0").contains("no room for a page"));
        assert!(refusal("/var/tmp:4000T").contains("give a smaller size"));
        if check_in_memory(Path::new("/dev/shm")).is_err() {
            assert!(refusal("/dev/shm").contains("memory itself"));
        }
    }

    #[test]
    fn paths_that_a_list_cannot_carry_are_refused() {
        let dir = scratch("comma").join("a,b");
        fs::create_dir_all(&dir).unwrap();
        assert!(check(&SwapSpec::new(dir)).unwrap_err().sentence.contains("cannot be named"));
        let dir = scratch("colon").join("a:5");
        fs::create_dir_all(&dir).unwrap();
        assert!(check(&SwapSpec::new(dir)).unwrap_err().sentence.contains("cannot be named"));
    }

    #[test]
    fn the_default_passes_over_memory_and_nonsense() {
        assert_eq!(default_directory(Some("/no/such/place".into())), default_directory(None));
        let dir = scratch("default");
        assert_eq!(default_directory(Some(dir.clone().into())), Some(dir));
    }

    #[test]
    fn kernel_swaps_are_the_first_column() {
        let text = "Filename\t\tType\t\tSize\n/swapfile                file\t1\t0\t-2\n/dev/zram0 \
                    partition 1 0 5\n";
        assert_eq!(
            kernel_swaps(text).collect::<Vec<_>>(),
            [Path::new("/swapfile"), Path::new("/dev/zram0")]
        );
    }
}
