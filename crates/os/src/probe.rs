//! What this kernel allows this user: asked once, before anything is built on it.
//!
//! [`probe`] tries each facility for real (it opens a userfaultfd each way, sets up a ring, drops a
//! page of its own) and returns plain data, [`Probe`]; what follows from it is for the caller to
//! say. Nothing stays open. [`simulated`] names facilities to be reported as missing, so that tests
//! can walk the paths of older or stricter kernels on any machine. No locks; may be called from any
//! thread before the engine starts.

pub use crate::uffd::Features;
use crate::units::{Errno, PAGE_SIZE, check};
use crate::vm::{self, IoVec};
use rustix::fs::{Mode, OFlags};
use rustix::mm::UserfaultfdFlags;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use syscalls::{Sysno, raw_syscall};

/// Whether something works, or the error the kernel gave.
pub type Facility = Result<(), Errno>;

/// What the kernel allows this process.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// The userfaultfd system call, kernel-mode faults included. EPERM: sysctl and capabilities
    /// forbid it, or a seccomp filter. ENOSYS: the kernel was built without it.
    pub uffd_syscall: Facility,
    /// The system call with UFFD_USER_MODE_ONLY: faults inside system calls give EFAULT to the
    /// program.
    pub uffd_user_mode: Facility,
    /// /dev/userfaultfd (Linux 6.1 and later), kernel-mode faults included.
    pub uffd_device: Facility,
    /// `vm.unprivileged_userfaultfd`, where the kernel has it.
    pub unprivileged_userfaultfd: Option<u32>,
    /// Features of the userfaultfd; none when it could not be opened in any way.
    pub features: Features,
    /// Setting up an io_uring.
    pub io_uring: Facility,
    /// Seccomp filters that stop system calls by SIGSYS: what signal delivery needs.
    pub seccomp: Facility,
    /// process_madvise(MADV_DONTNEED) on the own process: many ranges dropped with one TLB flush
    /// (Linux 6.14).
    pub vector_drop: Facility,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
}

impl Probe {
    /// Whether faults raised inside system calls can be served: what thread delivery needs.
    pub fn kernel_faults(&self) -> bool {
        self.uffd_syscall.is_ok() || self.uffd_device.is_ok()
    }

    /// Whether a userfaultfd can be had in any way: all that signal delivery needs.
    pub fn user_faults(&self) -> bool {
        self.kernel_faults() || self.uffd_user_mode.is_ok()
    }
}

/// Facilities that `OVERSPILL_SIMULATE` asks to be treated as missing; a facility for tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Simulated {
    /// `no-uffd`: a kernel built without userfaultfd.
    pub no_uffd: bool,
    /// `no-move`: UFFDIO_MOVE is unknown, as before Linux 6.8.
    pub no_move: bool,
    /// `no-kernel-faults`: only UFFD_USER_MODE_ONLY is permitted.
    pub no_kernel_faults: bool,
    /// `no-uring`: io_uring is forbidden, as under common container seccomp profiles.
    pub no_uring: bool,
    /// `no-patch`: the C library's code cannot be changed, as under policies against memory that is
    /// written and executed.
    pub no_patch: bool,
}

impl Simulated {
    /// The words of the list.
    pub const NAMES: [&'static str; 5] =
        ["no-uffd", "no-move", "no-kernel-faults", "no-uring", "no-patch"];

    /// Reads a comma-separated list of [`Simulated::NAMES`]; the error is the word that is none of
    /// them.
    pub fn parse(list: &str) -> Result<Simulated, String> {
        let mut simulated = Simulated::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "no-uffd" => simulated.no_uffd = true,
                "no-move" => simulated.no_move = true,
                "no-kernel-faults" => simulated.no_kernel_faults = true,
                "no-uring" => simulated.no_uring = true,
                "no-patch" => simulated.no_patch = true,
                _ => return Err(word.to_owned()),
            }
        }
        Ok(simulated)
    }
}

static SIMULATED: OnceLock<Simulated> = OnceLock::new();

/// Gives [`simulated`] its answer before the environment can be read: in a library's constructor.
pub fn simulate(list: Simulated) {
    let _ = SIMULATED.set(list);
}

/// What `OVERSPILL_SIMULATE` says; read once, later changes of the environment are not seen. A list
/// that does not parse simulates nothing: `overspill` refuses it before the program starts.
pub fn simulated() -> Simulated {
    *SIMULATED.get_or_init(|| {
        let list = std::env::var("OVERSPILL_SIMULATE").unwrap_or_default();
        Simulated::parse(&list).unwrap_or_default()
    })
}

/// Asks the kernel, and takes away what [`simulated`] says.
pub fn probe() -> Probe {
    probe_with(simulated())
}

fn probe_with(simulated: Simulated) -> Probe {
    let withhold = |missing: bool, error: Errno| if missing { Err(error) } else { Ok(()) };
    let kernel_mode = || withhold(simulated.no_kernel_faults, Errno::PERM);
    let uffd_exists = || withhold(simulated.no_uffd, Errno::NOSYS);
    let device_exists = || withhold(simulated.no_uffd, Errno::NOENT);

    let syscall = uffd_exists().and_then(|()| kernel_mode()).and_then(|()| open_syscall(0));
    let user_mode = uffd_exists().and_then(|()| open_syscall(USER_MODE_ONLY));
    let device = device_exists().and_then(|()| kernel_mode()).and_then(|()| open_device());
    // The features are the kernel's, whichever way the userfaultfd was opened.
    let opened = [&syscall, &user_mode, &device].into_iter().find_map(|fd| fd.as_ref().ok());
    let mut features = opened.and_then(|fd| features(fd).ok()).unwrap_or_default();
    if simulated.no_move {
        features.0 &= !Features::MOVE.0;
    }
    Probe {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        uffd_syscall: syscall.map(drop),
        uffd_user_mode: user_mode.map(drop),
        uffd_device: device.map(drop),
        unprivileged_userfaultfd: fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd")
            .ok()
            .and_then(|text| text.trim().parse().ok()),
        features,
        io_uring: withhold(simulated.no_uring, Errno::PERM).and_then(|()| try_io_uring()),
        seccomp: crate::seccomp::probe(),
        vector_drop: try_vector_drop(),
        huge_pages: fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
            .ok()
            .and_then(|text| bracketed(&text).map(str::to_owned)),
    }
}

/// The word in brackets: how sysfs marks the choice in force.
fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

const USER_MODE_ONLY: u32 = 1;

fn open_syscall(flags: u32) -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC
        | UserfaultfdFlags::NONBLOCK
        | UserfaultfdFlags::from_bits_retain(flags);
    // SAFETY: nothing is registered with this userfaultfd, so it changes no memory's behaviour.
    unsafe { rustix::mm::userfaultfd(flags) }
}

fn open_device() -> Result<OwnedFd, Errno> {
    /// `_IO(0xAA, 0x00)`.
    const USERFAULTFD_IOC_NEW: usize = 0xAA00;
    let device =
        rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits();
    // SAFETY: this ioctl takes flags by value and touches no memory of ours.
    let fd = check(unsafe {
        raw_syscall!(Sysno::ioctl, device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags)
    })?;
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The features the kernel offers, by a handshake that asks for none.
fn features(uffd: impl AsFd) -> Result<Features, Errno> {
    #[repr(C)]
    struct UffdioApi {
        api: u64,
        features: u64,
        ioctls: u64,
    }
    const UFFD_API: u64 = 0xAA;
    /// `_IOWR(0xAA, 0x3F, struct uffdio_api)`.
    const UFFDIO_API: usize = 3 << 30 | size_of::<UffdioApi>() << 16 | 0xAA << 8 | 0x3F;
    let mut api = UffdioApi { api: UFFD_API, features: 0, ioctls: 0 };
    let fd = uffd.as_fd().as_raw_fd();
    // SAFETY: the struct has the layout the ioctl expects and outlives the call.
    check(unsafe { raw_syscall!(Sysno::ioctl, fd, UFFDIO_API, &raw mut api) })?;
    Ok(Features(api.features))
}

fn try_io_uring() -> Facility {
    /// Size of struct io_uring_params, which is all zeros for a plain ring.
    const PARAMS_BYTES: usize = 120;
    #[repr(C, align(8))]
    struct RingParams([u8; PARAMS_BYTES]);
    let mut params = RingParams([0; PARAMS_BYTES]);
    // SAFETY: 1. the struct has the size the kernel reads and writes; 2. without mapping its rings,
    // a ring is only a descriptor.
    let fd = check(unsafe { raw_syscall!(Sysno::io_uring_setup, 2, &raw mut params) })?;
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

fn try_vector_drop() -> Facility {
    /// PIDFD_SELF_THREAD_GROUP: the own process without a descriptor.
    const PIDFD_SELF: isize = -10001;
    let base = vm::map_metadata(PAGE_SIZE)?;
    let range = IoVec { base, len: PAGE_SIZE };
    let page = base as *mut u8;
    // SAFETY: the page was mapped readable and writable above, and only this function knows it.
    unsafe { page.write_volatile(1) };
    // SAFETY: IoVec has the layout of struct iovec; the range is the page above.
    let ret = unsafe {
        raw_syscall!(
            Sysno::process_madvise,
            PIDFD_SELF,
            &raw const range,
            1,
            libc::MADV_DONTNEED,
            0
        )
    };
    // SAFETY: as for the write above; a dropped page reads as zeros.
    let dropped = unsafe { page.read_volatile() } == 0;
    vm::unmap(base..base + PAGE_SIZE)?;
    check(ret).and(if dropped { Ok(()) } else { Err(Errno::OPNOTSUPP) })
}

/// Limits that the user's session sets.
#[derive(Clone, Copy, Debug)]
pub struct Rlimit;

impl Rlimit {
    /// Bytes that may be locked into memory; `None` when there is no limit or none that binds this
    /// user.
    pub fn memlock() -> Option<u64> {
        if rustix::process::geteuid().is_root() {
            return None;
        }
        rustix::process::getrlimit(rustix::process::Resource::Memlock).current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_descriptors() -> usize {
        fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn a_probe_leaves_nothing_open() {
        // Other tests of this process may open descriptors at the same moment: one quiet pass in
        // many is enough.
        let quiet = (0..200).any(|_| {
            let before = open_descriptors();
            let probe = probe_with(Simulated::default());
            assert!(!probe.kernel.is_empty());
            before == open_descriptors()
        });
        assert!(quiet, "every probe left a descriptor open");
    }

    #[test]
    fn features_are_known_whenever_a_userfaultfd_opens() {
        let probe = probe_with(Simulated::default());
        assert_eq!(probe.user_faults(), probe.features.has(Features::SIGBUS));
    }

    #[test]
    fn simulations_take_away_what_they_name_and_nothing_else() {
        let real = probe_with(Simulated::default());

        let probe = probe_with(Simulated { no_uffd: true, ..Simulated::default() });
        assert_eq!(
            (probe.uffd_syscall, probe.uffd_user_mode),
            (Err(Errno::NOSYS), Err(Errno::NOSYS))
        );
        assert_eq!((probe.uffd_device, probe.features), (Err(Errno::NOENT), Features::default()));
        assert!(!probe.user_faults());
        assert_eq!(probe.io_uring, real.io_uring);

        let probe = probe_with(Simulated { no_kernel_faults: true, ..Simulated::default() });
        assert_eq!((probe.kernel_faults(), probe.uffd_user_mode), (false, real.uffd_user_mode));
        if probe.uffd_user_mode.is_ok() {
            assert_eq!(probe.features, real.features);
        }

        let probe = probe_with(Simulated { no_move: true, no_uring: true, ..Simulated::default() });
        assert!(!probe.features.has(Features::MOVE) && probe.io_uring == Err(Errno::PERM));
        assert_eq!(probe.features.0 | Features::MOVE.0, real.features.0 | Features::MOVE.0);
    }

    #[test]
    fn simulation_lists_parse() {
        assert_eq!(Simulated::parse(""), Ok(Simulated::default()));
        let all = Simulated {
            no_uffd: true,
            no_move: true,
            no_kernel_faults: true,
            no_uring: true,
            no_patch: true,
        };
        assert_eq!(Simulated::parse(&Simulated::NAMES.join(",")), Ok(all));
        assert_eq!(Simulated::parse("no-move, no-such"), Err("no-such".to_owned()));
    }

    #[test]
    fn feature_names_match_their_bits() {
        assert!(Features::NAMES.iter().enumerate().all(|(i, (bit, _))| bit.0 == 1 << i));
        assert_eq!(Features(1 << 16 | 1).names(), ["pagefault_flag_wp", "move"]);
    }

    #[test]
    fn the_bracketed_word_is_the_choice() {
        assert_eq!(bracketed("always [madvise] never\n"), Some("madvise"));
        assert_eq!(bracketed("never\n"), None);
    }
}
