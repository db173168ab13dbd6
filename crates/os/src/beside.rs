//! The sibling: a process beside the program that shares its address space and holds the engine's
//! threads.
//!
//! Linux lets a process share memory without being a thread (clone(2) with CLONE_VM and without
//! CLONE_THREAD). So the program counts its own threads only: `wait` does not see ours, and what a
//! second thread forbids works (unshare(2) of a user namespace, filters for all threads, the C
//! library's set*id functions).
//!
//! 1. The program's thread makes a short-lived process that makes the sibling and ends
//!    (`overspill_clone_orphan`). So the sibling is nobody's child but init's. Where orphans would
//!    come to the program itself (it is the init of a namespace, or a subreaper) the sibling is its
//!    child, with an exit signal of 0, which `wait` passes over.
//! 2. The sibling has a copy of the program's table of descriptors and closes all but the engine's
//!    ([`crate::descriptors`]). What either opens later is its own ([`is_here`]).
//! 3. Its threads have stacks and thread-local storage of ours (`Stack`): the layout of the first
//!    thread's, copied when the process began ([`prepare`]). No code of the C library that needs
//!    more runs on them.
//! 4. Its first thread watches over the program (`watch`). The kernel clears a word of the
//!    program's first thread when that leaves the address space, by exit or exec, and wakes who
//!    waits on it. The sibling ends when nobody is left.
//! 5. In the child of a fork it starts its threads when they are needed, or after a while
//!    ([`Nap`]): most children end, or execute a program, before.
//! 6. A sibling that is killed takes the program with it (`Guard`), which would wait for its memory
//!    for ever.
//! 7. A program that exits lets the sibling end first ([`exit_group`]): so the memory, and what is
//!    attached to it, is gone when its parent hears of it.
//!
//! The sibling is in a session of its own, blocks every signal but the one of [`credentials`], and
//! is not traced (CLONE_UNTRACED).
//!
//! Locks: `STACKS` and `CALLS`, which are leaves, and `STARTING`, which the thread holds that
//! starts the sibling.

use crate::io::File;
use crate::lock::RawLock;
use crate::{Errno, PAGE_SIZE, credentials, descriptors, signal, thread, tls, vm};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use rustix::thread::futex;
use std::arch::global_asm;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::IntoRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use std::time::Duration;
use syscalls::{Sysno, raw_syscall};

/// What one thread of the engine is to run.
pub struct Job {
    /// Its name, of up to 15 bytes.
    pub name: &'static CStr,
    /// What it runs, in the sibling or in this process.
    pub body: Box<dyn FnOnce() + Send>,
}

impl Job {
    /// A thread called `name` that runs `body`.
    pub fn new(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> Job {
        Job { name, body: Box::new(body) }
    }
}

/// How threads begin that are not needed at once: the sibling's first thread waits for who needs
/// them, and for 20 ms at most.
pub struct Nap {
    /// Holds 1 meanwhile: who finds it, puts 0 there and wakes one that waits on it (private) has
    /// the threads started.
    pub cell: &'static AtomicU32,
    /// What the sibling's first thread does before it waits.
    pub first: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Nap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Nap").field(&self.cell).finish()
    }
}

/// What the sibling's first thread is given.
struct Begin {
    jobs: Vec<Job>,
    nap: Option<Nap>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Job").field(&self.name).finish()
    }
}

// Both functions prepare a child that pops its argument and its function from its new stack.
global_asm!(
    ".pushsection .text.overspill_clone,\"ax\",@progbits",
    // (flags, stack, thread pointer, word to clear at the end) -> number of the new task, or an
    // error.
    ".hidden overspill_clone",
    ".globl overspill_clone",
    ".type overspill_clone, @function",
    "overspill_clone:",
    ".cfi_startproc",
    "mov r10, rcx",
    "mov r8, rdx",
    "xor edx, edx",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    // (stack, thread pointer, place for the sibling's number, word to clear at its end) -> number
    // of the process in between, or an error. That process runs on the stack of the caller, who
    // waits (CLONE_VFORK), and leaves it as it is. It waits until the sibling has settled: whoever
    // looks at the caller meanwhile does not see it asleep, as if waiting for something of its own.
    ".hidden overspill_clone_orphan",
    ".globl overspill_clone_orphan",
    ".type overspill_clone_orphan, @function",
    "overspill_clone_orphan:",
    "mov r9, rdx",
    "mov r8, rsi",
    "mov r10, rdi",
    // Not read by the first call, as its flags say.
    "mov rdx, rcx",
    "mov edi, {between}",
    "xor esi, esi",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jz 1f",
    "ret",
    "1:",
    "mov edi, {beside}",
    "mov rsi, r10",
    "mov r10, rdx",
    "xor edx, edx",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "mov dword ptr [r9], eax",
    "test eax, eax",
    "js 4f",
    "mov r12, r10",
    "lea r13, [rip + {settled}]",
    "lea r14, [rip + {settle_look}]",
    "3:",
    "cmp dword ptr [r13], 0",
    "jne 4f",
    "cmp dword ptr [r12], 0",
    "je 4f",
    "mov rdi, r13",
    "mov esi, {wait}",
    "xor edx, edx",
    "mov r10, r14",
    "mov eax, {futex}",
    "syscall",
    "jmp 3b",
    "4:",
    "xor edi, edi",
    "mov eax, {exit}",
    "syscall",
    "ud2",
    "2:",
    // Unwinding ends here.
    ".cfi_undefined rip",
    "xor ebp, ebp",
    "pop rdi",
    "pop rax",
    "call rax",
    "xor edi, edi",
    "mov eax, {exit}",
    "syscall",
    "ud2",
    ".cfi_endproc",
    // (status, what the watcher waits on, LEAVING, pollfd of the sibling, syscall(2), a stack):
    // wakes it until it has ended, and exits, by the C library's instruction, so that a filter of
    // the program's has its say. No memory of the program's is accessed, since nobody may be left
    // to bring a page of its stack in.
    ".hidden overspill_leave",
    ".globl overspill_leave",
    ".type overspill_leave, @function",
    "overspill_leave:",
    "mov r12d, edi",
    "mov r13, rsi",
    "mov r14, rdx",
    "mov r15, rcx",
    "mov rbp, r8",
    "mov rsp, r9",
    "mov ebx, {leave_tries}",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "mov dword ptr [r14], 1",
    "1:",
    "mov rdi, r14",
    "mov esi, {wake}",
    "mov edx, 0x7fffffff",
    "mov eax, {futex}",
    "syscall",
    "mov rdi, r13",
    "mov eax, {futex}",
    "syscall",
    "mov rdi, r15",
    "mov esi, 1",
    "mov edx, 1",
    "mov eax, {poll}",
    "syscall",
    "test eax, eax",
    "jg 2f",
    "dec ebx",
    "jnz 1b",
    "2:",
    "mov edi, {exit_group}",
    "mov esi, r12d",
    "call rbp",
    // Where a filter has refused it, as the C library goes on.
    "hlt",
    ".popsection",
    clone = const libc::SYS_clone,
    exit = const libc::SYS_exit,
    exit_group = const libc::SYS_exit_group,
    futex = const libc::SYS_futex,
    poll = const libc::SYS_poll,
    wake = const libc::FUTEX_WAKE,
    wait = const libc::FUTEX_WAIT,
    settled = sym SETTLED,
    settle_look = sym SETTLE_LOOK,
    leave_tries = const LEAVE_TRIES,
    between = const libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_UNTRACED,
    beside = const BESIDE_FLAGS,
);

unsafe extern "C" {
    fn overspill_clone(
        flags: usize,
        stack: usize,
        thread_pointer: usize,
        cleared: *const AtomicU32,
    ) -> isize;
    fn overspill_clone_orphan(
        stack: usize,
        thread_pointer: usize,
        number: *const AtomicI32,
        cleared: *const AtomicU32,
    ) -> isize;
    fn overspill_leave(
        status: i32,
        word: usize,
        leaving: *const AtomicU32,
        polled: *const AtomicU64,
        call: usize,
        stack: usize,
    ) -> !;
}

/// How often a program that exits looks for a millisecond whether its sibling has ended.
const LEAVE_TRIES: u32 = 1000;

/// The sibling: it shares the memory and nothing else; its exit signal is 0.
const BESIDE_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_UNTRACED
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID;
/// A further thread of the sibling.
const THREAD_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_UNTRACED;

/// Bytes of a thread's stack: deep enough for debug builds; touched lazily.
const STACK_BYTES: usize = 256 << 10;
/// Bytes at the thread pointer that belong to the C library: its struct pthread takes 2.3 KiB in
/// glibc 2.36.
const CONTROL_BYTES: usize = 2 * PAGE_SIZE;
/// Most that the static thread-local storage of the loaded libraries may take.
const STATIC_BYTES_MAX: usize = 4 << 30;
/// Most that is copied of a library's: what ours needs, and the C library, is far less.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// Most libraries with thread-local storage that a thread of ours can reach through its vector.
const MODULES: usize = 250;
/// Bytes of the kernel's struct rseq as it was first, and the mark that the C library registers it
/// with.
const RSEQ_BYTES: usize = 32;
const RSEQ_MARK: usize = 0x5305_3053;

/// The thread-local storage of the program's first thread when the process began, from which that
/// of our threads is made.
struct Template {
    /// Bytes below the thread pointer: whole pages.
    bytes: usize,
    /// Of each library what it holds at first, and where that begins, in bytes below the thread
    /// pointer.
    images: Vec<(usize, Box<[u8]>)>,
    /// Of each library by its number: where its storage begins, in bytes below the thread pointer;
    /// 0 for none.
    modules: [usize; MODULES],
    /// Distance from the thread pointer to the area of restartable sequences; 0 for none.
    rseq: isize,
}

static TEMPLATE: OnceLock<Template> = OnceLock::new();
/// The program whose sibling this address space has; 0 where the engine's threads are threads of
/// the process itself.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// The sibling; 0 for none.
static SIBLING: AtomicI32 = AtomicI32::new(0);
/// Number of the sibling, from the process in between; under `STARTING`.
static STARTED: AtomicI32 = AtomicI32::new(0);
/// Whether the sibling has closed its copies of the program's descriptors: then nothing of the
/// program's is kept open by it.
static SETTLED: AtomicU32 = AtomicU32::new(0);
/// Held by the thread that starts the sibling.
static STARTING: RawLock = RawLock::new();
/// The word that the kernel clears when the program's first thread leaves the address space.
static FIRST_THREAD: AtomicUsize = AtomicUsize::new(0);
/// Set by a program that exits: the sibling ends.
static LEAVING: AtomicU32 = AtomicU32::new(0);
/// The pollfd by which that program sees the end: not on its stack, which may be managed memory.
static POLLED: AtomicU64 = AtomicU64::new(0);
/// What a program exits on: the words that a function of the C library's writes and reads.
static LAST_STACK: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// FIRST_THREAD's word, where the C library has given none.
static OWN_WORD: AtomicU32 = AtomicU32::new(0);

/// From now on the engine's threads live beside the program. Called once, on the program's first
/// thread, before any other code of the program has run: what its libraries keep in thread-local
/// storage is as they were linked.
pub fn prepare() {
    /// What [`visit`] finds.
    struct Found {
        thread_pointer: usize,
        modules: [usize; MODULES],
        lengths: [usize; MODULES],
        /// Whether the first object was there: the executable, of which no code runs on our
        /// threads.
        has_executable: bool,
    }
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _: usize,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes an entry, and `prepare` passes its own value.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
        let start = info.dlpi_tls_data as usize;
        let below = found.thread_pointer.wrapping_sub(start);
        // What lies elsewhere was allocated for this thread.
        if start != 0 && below <= STATIC_BYTES_MAX && info.dlpi_tls_modid < MODULES {
            found.modules[info.dlpi_tls_modid] = below;
            // SAFETY: the loader passes the headers of a loaded object.
            let headers =
                unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
            let storage = headers.iter().find(|header| header.p_type == libc::PT_TLS);
            let length = storage.map_or(0, |header| header.p_memsz as usize);
            found.lengths[info.dlpi_tls_modid] =
                if found.has_executable { length.min(COPIED_BYTES_MAX) } else { 0 };
        }
        found.has_executable = true;
        0
    }
    let thread_pointer = tls::thread_pointer();
    let mut found = Found {
        thread_pointer,
        modules: [0; MODULES],
        lengths: [0; MODULES],
        has_executable: false,
    };
    // SAFETY: the callback has the type, and `found` lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    let rseq = rseq_offset();
    let below = found.modules.iter().copied().max().unwrap_or(0).max((-rseq).max(0) as usize);
    let below = below.next_multiple_of(PAGE_SIZE);
    let images = found.modules.iter().zip(found.lengths).filter(|(_, length)| *length != 0);
    let images = images.map(|(below, length)| {
        // SAFETY: so much of the storage of this thread is the library's, and it was there when the
        // process began.
        let bytes =
            unsafe { std::slice::from_raw_parts((thread_pointer - below) as *const u8, length) };
        (*below, bytes.into())
    });
    let images = images.collect();
    let _ = TEMPLATE.set(Template { bytes: below, images, modules: found.modules, rseq });
}

/// Distance from the thread pointer to the area that the C library registers, 0 if it has none
/// (before glibc 2.35).
fn rseq_offset() -> isize {
    // SAFETY: the symbol is a constant of the C library's, of this type.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        if offset.is_null() { 0 } else { *offset }
    }
}

/// Whether the engine's threads live beside the program.
pub fn is_used() -> bool {
    TEMPLATE.get().is_some()
}

/// Whether the calling thread is one of the sibling's: it has a table of descriptors of its own.
pub fn is_here() -> bool {
    is_used() && tls::is_engine_thread()
}

/// The process that the engine works for: the program, also where its sibling asks.
pub fn program() -> Pid {
    Pid::from_raw(PROGRAM.load(Relaxed)).unwrap_or_else(rustix::process::getpid)
}

/// The sibling's number; ESRCH while there is none.
pub fn sibling() -> Result<Pid, Errno> {
    Pid::from_raw(SIBLING.load(Relaxed)).ok_or(Errno::SRCH)
}

/// A duplicate, in the table of the calling thread, of a descriptor in that of the program or of
/// its sibling: the same open file.
///
/// # Errors
/// EPERM in some sandboxes, and where the program has changed its user.
pub(crate) fn duplicate(of: Pid, fd: i32) -> Result<File, Errno> {
    let process =
        File::from_fd(descriptors::open(|| rustix::process::pidfd_open(of, PidfdFlags::empty()))?);
    let process = process.fd()?;
    descriptors::open(|| rustix::process::pidfd_getfd(process, fd, PidfdGetfdFlags::empty()))
        .map(File::from_fd)
}

/// What a thread of the program wants done in the sibling: on that thread's stack, while it waits.
struct Call {
    run: unsafe fn(*mut c_void),
    argument: *mut c_void,
    next: *mut Call,
    done: AtomicU32,
}

/// Calls that wait, the last first; [`serve_calls`] takes them.
struct Calls {
    lock: RawLock,
    last: UnsafeCell<*mut Call>,
    /// Counts calls, for the thread that serves them to sleep on.
    made: AtomicU32,
    /// Whether there is such a thread.
    served: AtomicU32,
}

// SAFETY: the cell is accessed under the lock only.
unsafe impl Sync for Calls {}

static CALLS: Calls = Calls {
    lock: RawLock::new(),
    last: UnsafeCell::new(std::ptr::null_mut()),
    made: AtomicU32::new(0),
    served: AtomicU32::new(0),
};

/// Runs `work` in the sibling, whose descriptors it needs, while the calling thread of the program
/// waits. Allocates nothing.
pub fn call<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    struct Work<F, R> {
        work: Option<F>,
        result: Option<R>,
    }
    unsafe fn run<F: FnOnce() -> R, R>(argument: *mut c_void) {
        // SAFETY: `call` passes its own work, which nobody else touches until it is done.
        let work = unsafe { &mut *argument.cast::<Work<F, R>>() };
        work.result = work.work.take().map(|work| work());
    }
    fn runner<F: FnOnce() -> R, R>(_: &Work<F, R>) -> unsafe fn(*mut c_void) {
        run::<F, R>
    }
    let mut work = Work { work: Some(work), result: None };
    let run = runner(&work);
    let mut call = Call {
        run,
        argument: (&raw mut work).cast(),
        next: std::ptr::null_mut(),
        done: AtomicU32::new(0),
    };
    CALLS.lock.with(|| {
        // SAFETY: the lock is held; the call lives until it is done.
        unsafe {
            call.next = *CALLS.last.get();
            *CALLS.last.get() = &raw mut call;
        }
    });
    CALLS.made.fetch_add(1, Release);
    let _ = futex::wake(&CALLS.made, futex::Flags::PRIVATE, 1);
    while call.done.load(Acquire) == 0 {
        let _ = futex::wait(&call.done, futex::Flags::PRIVATE, 0, None);
    }
    work.result.expect("what is done has a result")
}

/// In the sibling: has a thread serve the calls of the program, unless there is one.
///
/// # Errors
/// What clone(2) says.
pub fn serve_calls() -> Result<(), Errno> {
    if !is_here() || CALLS.served.swap(1, Acquire) != 0 {
        return Ok(());
    }
    spawn(Job::new(c"overspill-io", || {
        loop {
            let made = CALLS.made.load(Acquire);
            // SAFETY: the lock is held.
            let mut next = CALLS.lock.with(|| unsafe {
                std::mem::replace(&mut *CALLS.last.get(), std::ptr::null_mut())
            });
            if next.is_null() {
                let _ = futex::wait(&CALLS.made, futex::Flags::PRIVATE, made, None);
            }
            while !next.is_null() {
                // SAFETY: a call lives until it is done, and is not looked at afterwards but to
                // wake who waits at its address.
                unsafe {
                    let call = next;
                    next = (*call).next;
                    ((*call).run)((*call).argument);
                    let done = &raw const (*call).done;
                    (*done).store(1, Release);
                    raw_syscall!(
                        Sysno::futex,
                        done,
                        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                        1
                    );
                }
            }
        }
    }))
    .inspect_err(|_| CALLS.served.store(0, Release))
}

/// Starts threads of the engine: beside the program where that is used, else as threads of this
/// process, at once.
///
/// # Errors
/// What clone(2) or pthread_create(3) says.
pub fn start(jobs: Vec<Job>, nap: Option<Nap>) -> Result<(), Errno> {
    if !is_used() {
        return jobs.into_iter().try_for_each(thread::spawn_here);
    }
    STARTING.with(|| {
        PROGRAM.store(rustix::process::getpid().as_raw_nonzero().get(), Relaxed);
        FIRST_THREAD.store(first_thread_word() as *const AtomicU32 as usize, Relaxed);
        let stack = Stack::take()?;
        let begin = Box::into_raw(Box::new(Begin { jobs, nap }));
        SETTLED.store(0, Relaxed);
        match start_on(stack, begin.cast()) {
            Ok(number) => {
                SIBLING.store(number, Release);
                // Until then it would keep open what the program closes, or leaves by ending. Where
                // a process in between has waited, there is nothing to wait for.
                while SETTLED.load(Acquire) == 0 && stack.in_use.load(Relaxed) != 0 {
                    let _ = futex::wait(&SETTLED, futex::Flags::empty(), 0, Some(&SETTLE_LOOK));
                }
                Ok(())
            }
            Err(errno) => {
                stack.in_use.store(0, Release);
                // SAFETY: nobody has got the box.
                drop(unsafe { Box::from_raw(begin) });
                Err(errno)
            }
        }
    })
}

/// Makes the sibling, on `stack`; `begin` is a boxed [`Begin`] that it takes over.
fn start_on(stack: &'static Stack, begin: *mut c_void) -> Result<i32, Errno> {
    let _blocked = signal::Blocked::all();
    let thread_pointer = stack.prepare(lead, begin);
    if gets_orphans() {
        // SAFETY: the stack and the thread pointer belong to the new process alone.
        let made = unsafe {
            overspill_clone(BESIDE_FLAGS as usize, stack.top(), thread_pointer, &stack.in_use)
        };
        return check(made).map(|number| number as i32);
    }
    STARTED.store(0, Relaxed);
    // SAFETY: as above; the place for the number lives for ever.
    let between = check(unsafe {
        overspill_clone_orphan(stack.top(), thread_pointer, &STARTED, &stack.in_use)
    })?;
    // It has left this memory, and ends in microseconds. Where the program has taken it first,
    // there is nothing to take. SAFETY: nothing is written.
    while unsafe {
        raw_syscall!(Sysno::wait4, between, 0usize, libc::__WALL | libc::WNOHANG, 0usize)
    } == 0
    {
        rustix::thread::sched_yield();
    }
    match STARTED.load(Acquire) {
        number @ 1.. => Ok(number),
        error => Err(Errno::from_raw_os_error(-error)),
    }
}

/// Whether orphans of this process become its children.
fn gets_orphans() -> bool {
    let mut subreaper = 0i32;
    // SAFETY: the call writes one integer.
    unsafe {
        raw_syscall!(
            Sysno::prctl,
            libc::PR_GET_CHILD_SUBREAPER,
            &raw mut subreaper,
            0usize,
            0usize,
            0usize
        )
    };
    subreaper != 0 || rustix::process::getpid().is_init()
}

/// In a process that gets the orphans of others: reaps those that have ended, and calls `killed`
/// with the number of each that a signal has ended. Stops at `child`, which is left to its waiter.
pub fn reap_orphans(child: Pid, mut killed: impl FnMut(i32)) {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    loop {
        // SAFETY: 1. zero is a valid siginfo_t, which the first call fills in where somebody has
        // ended; 2. the second call writes nothing.
        unsafe {
            let mut ended: libc::siginfo_t = std::mem::zeroed();
            let failed =
                raw_syscall!(Sysno::waitid, libc::P_ALL, 0usize, &raw mut ended, options, 0usize)
                    != 0;
            let pid = ended.si_pid();
            if failed || pid == 0 || pid == child.as_raw_nonzero().get() {
                return;
            }
            if ended.si_code != libc::CLD_EXITED {
                killed(pid);
            }
            raw_syscall!(Sysno::wait4, pid, 0usize, libc::WNOHANG, 0usize);
        }
    }
}

/// The word that the kernel clears when the calling thread, the first of its process, leaves the
/// address space.
fn first_thread_word() -> &'static AtomicU32 {
    const PR_GET_TID_ADDRESS: usize = 40;
    let mut address = 0usize;
    // SAFETY: 1. the call writes one address; 2. what the C library has given lives as long as its
    // first thread, and is read and waited on only; 3. our own word lives for ever.
    unsafe {
        let failed = raw_syscall!(
            Sysno::prctl,
            PR_GET_TID_ADDRESS,
            &raw mut address,
            0usize,
            0usize,
            0usize
        ) != 0;
        if failed {
            // A kernel without the call. glibc has kept the number there since 2.4.
            const NUMBER_AT: usize = 0x2d0;
            let place = (tls::thread_pointer() + NUMBER_AT) as *const AtomicU32;
            if (*place).load(Relaxed) == thread::id() as u32 {
                address = place as usize;
            }
        }
        if address == 0 {
            OWN_WORD.store(thread::id() as u32, Relaxed);
            raw_syscall!(Sysno::set_tid_address, &raw const OWN_WORD);
            return &OWN_WORD;
        }
        &*(address as *const AtomicU32)
    }
}

/// Starts another thread in the sibling, from one of its threads.
pub(crate) fn spawn(job: Job) -> Result<(), Errno> {
    let stack = Stack::take()?;
    let job = Box::into_raw(Box::new(job));
    let thread_pointer = stack.prepare(run, job.cast());
    // SAFETY: 1. the stack and the thread pointer belong to the new thread alone; 2. the word lives
    // for ever, and says when the stack is free; 3. `run` takes the box over.
    let made = unsafe {
        overspill_clone(THREAD_FLAGS as usize, stack.top(), thread_pointer, &stack.in_use)
    };
    check(made).map(drop).inspect_err(|_| {
        stack.in_use.store(0, Release);
        // SAFETY: nobody has got the box.
        drop(unsafe { Box::from_raw(job) });
    })
}

fn check(ret: isize) -> Result<usize, Errno> {
    if ret < 0 { Err(Errno::from_raw_os_error(-ret as i32)) } else { Ok(ret as usize) }
}

/// In the child of a fork: the sibling is its parent's, and so are the threads on our stacks.
pub fn reset_in_child() {
    SIBLING.store(0, Relaxed);
    if is_used() {
        PROGRAM.store(rustix::process::getpid().as_raw_nonzero().get(), Relaxed);
    }
    LEAVING.store(0, Relaxed);
    CALLS.served.store(0, Relaxed);
    // SAFETY: the child has one thread; calls that waited are those of its parent's threads.
    unsafe { *CALLS.last.get() = std::ptr::null_mut() };
    for stack in STACKS.iter() {
        stack.in_use.store(0, Relaxed);
    }
}

/// Before a fork: nobody is at a list meanwhile.
pub fn fork_prepare() {
    STACKS.lock.lock();
    CALLS.lock.lock();
}

/// After a fork, in parent and child.
pub fn fork_done() {
    CALLS.lock.unlock();
    STACKS.lock.unlock();
}

/// The body of the sibling's first thread.
unsafe extern "C" fn lead(begin: *mut c_void) {
    credentials::expect();
    begin_thread(c"overspill");
    // SAFETY: `start` gives this process the box.
    let Begin { jobs, nap } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    // 1. Out of the way: none of the program's files kept open, no signal to its group or terminal,
    //    no directory kept busy.
    descriptors::keep_engines();
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir(c"/");
    GUARD.arm(program());
    SETTLED.store(1, Release);
    let _ = futex::wake(&SETTLED, futex::Flags::empty(), 1);
    // 2. Whoever ends meanwhile is seen.
    let program = rustix::process::pidfd_open(program(), PidfdFlags::empty());
    // 3. The engine's threads, unless the program leaves before they are needed.
    if let (Some(nap), Ok(program)) = (nap, &program) {
        (nap.first)();
        if leaves_before(nap.cell, program) {
            end();
        }
    }
    for job in jobs {
        if let Err(errno) = spawn(job) {
            thread::report(format_args!(
                "no thread can be made for the engine ({errno}): the program is ended"
            ));
            end_program();
        }
    }
    // 4. Until the program is gone.
    if let Ok(program) = program {
        watch(&program);
    }
    end();
}

/// The body of a further thread.
unsafe extern "C" fn run(job: *mut c_void) {
    // SAFETY: `spawn` gives this thread the box.
    let job = unsafe { Box::from_raw(job.cast::<Job>()) };
    begin_thread(job.name);
    (job.body)();
}

/// Prepares a thread of ours: every signal blocked, a name, an area of restartable sequences.
fn begin_thread(name: &CStr) {
    tls::mark_engine_thread();
    signal::change_mask(libc::SIG_SETMASK, !(1 << (credentials::SIGNAL - 1)));
    let _ = rustix::thread::set_name(name);
    let rseq = TEMPLATE.get().map_or(0, |template| template.rseq);
    if rseq != 0 {
        let area = tls::thread_pointer().wrapping_add_signed(rseq);
        // SAFETY: the area lies in this thread's own storage, which ends with the thread.
        unsafe { raw_syscall!(Sysno::rseq, area, RSEQ_BYTES, 0usize, RSEQ_MARK) };
    }
}

/// Longest sleep of the program while the sibling begins, between two looks whether it is still
/// there.
static SETTLE_LOOK: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Longest sleep of the watcher while the program's first thread lives: a bound on the harm of a
/// wake-up that went to somebody else who waits for the end of that thread.
const WATCH_EVERY: futex::Timespec = futex::Timespec { tv_sec: 1, tv_nsec: 0 };
/// Pauses between two looks at a program whose first thread has left.
const LOOK_FIRST: Duration = Duration::from_micros(200);
const LOOK_LAST: Duration = Duration::from_millis(100);

/// Longest sleep before the engine's threads are started ([`Nap`]): what others ask of a process
/// waits so long for its engine.
const NAP: Duration = Duration::from_millis(20);
/// Looks, [`LOOK_FIRST`] apart, at a program whose first thread has left, before it is taken to go
/// on with others.
const LOOKS: u32 = 5;

/// The word that the kernel clears when the program's first thread leaves. It is not unmapped while
/// that thread lives, and a wait on a word that is gone fails.
fn first_thread() -> &'static AtomicU32 {
    // SAFETY: `start` has stored the address of a word that lives as long as it is said above.
    unsafe { &*(FIRST_THREAD.load(Relaxed) as *const AtomicU32) }
}

/// Sleeps until the engine's threads are needed, or until the program has left the address space:
/// whether it has.
fn leaves_before(cell: &AtomicU32, program: &rustix::fd::OwnedFd) -> bool {
    use rustix::thread::futex::{Wait, WaitFlags, WaitvFlags, waitv};
    use rustix::time::{ClockId, clock_gettime};
    let wait_for = |word: &AtomicU32, value: u32, flags: WaitFlags| {
        let mut wait = Wait::new();
        wait.val = value.into();
        wait.uaddr = std::ptr::from_ref(word).cast_mut().cast::<c_void>().into();
        wait.flags = WaitFlags::SIZE_U32 | flags;
        wait
    };
    let word = first_thread();
    let now = clock_gettime(ClockId::Monotonic);
    let nanoseconds = now.tv_nsec + NAP.as_nanos() as i64;
    let until = futex::Timespec {
        tv_sec: now.tv_sec + nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    };
    cell.store(1, Release);
    let leaves = loop {
        let number = word.load(Acquire);
        if LEAVING.load(Acquire) != 0 {
            break true;
        }
        if number == 0 {
            break (0..LOOKS).any(|look| {
                let until = futex::Timespec {
                    tv_sec: 0,
                    tv_nsec: i64::from(look) * LOOK_FIRST.as_nanos() as i64,
                };
                let _ = futex::wait(&LEAVING, futex::Flags::empty(), 0, Some(&until));
                has_left(program)
            });
        }
        // The kernel wakes on these two by the address alone, whoever waits.
        let shared = WaitFlags::empty();
        let waits = [
            wait_for(cell, 1, WaitFlags::PRIVATE),
            wait_for(word, number, shared),
            wait_for(&LEAVING, 0, shared),
        ];
        let woken = waitv(&waits, WaitvFlags::empty(), Some(&until), ClockId::Monotonic);
        if woken == Ok(1) {
            let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        }
        // Needed, or time is up; or the kernel has no such call.
        if cell.load(Acquire) != 1 || !matches!(woken, Ok(_) | Err(Errno::INTR | Errno::AGAIN)) {
            break false;
        }
    };
    cell.store(0, Release);
    leaves
}

/// Returns when no thread of the program is in this address space any more.
fn watch(program: &rustix::fd::OwnedFd) {
    let word = first_thread();
    let mut pause = LOOK_FIRST;
    while LEAVING.load(Acquire) == 0 {
        match word.load(Acquire) {
            0 => {
                if has_left(program) {
                    return;
                }
                let until = futex::Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as i64 };
                let _ = futex::wait(&LEAVING, futex::Flags::empty(), 0, Some(&until));
                pause = (pause * 2).min(LOOK_LAST);
            }
            number => {
                // Not private: the kernel wakes by the address alone.
                let woken = futex::wait(word, futex::Flags::empty(), number, Some(&WATCH_EVERY));
                if woken.is_ok() {
                    // The kernel wakes one, who may have been meant to be another.
                    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
                }
                if is_readable(program) || woken == Err(Errno::FAULT) && has_left(program) {
                    return;
                }
            }
        }
    }
}

fn is_readable(program: &rustix::fd::OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let mut end = [PollFd::new(program, PollFlags::IN)];
    rustix::event::poll(&mut end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
        .is_ok_and(|ready| ready > 0)
}

/// Whether a program whose first thread has left the address space is gone from it: it has ended,
/// or executes another program.
fn has_left(pidfd: &rustix::fd::OwnedFd) -> bool {
    const KCMP_VM: usize = 1;
    if is_readable(pidfd) {
        return true;
    }
    let (own, program) = (rustix::process::getpid(), program());
    // SAFETY: the call takes numbers.
    let compared = unsafe {
        raw_syscall!(
            Sysno::kcmp,
            own.as_raw_nonzero().get(),
            program.as_raw_nonzero().get(),
            KCMP_VM,
            0usize,
            0usize
        )
    };
    // The same memory: it is about to end or to execute. Otherwise the first thread has ended
    // before the others, or is about to, unless it has executed.
    compared != 0 && !first_thread_ends(program)
}

/// Whether the first thread of a process has ended or is ending, by what `/proc` tells everybody.
fn first_thread_ends(program: Pid) -> bool {
    use rustix::fs::{Mode, OFlags};
    /// PF_EXITING of the kernel.
    const EXITING: u64 = 4;
    let mut text = [0u8; 512];
    let path = format!("/proc/{}/stat", program.as_raw_nonzero());
    let read = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut text));
    let Ok(len) = read else { return false };
    // "PID (NAME) STATE ...": the name may hold anything. The flags are the sixth field after the
    // state.
    let text = String::from_utf8_lossy(&text[..len]);
    let Some((_, fields)) = text.rsplit_once(')') else { return false };
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next().unwrap_or_default();
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    matches!(state, "Z" | "X") || flags & EXITING != 0
}

/// Ends the program when the sibling ends as it should not: by somebody's kill -9, or by a fault of
/// ours.
///
/// A pipe that only the sibling has open. When a process ends the kernel closes its files one by
/// one, and tells of the end of a pipe that is closed whoever has asked for a signal at the other:
/// by F_SETSIG any signal, by F_SETOWN any process (fcntl(2)). Both ends ask, as either may be
/// closed first. Nobody has to run for that.
struct Guard {
    ends: [AtomicI32; 2],
}

static GUARD: Guard = Guard { ends: [const { AtomicI32::new(-1) }; 2] };

impl Guard {
    /// In the sibling. Where a filter of the program's refuses one of the calls there is no guard.
    fn arm(&self, program: Pid) {
        const SET_SIGNAL: i32 = 10;
        let mut ends = [-1i32; 2];
        // SAFETY: the call writes two numbers.
        unsafe { raw_syscall!(Sysno::pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) };
        for (end, kept) in ends.into_iter().zip(&self.ends) {
            kept.store(end, Relaxed);
            control(end, SET_SIGNAL, libc::SIGKILL);
            control(end, libc::F_SETOWN, program.as_raw_nonzero().get());
            control(end, libc::F_SETFL, libc::O_ASYNC);
        }
    }

    /// In the sibling that ends as it should.
    fn disarm(&self) {
        self.ends.iter().for_each(|end| control(end.load(Relaxed), libc::F_SETFL, 0));
    }
}

fn control(fd: i32, command: i32, value: i32) {
    // SAFETY: the commands take numbers, and change no file but the sibling's own.
    unsafe { raw_syscall!(Sysno::fcntl, fd, command, value) };
}

/// Ends the sibling.
fn end() -> ! {
    GUARD.disarm();
    // SAFETY: the call does not return.
    unsafe { raw_syscall!(Sysno::exit_group, 0) };
    unreachable!("exit_group returned")
}

/// exit_group(2) of the calling process. Its sibling ends first: what the memory keeps attached,
/// mapped or busy is free when the parent hears of the end. A program that a signal ends is
/// outlived by its sibling, by some 100 us. `call` is the address of the C library's syscall(2).
///
/// # Safety
///
/// It is.
pub unsafe fn exit_group(status: i32, call: usize) -> ! {
    if let Ok(sibling) = sibling()
        // Not in a child of a vfork, whose memory is its parent's.
        && rustix::process::getpid() == program()
        && let Ok(end) = descriptors::open(|| rustix::process::pidfd_open(sibling, PidfdFlags::empty()))
    {
        let wanted = libc::pollfd { fd: end.into_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a pollfd is eight bytes without gaps.
        POLLED.store(unsafe { std::mem::transmute::<libc::pollfd, u64>(wanted) }, Relaxed);
        signal::change_mask(libc::SIG_SETMASK, !0);
        // SAFETY: the places live for ever.
        unsafe {
            let stack = (&raw const LAST_STACK).add(1) as usize - 2 * size_of::<u128>();
            overspill_leave(status, FIRST_THREAD.load(Relaxed), &LEAVING, &POLLED, call, stack)
        }
    }
    // SAFETY: the caller's promise; the call does not return.
    unsafe {
        std::mem::transmute::<usize, extern "C" fn(i64, i64)>(call)(
            libc::SYS_exit_group,
            status.into(),
        );
        std::arch::asm!("hlt", options(noreturn))
    }
}

/// Waits for the end of another process's sibling: for a second at most, as its number may be
/// somebody else's by now.
pub fn await_end(sibling: i32) {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let process = Pid::from_raw(sibling).ok_or(Errno::SRCH);
    if let Ok(end) = process.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
        let _ = rustix::event::poll(
            &mut [PollFd::new(&end, PollFlags::IN)],
            Some(&Timespec { tv_sec: 1, tv_nsec: 0 }),
        );
    }
}

/// Ends the program, from any thread of the engine's, where going on could hand out wrong data.
pub fn end_program() -> ! {
    if is_here() {
        let _ = rustix::process::kill_process(program(), rustix::process::Signal::KILL);
        end();
    }
    std::process::abort()
}

/// In place of the number of a thread that has not begun.
pub(crate) const NOT_BEGUN: i32 = 1;

/// Calls `each` with the stack of every thread of the sibling, and the thread's number.
pub(crate) fn for_each_thread(mut each: impl FnMut(&'static Stack, i32)) {
    STACKS.lock.with(|| {
        for stack in STACKS.iter() {
            match stack.in_use.load(Acquire) {
                0 => {}
                number => each(stack, number as i32),
            }
        }
    });
}

/// Stack and thread-local storage of a thread of ours, one behind the other; never unmapped, used
/// again by later threads.
pub(crate) struct Stack {
    /// The lowest address: a guard page.
    base: usize,
    /// Its bytes, thread-local storage included.
    bytes: usize,
    /// The number of the thread that is on it, [`NOT_BEGUN`] before it has, 0 for none: the kernel
    /// sets it and clears it.
    in_use: AtomicU32,
    /// The last change of credentials that the thread has made.
    pub(crate) change: AtomicU32,
    next: Option<&'static Stack>,
}

/// All stacks there are: the list grows at its head.
struct Stacks {
    lock: RawLock,
    first: UnsafeCell<Option<&'static Stack>>,
}

// SAFETY: the cell is accessed under the lock only, or by the only thread of a process.
unsafe impl Sync for Stacks {}

static STACKS: Stacks = Stacks { lock: RawLock::new(), first: UnsafeCell::new(None) };

impl Stacks {
    /// The stacks, for whoever has the lock or is alone.
    fn iter(&self) -> impl Iterator<Item = &'static Stack> {
        // SAFETY: nobody else is at the list.
        let first = unsafe { *self.first.get() };
        std::iter::successors(first, |stack| stack.next)
    }
}

impl Stack {
    /// A stack that nobody is on, for the caller alone.
    fn take() -> Result<&'static Stack, Errno> {
        STACKS.lock.with(|| {
            let free =
                |stack: &&Stack| stack.in_use.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
            if let Some(stack) = STACKS.iter().find(free) {
                stack.change.store(0, Relaxed);
                return Ok(stack);
            }
            let template = TEMPLATE.get().expect("threads are made beside the program");
            let bytes = PAGE_SIZE + STACK_BYTES + template.bytes + CONTROL_BYTES;
            let base = vm::map_metadata(bytes)?;
            vm::protect(base..base + PAGE_SIZE, vm::Prot::NONE)?;
            // SAFETY: the list is accessed under its lock.
            let next = unsafe { *STACKS.first.get() };
            let (in_use, change) = (AtomicU32::new(NOT_BEGUN as u32), AtomicU32::new(0));
            let stack: &'static Stack =
                Box::leak(Box::new(Stack { base, bytes, in_use, change, next }));
            // SAFETY: as above.
            unsafe { *STACKS.first.get() = Some(stack) };
            Ok(stack)
        })
    }

    /// Where a new thread's stack pointer is: two words below the thread-local storage.
    fn top(&self) -> usize {
        self.base + PAGE_SIZE + STACK_BYTES - 2 * size_of::<usize>()
    }

    /// Writes what a new thread pops, and its thread-local storage; returns its thread pointer.
    fn prepare(&self, function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) -> usize {
        let template = TEMPLATE.get().expect("threads are made beside the program");
        let thread_pointer = self.base + self.bytes - CONTROL_BYTES;
        /// Words of the C library's control block whose places are part of the ABI: itself, its
        /// vector, itself again, and the two secrets that compilers and setjmp use.
        const SELF: usize = 0;
        const VECTOR: usize = 1;
        const SELF_AGAIN: usize = 2;
        const SECRETS: [usize; 2] = [5, 6];
        let vector = self.vector(thread_pointer, template);
        // SAFETY: 1. all places lie in this stack's mapping, which only the caller uses; 2. each
        // image lies at the place in the storage from which it was taken; 3. the control block has
        // room for the words, and the area of restartable sequences lies in it or in the storage.
        unsafe {
            (self.top() as *mut [usize; 2])
                .write([argument as usize, function as *const () as usize]);
            for (below, image) in &template.images {
                std::ptr::copy_nonoverlapping(
                    image.as_ptr(),
                    (thread_pointer - below) as *mut u8,
                    image.len(),
                );
            }
            std::ptr::write_bytes(thread_pointer as *mut u8, 0, CONTROL_BYTES / 2);
            let control = thread_pointer as *mut usize;
            control.add(SELF).write(thread_pointer);
            control.add(VECTOR).write(vector);
            control.add(SELF_AGAIN).write(thread_pointer);
            for secret in SECRETS {
                control
                    .add(secret)
                    .write((tls::thread_pointer() as *const usize).add(secret).read());
            }
            if template.rseq != 0 {
                // No processor is known until it is registered.
                const CPU_ID: usize = 4;
                ((thread_pointer.wrapping_add_signed(template.rseq) + CPU_ID) as *mut i32)
                    .write(-1);
            }
        }
        tls::clear_of(thread_pointer);
        thread_pointer
    }

    /// The vector by which code finds the thread-local storage of a library by number: in the
    /// second half of the control block. Its generation is the last there can be, so that the
    /// loader never replaces it.
    fn vector(&self, thread_pointer: usize, template: &Template) -> usize {
        const ENTRY: usize = 2 * size_of::<usize>();
        const UNALLOCATED: usize = usize::MAX;
        const _: () = assert!((MODULES + 1) * ENTRY <= CONTROL_BYTES / 2);
        let entries = (thread_pointer + CONTROL_BYTES / 2) as *mut [usize; 2];
        // SAFETY: the entries lie in the second half of the control block, which is this thread's.
        unsafe {
            // The length comes before the vector, the generation first in it.
            entries.write([MODULES - 1, 0]);
            entries.add(1).write([usize::MAX >> 1, 0]);
            for (number, below) in template.modules.iter().enumerate().skip(1) {
                let value = if *below == 0 { UNALLOCATED } else { thread_pointer - below };
                entries.add(1 + number).write([value, 0]);
            }
        }
        entries as usize + ENTRY
    }
}
