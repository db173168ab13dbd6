//! From what the user named to an open device: kinds, sizes, and what must not be overwritten.

use super::error::SwapError;
use crate::base::{Bytes, PAGE_SIZE};
use crate::config::SwapSpec;
use crate::slot::SLOTS_MAX;
use overspill_os::Errno;
use overspill_os::io::{self, File, IoBuffer, Kind};
use std::path::Path;
use std::time::Duration;

/// Largest file made in a directory that was named without a size: 256 GiB, for which the slot table reserves 19 MiB
/// of address space.
pub const DIRECTORY_MAX: Bytes = Bytes(256 << 30);
/// Share of a filesystem's free space that is used at most, in percent: the rest is for everybody else.
const FREE_PERCENT: u64 = 95;
/// Smallest device: 1 MiB, one operation of the largest size.
const LEAST: Bytes = Bytes(1 << 20);
/// Pages at the start of a named device that are never used for slots: the header.
const HEADER_PAGES: u64 = 1;
/// What the header begins with.
const HEADER_MAGIC: &[u8] = b"overspill swap device 1\n";
/// How the header page of a kernel swap area ends (mkswap).
const KERNEL_MAGIC: &[u8] = b"SWAPSPACE2";
/// Attempts to claim a block device: other processes of the job claim it for a moment too.
const CLAIM_TRIES: u32 = 10;
const CLAIM_PAUSE: Duration = Duration::from_millis(5);

/// A device as opened.
#[derive(Debug)]
pub struct Opened {
    pub file: File,
    /// Size in pages.
    pub pages: u64,
    /// Pages at the start that are not for slots.
    pub reserved_pages: u64,
    /// Whether other processes may use it too, so that extents must be leased.
    pub shared: bool,
    /// Whether disk space must be set aside before it is written.
    pub sparse: bool,
}

/// Opens what `spec` names, and makes it if it is a file to be made.
pub fn open(spec: &SwapSpec) -> Result<Opened, SwapError> {
    let path = &spec.path;
    if let Some(size) = spec.size.filter(|size| *size < LEAST) {
        return Err(too_small(path, size));
    }
    match io::kind(path) {
        Ok(Kind::Directory) => open_directory(path, spec.size),
        Ok(Kind::File) => open_file(path, spec.size),
        Ok(Kind::BlockDevice) => open_block_device(path, spec.size),
        Ok(Kind::Other) => Err(SwapError::WrongKind(path.clone())),
        // A name that ends in a slash is meant to be a directory.
        Err(Errno::NOENT) if spec.size.is_some() && !path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
            open_file(path, spec.size)
        }
        Err(errno) => Err(SwapError::new(path, "looking at it", errno)),
    }
}

/// An unlinked file in directory `path`, this process's own.
fn open_directory(path: &Path, size: Option<Bytes>) -> Result<Opened, SwapError> {
    let space = io::space(path).map_err(|errno| SwapError::new(path, "asking for its free space", errno))?;
    if space.in_memory {
        return Err(SwapError::InMemory(path.to_owned()));
    }
    let room = space.free_bytes / 100 * FREE_PERCENT;
    if room < LEAST.0 {
        return Err(SwapError::NoSpace(path.to_owned()));
    }
    let bytes = limit_file_size(path, room.min(size.unwrap_or(DIRECTORY_MAX).0))?;
    let file = File::anonymous_in(path).map_err(|errno| SwapError::new(path, "making a file in it", errno))?;
    Ok(Opened { file, pages: pages(bytes), reserved_pages: 0, shared: false, sparse: true })
}

/// File `path`, used in place; made, or extended with a hole, if `size` is larger than it.
fn open_file(path: &Path, size: Option<Bytes>) -> Result<Opened, SwapError> {
    let failed = |doing| move |errno| SwapError::new(path, doing, errno);
    let file = File::open(path, size.is_some()).map_err(failed("opening it"))?;
    // 1. May it be overwritten? Asked before anything is changed.
    let header = check_header(path, &file)?;
    file.could_lock(0..1, io::Lock::Write).map_err(|_| SwapError::NoLocks(path.to_owned()))?;
    // 2. How large can it be?
    let (len, allocated) = file.len_and_allocated_bytes().map_err(failed("asking for its size"))?;
    let bytes = limit_file_size(path, size.map_or(len, |size| size.0))?;
    if bytes < LEAST.0 {
        return Err(too_small(path, Bytes(bytes)));
    }
    let free = io::space(path).map_err(failed("asking for its free space"))?.free_bytes;
    let room = allocated + free / 100 * FREE_PERCENT;
    if room < LEAST.0 {
        return Err(SwapError::NoSpace(path.to_owned()));
    }
    // 3. Make it so.
    if bytes > len {
        file.set_len(bytes).map_err(failed("extending it"))?;
    }
    write_header(path, &file, &header)?;
    Ok(Opened { file, pages: pages(bytes.min(room)), reserved_pages: HEADER_PAGES, shared: true, sparse: true })
}

/// Block device `path`, used in place.
fn open_block_device(path: &Path, size: Option<Bytes>) -> Result<Opened, SwapError> {
    let failed = |doing| move |errno| SwapError::new(path, doing, errno);
    let mut tries = 1;
    while let Err(errno) = File::claim_block_device(path) {
        if errno != Errno::BUSY || tries == CLAIM_TRIES {
            return Err(SwapError::new(path, "opening it", errno));
        }
        tries += 1;
        crate::sync::sleep(CLAIM_PAUSE);
    }
    let file = File::open(path, false).map_err(failed("opening it"))?;
    let device = file.block_device_bytes().map_err(failed("asking for its size"))?;
    let bytes = device.min(size.map_or(device, |size| size.0));
    if bytes < LEAST.0 {
        return Err(too_small(path, Bytes(bytes)));
    }
    let header = check_header(path, &file)?;
    write_header(path, &file, &header)?;
    Ok(Opened { file, pages: pages(bytes), reserved_pages: HEADER_PAGES, shared: true, sparse: false })
}

fn pages(bytes: u64) -> u64 {
    Bytes(bytes).pages().min(SLOTS_MAX)
}

fn too_small(path: &Path, size: Bytes) -> SwapError {
    SwapError::TooSmall { path: path.to_owned(), size, least: LEAST }
}

/// Writing beyond RLIMIT_FSIZE would kill the process, so a file is used up to there only.
fn limit_file_size(path: &Path, bytes: u64) -> Result<u64, SwapError> {
    match io::file_size_limit_bytes() {
        Some(limit) if limit < LEAST.0 && limit < bytes => {
            Err(SwapError::FileSizeLimit { path: path.to_owned(), limit: Bytes(limit) })
        }
        Some(limit) => Ok(bytes.min(limit)),
        None => Ok(bytes),
    }
}

/// The header to write: one of ours over an empty page or one of ours, and that of a kernel swap area as it is.
/// Anything else is somebody's data.
fn check_header(path: &Path, file: &File) -> Result<IoBuffer, SwapError> {
    let failed = |doing| move |errno| SwapError::new(path, doing, errno);
    let mut page = IoBuffer::new(HEADER_PAGES as usize).map_err(failed("getting memory for its header"))?;
    file.read_at(&mut page, 0).map_err(failed("reading its header"))?;
    if page.ends_with(KERNEL_MAGIC) {
        return Ok(page);
    }
    if page.iter().all(|byte| *byte == 0) || page.starts_with(HEADER_MAGIC) {
        page.fill(0);
        page[..HEADER_MAGIC.len()].copy_from_slice(HEADER_MAGIC);
        return Ok(page);
    }
    Err(SwapError::HoldsData(path.to_owned()))
}

/// Also finds out whether the device can be written: a file that is kernel swap just now cannot (ETXTBSY).
fn write_header(path: &Path, file: &File, header: &IoBuffer) -> Result<(), SwapError> {
    const { assert!(HEADER_PAGES as usize * PAGE_SIZE == 4096, "the kernel's magic ends the first 4 KiB") };
    match file.write_at(header, 0) {
        Ok(n) if n == header.len() => Ok(()),
        Ok(_) => Err(SwapError::new(path, "writing its header", Errno::IO)),
        Err(errno) => Err(SwapError::new(path, "writing its header", errno)),
    }
}
