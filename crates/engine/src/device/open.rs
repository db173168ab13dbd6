//! From what the user named to an open device: kinds, sizes, and what must not be overwritten.

use super::error::SwapError;
use super::header::{Header, KernelHeader, OwnHeader};
use crate::device::spec::{Label, SwapSpec};
use crate::slot::SLOTS_MAX;
use crate::stats::DeviceKind;
use crate::units::{Bytes, Uuid, page_mut};
use overspill_os::Errno;
use overspill_os::directory::is_trusted;
use overspill_os::io::{self, File, IoBuffer, PathKind, Rights};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Largest file made in a directory that was named without a size: 256 GiB, for which the slot
/// table reserves 19 MiB of address space.
pub const DIRECTORY_MAX: Bytes = Bytes(256 << 30);
/// Share of a filesystem's free space that is used at most, in percent: the rest is for everybody
/// else.
const FREE_PERCENT: u64 = 95;
/// Smallest device: 1 MiB, one operation of the largest size.
const LEAST: Bytes = Bytes(1 << 20);
/// Pages at the start of a named device that are never used for slots: the header
/// ([`super::header`]).
const HEADER_PAGES: u64 = 1;
const _: () = assert!(HEADER_PAGES == 1, "a header is a page");
/// The lock under which a header is read and written: a range of bytes behind every device.
const HEADER_LOCK: Range<u64> = 1 << 62..(1 << 62) + 1;
/// Attempts to claim a block device: other processes of the job claim it for a moment too.
const CLAIM_TRIES: u32 = 10;
/// Attempts to lock a header: a second.
const LOCK_TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

/// A device as opened.
#[derive(Debug)]
pub struct Opened {
    pub file: File,
    pub kind: DeviceKind,
    /// Its label; empty if it has none.
    pub label: String,
    pub uuid: Option<Uuid>,
    /// Size in pages.
    pub pages: u64,
    /// Pages at the start that are not for slots.
    pub reserved_pages: u64,
    /// Whether other processes may use it too, so that allotments must be acquired.
    pub shared: bool,
    /// Whether disk space must be set aside before it is written.
    pub sparse: bool,
    /// Pages that must not be used.
    pub bad_pages: Vec<u32>,
}

/// Opens what `spec` names, and makes it if it is a file to be made. In a directory it is the file
/// that `of_job` opens, the job's, or else one of this process's own.
pub fn open(spec: &SwapSpec, of_job: impl FnOnce() -> Option<File>) -> Result<Opened, SwapError> {
    let path = &spec.path;
    if let Some(size) = spec.size.filter(|size| *size < LEAST) {
        return Err(too_small(path, size));
    }
    if spec.ram.is_some() {
        return open_ram(spec);
    }
    match io::kind(path) {
        Ok(PathKind::Directory) => open_directory(spec, of_job()),
        Ok(PathKind::File) => open_file(spec),
        Ok(PathKind::BlockDevice) => open_block_device(spec),
        Ok(PathKind::Other) => Err(SwapError::WrongKind(path.clone())),
        // A name that ends in a slash is meant to be a directory.
        Err(Errno::NOENT)
            if spec.size.is_some() && !path.as_os_str().as_encoded_bytes().ends_with(b"/") =>
        {
            open_file(spec)
        }
        Err(errno) => Err(SwapError::new(path, "looking at it", errno)),
    }
}

/// Tries whether a pool could use what `spec` names; returns the size that it would have. A file or
/// block device has a header afterwards.
///
/// # Errors
/// Why it could not.
pub fn check(spec: &SwapSpec) -> Result<Bytes, SwapError> {
    open(spec, || None).map(|opened| Bytes::from_pages(opened.pages))
}

/// Whether a file or block device that is there holds no data, and is this user's alone. Nothing is
/// changed.
///
/// # Errors
/// Why it cannot be used.
pub fn check_unchanged(spec: &SwapSpec) -> Result<(), SwapError> {
    let failed = |doing| move |errno| SwapError::new(&spec.path, doing, errno);
    let file = File::open(&spec.path, false).map_err(failed("opening it"))?;
    check_header(&spec.path, &file)?;
    check_rights(spec, file.rights().map_err(failed("asking who may use it"))?)
}

/// Whether nobody else can read or change what is on an open file or block device, or that is
/// allowed. As swapon(8) has it: who is in the group of a block device is the machine's own rule.
fn check_rights(spec: &SwapSpec, rights: Rights) -> Result<(), SwapError> {
    let path = || spec.path.clone();
    let others = if rights.is_block_device { 0o007 } else { 0o077 };
    match rights {
        _ if spec.insecure => Ok(()),
        Rights { owner, .. } if !is_trusted(owner) => {
            Err(SwapError::OthersOwn { path: path(), owner })
        }
        Rights { mode, .. } if mode & others != 0 => {
            Err(SwapError::OthersMay { path: path(), mode, safe: mode & !others })
        }
        _ => Ok(()),
    }
}

/// A file in memory, this process's own.
fn open_ram(spec: &SwapSpec) -> Result<Opened, SwapError> {
    let asked = spec.size.unwrap_or_default();
    let bytes = limit_file_size(&spec.path, asked.0)?;
    let file = File::in_memory(bytes)
        .map_err(|errno| SwapError::new(&spec.path, "making a file in memory", errno))?;
    Ok(Opened::own(file, DeviceKind::Ram, bytes, spec))
}

/// An unlinked file in directory `path`: the job's, or this process's own.
fn open_directory(spec: &SwapSpec, of_job: Option<File>) -> Result<Opened, SwapError> {
    let (path, size) = (&spec.path, spec.size);
    let space = io::space(path)
        .map_err(|errno| SwapError::new(path, "asking for its free space", errno))?;
    if space.in_memory {
        return Err(SwapError::InMemory(path.clone()));
    }
    let has = of_job.as_ref().and_then(|file| file.len_and_allocated_bytes().ok());
    let room = has.map_or(0, |(_, allocated)| allocated) + space.free_bytes / 100 * FREE_PERCENT;
    if room < LEAST.0 {
        return Err(SwapError::NoSpace(path.clone()));
    }
    let bytes = limit_file_size(path, room.min(size.unwrap_or(DIRECTORY_MAX).0))?;
    let shared = of_job.is_some();
    let file = match of_job {
        Some(file) => file,
        None => File::anonymous_in(path)
            .map_err(|errno| SwapError::new(path, "making a file in it", errno))?,
    };
    Ok(Opened { shared, ..Opened::own(file, DeviceKind::Directory, bytes, spec) })
}

/// File `path`, used in place; made, or extended with a hole, if `size` is larger than it.
fn open_file(spec: &SwapSpec) -> Result<Opened, SwapError> {
    let (path, size) = (&spec.path, spec.size);
    let failed = |doing| move |errno| SwapError::new(path, doing, errno);
    let file = File::open(path, size.is_some()).map_err(failed("opening it"))?;
    // 1. May it be overwritten? Asked before anything is changed.
    check_header(path, &file)?;
    file.could_lock(0..1, io::Lock::Write).map_err(|_| SwapError::NoLocks(path.clone()))?;
    // 2. How large can it be?
    let (len, allocated) = file.len_and_allocated_bytes().map_err(failed("asking for its size"))?;
    let bytes = limit_file_size(path, size.map_or(len, |size| size.0))?;
    if bytes < LEAST.0 {
        return Err(too_small(path, Bytes(bytes)));
    }
    let free = io::space(path).map_err(failed("asking for its free space"))?.free_bytes;
    let room = allocated + free / 100 * FREE_PERCENT;
    if room < LEAST.0 {
        return Err(SwapError::NoSpace(path.clone()));
    }
    // 3. Make it so, unless others could read what is on it.
    check_rights(spec, file.rights().map_err(failed("asking who may use it"))?)?;
    if bytes > len {
        file.set_len(bytes).map_err(failed("extending it"))?;
    }
    let named = take_header(spec, &file, Bytes(bytes.max(len)))?;
    Ok(Opened::named(file, DeviceKind::File, bytes.min(room), named))
}

/// Block device `path`, used in place.
fn open_block_device(spec: &SwapSpec) -> Result<Opened, SwapError> {
    let (path, size) = (&spec.path, spec.size);
    let failed = |doing| move |errno| SwapError::new(path, doing, errno);
    let mut tries = 1;
    while let Err(errno) = File::claim_block_device(path) {
        if errno != Errno::BUSY || tries == CLAIM_TRIES {
            return Err(SwapError::new(path, "opening it", errno));
        }
        tries += 1;
        crate::base::sync::sleep(PAUSE);
    }
    let file = File::open(path, false).map_err(failed("opening it"))?;
    check_rights(spec, file.rights().map_err(failed("asking who may use it"))?)?;
    let device = file.block_device_bytes().map_err(failed("asking for its size"))?;
    let bytes = device.min(size.map_or(device, |size| size.0));
    if bytes < LEAST.0 {
        return Err(too_small(path, Bytes(bytes)));
    }
    let named = take_header(spec, &file, Bytes(device))?;
    Ok(Opened::named(file, DeviceKind::Block, bytes, named))
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

/// What the first page of a named device says, and that the device can be overwritten.
#[derive(Debug)]
struct Named {
    label: String,
    uuid: Option<Uuid>,
    /// Of a kernel swap area: its size in pages, and which of them are bad.
    kernel: Option<(u64, Vec<u32>)>,
}

/// Reads the header of a device of `size` bytes and writes one of ours where there may be one.
/// Writes in any case, which shows whether the device can be written: a file that is kernel swap
/// just now cannot (ETXTBSY).
fn take_header(spec: &SwapSpec, file: &File, size: Bytes) -> Result<Named, SwapError> {
    let failed = |doing| move |errno| SwapError::new(&spec.path, doing, errno);
    // 1. One process at a time, so that all see the same UUID. The lock goes with the file if
    //    anything fails.
    let mut tries = 1;
    while !file
        .try_lock(HEADER_LOCK, io::Lock::Write)
        .map_err(|_| SwapError::NoLocks(spec.path.clone()))?
    {
        if tries == LOCK_TRIES {
            return Err(failed("waiting for others to read its header")(Errno::AGAIN));
        }
        tries += 1;
        crate::base::sync::sleep(PAUSE);
    }
    // 2. What is there.
    let mut page =
        IoBuffer::new(HEADER_PAGES as usize).map_err(failed("getting memory for its header"))?;
    let header = read_header(&spec.path, file, &mut page)?;
    // 3. What there is to be.
    let label = |own: Option<Label>| spec.label.clone().or(own);
    let text = |label: &Option<Label>| {
        label.as_ref().map(|label| label.as_str().to_owned()).unwrap_or_default()
    };
    let named = match header {
        Header::Kernel(KernelHeader { uuid, label, pages, bad_pages }) => {
            let label = spec.label.as_ref().map_or(label, |label| label.as_str().to_owned());
            Named { label, uuid, kernel: Some((pages, bad_pages)) }
        }
        Header::Empty | Header::Own(_) => {
            let (uuid, label) = match header {
                Header::Own(own) => (own.uuid, label(own.label)),
                _ => (Uuid::random().map_err(failed("making a UUID"))?, label(None)),
            };
            let named = Named { label: text(&label), uuid: Some(uuid), kernel: None };
            OwnHeader { uuid, label, size }.write(page_mut(&mut page, 0));
            named
        }
        Header::Foreign => return Err(SwapError::HoldsData(spec.path.clone())),
    };
    match file.write_at(&page, 0) {
        Ok(n) if n == page.len() => {}
        Ok(_) => return Err(failed("writing its header")(Errno::IO)),
        Err(errno) => return Err(failed("writing its header")(errno)),
    }
    file.unlock(HEADER_LOCK).map_err(failed("unlocking its header"))?;
    Ok(named)
}

fn read_header(path: &Path, file: &File, page: &mut IoBuffer) -> Result<Header, SwapError> {
    file.read_at(page, 0).map_err(|errno| SwapError::new(path, "reading its header", errno))?;
    Header::parse(page_mut(page, 0))
        .map_err(|reason| SwapError::BadHeader { path: path.to_owned(), reason })
}

/// Refuses what holds data, before anything is changed.
fn check_header(path: &Path, file: &File) -> Result<(), SwapError> {
    let no_memory = |errno| SwapError::new(path, "getting memory for its header", errno);
    let mut page = IoBuffer::new(HEADER_PAGES as usize).map_err(no_memory)?;
    match read_header(path, file, &mut page)? {
        Header::Foreign => Err(SwapError::HoldsData(path.to_owned())),
        _ => Ok(()),
    }
}

impl Opened {
    /// A device that is used in place, of `bytes` bytes as far as its header does not say less.
    fn named(file: File, kind: DeviceKind, bytes: u64, named: Named) -> Opened {
        let Named { label, uuid, kernel } = named;
        let (limit, bad_pages) = kernel.unwrap_or((u64::MAX, Vec::new()));
        let sparse = kind == DeviceKind::File;
        let pages = pages(bytes).min(limit);
        Opened {
            file,
            kind,
            label,
            uuid,
            pages,
            reserved_pages: HEADER_PAGES,
            shared: true,
            sparse,
            bad_pages,
        }
    }

    /// A device without a header, of this process's own.
    fn own(file: File, kind: DeviceKind, bytes: u64, spec: &SwapSpec) -> Opened {
        let label = spec.label.as_ref().map(|label| label.as_str().to_owned()).unwrap_or_default();
        let (pages, bad_pages) = (pages(bytes), Vec::new());
        Opened {
            file,
            kind,
            label,
            uuid: None,
            pages,
            reserved_pages: 0,
            shared: false,
            sparse: true,
            bad_pages,
        }
    }
}
