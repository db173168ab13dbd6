//! Which arguments of a system call are addresses that the kernel reads or writes through, or whose
//! mappings it changes.
//!
//! Addresses that it only takes note of, such as those of clone(2), are not among them; nor are
//! those that a call passes inside of what it points to.
//!
//! What a call does not read is whatever a register holds. Calls of several commands read other
//! arguments for each ([`BY_COMMAND`]).

use libc::*;

/// The highest number that is known here.
pub const LAST: u32 = 462;

/// Arguments by position, a bit each, first to last from the lowest.
type Mask = u8;

const UNKNOWN: Mask = 0b11_1111;

/// The addresses among the arguments of call `number`, whatever its command is; all of them where
/// it is not known.
pub const fn pointers(number: usize) -> Mask {
    if number < TABLE.len() { TABLE[number] } else { UNKNOWN }
}

/// The addresses among the arguments of a call.
pub fn addresses(number: usize, arguments: &[usize; 6]) -> Mask {
    let by_command = BY_COMMAND.iter().find(|call| call.number as usize == number);
    let read = by_command.and_then(|call| {
        let command = arguments[call.at] as u32;
        call.commands.iter().find(|commands| {
            commands.are.iter().any(|each| *each as u32 == command & !commands.flags)
        })
    });
    read.map_or_else(|| pointers(number), |commands| commands.pointers)
}

/// A call that reads other arguments for each of its commands.
#[derive(Debug)]
pub struct ByCommand {
    /// The call.
    pub number: c_long,
    /// Which argument says the command.
    pub at: usize,
    /// The first entry that has a command counts; the others are as the call's table says.
    pub commands: &'static [Commands],
}

/// Commands of a call, and what they read.
#[derive(Debug)]
pub struct Commands {
    /// The addresses among the arguments.
    pub pointers: Mask,
    /// Bits that may be set beside a command.
    pub flags: u32,
    /// The commands.
    pub are: &'static [c_int],
}

const fn reading(pointers: Mask, are: &'static [c_int]) -> Commands {
    Commands { pointers, flags: 0, are }
}

/// Commands that libc has no names for.
const FUTEX_LOCK_PI2: c_int = 13;
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_DUPFD_QUERY: c_int = 1027;
const F_CREATED_QUERY: c_int = 1028;
const PR_SET_IO_FLUSHER: c_int = 57;
const PR_GET_IO_FLUSHER: c_int = 58;
const ARCH_SET_GS: c_int = 0x1001;
const ARCH_SET_FS: c_int = 0x1002;

/// The calls of several commands.
#[rustfmt::skip]
pub const BY_COMMAND: &[ByCommand] = &[
    // A private futex(2) that only wakes touches no memory, its key is the address. Of the others
    // only those that wait have a time.
    ByCommand { number: SYS_futex, at: 1, commands: &[
        reading(0, &[FUTEX_WAKE | FUTEX_PRIVATE_FLAG, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG]),
        Commands {
            pointers: 0b1001,
            flags: (FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME) as u32,
            are: &[
                FUTEX_WAIT, FUTEX_LOCK_PI, FUTEX_WAIT_BITSET, FUTEX_WAIT_REQUEUE_PI, FUTEX_LOCK_PI2,
            ],
        },
    ] },
    ByCommand { number: SYS_fcntl, at: 1, commands: &[reading(0, &[
        F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_SETOWN, F_GETOWN, F_SETSIG, F_GETSIG,
        F_SETLEASE, F_GETLEASE, F_NOTIFY, F_DUPFD_QUERY, F_CREATED_QUERY, F_CANCELLK,
        F_DUPFD_CLOEXEC, F_SETPIPE_SZ, F_GETPIPE_SZ, F_ADD_SEALS, F_GET_SEALS,
    ])] },
    ByCommand { number: SYS_ioctl, at: 1, commands: &[reading(0, &[
        FIOCLEX as c_int, FIONCLEX as c_int, TIOCEXCL as c_int, TIOCNXCL as c_int,
        TIOCSCTTY as c_int, TIOCNOTTY as c_int, TCSBRK as c_int, TCSBRKP as c_int, TCXONC as c_int,
        TCFLSH as c_int, TIOCSBRK as c_int, TIOCCBRK as c_int,
    ])] },
    ByCommand { number: SYS_prctl, at: 0, commands: &[
        reading(0, &[
            PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_UNALIGN, PR_GET_KEEPCAPS,
            PR_SET_KEEPCAPS, PR_SET_FPEMU, PR_SET_FPEXC, PR_GET_TIMING, PR_SET_TIMING,
            PR_SET_ENDIAN, PR_GET_SECCOMP, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_TSC,
            PR_GET_SECUREBITS, PR_SET_SECUREBITS, PR_SET_TIMERSLACK, PR_GET_TIMERSLACK,
            PR_TASK_PERF_EVENTS_DISABLE, PR_TASK_PERF_EVENTS_ENABLE, PR_MCE_KILL, PR_MCE_KILL_GET,
            PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS, PR_SET_THP_DISABLE,
            PR_GET_THP_DISABLE, PR_CAP_AMBIENT, PR_GET_SPECULATION_CTRL, PR_SET_SPECULATION_CTRL,
            PR_SET_IO_FLUSHER, PR_GET_IO_FLUSHER,
        ]),
        reading(0b10, &[
            PR_GET_PDEATHSIG, PR_GET_UNALIGN, PR_GET_FPEMU, PR_GET_FPEXC, PR_SET_NAME, PR_GET_NAME,
            PR_GET_ENDIAN, PR_GET_TSC, PR_GET_CHILD_SUBREAPER, PR_GET_TID_ADDRESS,
        ]),
        reading(0b100, &[PR_SET_SECCOMP]),
        // The name; the third is the range that gets it.
        reading(0b1_0000, &[PR_SET_VMA]),
    ] },
    ByCommand { number: SYS_arch_prctl, at: 0, commands: &[
        reading(0, &[ARCH_SET_GS, ARCH_SET_FS]),
    ] },
    ByCommand { number: SYS_mremap, at: 3, commands: &[reading(0b1, &[0, MREMAP_MAYMOVE])] },
    ByCommand { number: SYS_epoll_ctl, at: 1, commands: &[reading(0, &[EPOLL_CTL_DEL])] },
    ByCommand { number: SYS_semctl, at: 2, commands: &[
        reading(0, &[IPC_RMID, SETVAL, GETVAL, GETPID, GETNCNT, GETZCNT]),
    ] },
    ByCommand { number: SYS_shmctl, at: 1, commands: &[
        reading(0, &[IPC_RMID, SHM_LOCK, SHM_UNLOCK]),
    ] },
    ByCommand { number: SYS_msgctl, at: 1, commands: &[reading(0, &[IPC_RMID])] },
    ByCommand { number: SYS_ptrace, at: 0, commands: &[reading(0, &[
        PTRACE_TRACEME as c_int, PTRACE_POKETEXT as c_int, PTRACE_POKEDATA as c_int,
        PTRACE_POKEUSER as c_int, PTRACE_CONT as c_int, PTRACE_KILL as c_int,
        PTRACE_SINGLESTEP as c_int, PTRACE_ATTACH as c_int, PTRACE_DETACH as c_int,
        PTRACE_SYSCALL as c_int, PTRACE_SETOPTIONS as c_int, PTRACE_SEIZE as c_int,
        PTRACE_INTERRUPT as c_int, PTRACE_LISTEN as c_int,
    ])] },
];

const TABLE: [Mask; LAST as usize + 1] = {
    let mut table = [UNKNOWN; LAST as usize + 1];
    let mut group = 0;
    while group < GROUPS.len() + CHANGES.len() {
        let (mask, numbers) =
            if group < GROUPS.len() { GROUPS[group] } else { CHANGES[group - GROUPS.len()] };
        let mut at = 0;
        while at < numbers.len() {
            assert!(table[numbers[at] as usize] == UNKNOWN, "a call has two entries");
            table[numbers[at] as usize] = mask;
            at += 1;
        }
        group += 1;
    }
    table
};

/// Calls that libc has no names for.
const SYS_CACHESTAT: c_long = 451;
const SYS_MAP_SHADOW_STACK: c_long = 453;
const SYS_FUTEX_WAKE: c_long = 454;
const SYS_FUTEX_WAIT: c_long = 455;
const SYS_FUTEX_REQUEUE: c_long = 456;
const SYS_STATMOUNT: c_long = 457;
const SYS_LISTMOUNT: c_long = 458;
const SYS_NEWFSTATAT: c_long = 262;
const SYS_IO_PGETEVENTS: c_long = 333;

/// Calls that change mappings.
const CHANGES: &[(Mask, &[c_long])] = &[
    (
        0b1,
        &[
            SYS_mmap,
            SYS_munmap,
            SYS_mprotect,
            SYS_pkey_mprotect,
            SYS_mseal,
            SYS_madvise,
            SYS_mlock,
            SYS_mlock2,
            SYS_munlock,
        ],
    ),
    (0b1_0001, &[SYS_mremap]),
];

#[rustfmt::skip]
const GROUPS: &[(Mask, &[c_long])] = &[
    (0, &[
        SYS_close, SYS_lseek, SYS_brk, SYS_rt_sigreturn,
        SYS_sched_yield, SYS_msync, SYS_shmget, SYS_shmat, SYS_dup,
        SYS_dup2, SYS_pause, SYS_alarm, SYS_getpid, SYS_socket, SYS_shutdown, SYS_listen, SYS_clone,
        SYS_fork, SYS_vfork, SYS_exit, SYS_kill, SYS_semget, SYS_shmdt, SYS_msgget, SYS_flock,
        SYS_fsync, SYS_fdatasync, SYS_ftruncate, SYS_fchdir, SYS_fchmod, SYS_fchown, SYS_umask,
        SYS_getuid, SYS_getgid, SYS_setuid, SYS_setgid, SYS_geteuid, SYS_getegid, SYS_setpgid,
        SYS_getppid, SYS_getpgrp, SYS_setsid, SYS_setreuid, SYS_setregid, SYS_setresuid,
        SYS_setresgid, SYS_getpgid, SYS_setfsuid, SYS_setfsgid, SYS_getsid, SYS_personality,
        SYS_getpriority, SYS_setpriority, SYS_sched_getscheduler, SYS_sched_get_priority_max,
        SYS_sched_get_priority_min, SYS_mlockall, SYS_munlockall,
        SYS_vhangup, SYS_sync, SYS_iopl, SYS_ioperm, SYS_gettid, SYS_readahead, SYS_tkill,
        SYS_io_destroy, SYS_epoll_create, SYS_remap_file_pages, SYS_set_tid_address,
        SYS_restart_syscall, SYS_fadvise64, SYS_timer_getoverrun, SYS_timer_delete, SYS_exit_group,
        SYS_tgkill, SYS_ioprio_set, SYS_ioprio_get, SYS_inotify_init, SYS_inotify_rm_watch,
        SYS_unshare, SYS_set_robust_list, SYS_tee, SYS_sync_file_range, SYS_timerfd_create,
        SYS_eventfd, SYS_fallocate, SYS_eventfd2, SYS_epoll_create1, SYS_dup3, SYS_inotify_init1,
        SYS_fanotify_init, SYS_syncfs, SYS_setns, SYS_kcmp, SYS_userfaultfd, SYS_membarrier,
        SYS_pkey_alloc, SYS_pkey_free, SYS_rseq, SYS_pidfd_open,
        SYS_clone3, SYS_close_range, SYS_pidfd_getfd, SYS_fsmount, SYS_landlock_restrict_self,
        SYS_memfd_secret, SYS_process_mrelease, SYS_set_mempolicy_home_node, SYS_MAP_SHADOW_STACK,
            ]),
    (0b1, &[
        SYS_open, SYS_poll, SYS_access, SYS_pipe, SYS_uname, SYS_truncate, SYS_getcwd, SYS_chdir,
        SYS_mkdir, SYS_rmdir, SYS_creat, SYS_unlink, SYS_chmod, SYS_chown, SYS_lchown, SYS_sysinfo,
        SYS_times, SYS_rt_sigpending, SYS_rt_sigsuspend, SYS_mknod, SYS_uselib, SYS_adjtimex,
        SYS_chroot, SYS_acct, SYS_umount2, SYS_swapon, SYS_swapoff, SYS_sethostname,
        SYS_setdomainname, SYS_delete_module, SYS_time, SYS_set_thread_area, SYS_get_thread_area,
        SYS_mq_unlink, SYS_pipe2, SYS_perf_event_open, SYS_getrandom, SYS_memfd_create, SYS_fsopen,
        SYS_landlock_create_ruleset, SYS_FUTEX_WAKE, SYS_FUTEX_REQUEUE,
        // The second word of the commands that have two is near the first.
        SYS_futex,
    ]),
    (0b10, &[
        SYS_read, SYS_write, SYS_fstat, SYS_pread64, SYS_pwrite64, SYS_readv, SYS_writev,
        SYS_getitimer, SYS_connect, SYS_sendmsg, SYS_recvmsg, SYS_bind, SYS_semop, SYS_msgsnd,
        SYS_msgrcv, SYS_getdents, SYS_getrlimit, SYS_getrusage, SYS_syslog, SYS_getgroups,
        SYS_setgroups, SYS_ustat, SYS_fstatfs, SYS_sched_setparam, SYS_sched_getparam,
        SYS_sched_rr_get_interval, SYS_modify_ldt, SYS_arch_prctl, SYS_setrlimit, SYS_fremovexattr,
        SYS_flistxattr, SYS_io_setup, SYS_lookup_dcookie, SYS_getdents64, SYS_timer_gettime,
        SYS_clock_settime, SYS_clock_gettime, SYS_clock_getres, SYS_epoll_wait, SYS_set_mempolicy,
        SYS_mq_notify, SYS_inotify_add_watch, SYS_openat, SYS_mkdirat, SYS_mknodat, SYS_fchownat,
        SYS_unlinkat, SYS_fchmodat, SYS_faccessat, SYS_vmsplice, SYS_signalfd, SYS_timerfd_gettime,
        SYS_signalfd4, SYS_preadv, SYS_pwritev, SYS_open_by_handle_at, SYS_clock_adjtime,
        SYS_sendmmsg, SYS_finit_module, SYS_sched_setattr, SYS_sched_getattr, SYS_bpf, SYS_preadv2,
        SYS_pwritev2, SYS_io_uring_setup, SYS_open_tree, SYS_fspick, SYS_faccessat2,
        SYS_process_madvise, SYS_fchmodat2,
    ]),
    (0b11, &[
        SYS_stat, SYS_lstat, SYS_nanosleep, SYS_rename, SYS_link, SYS_symlink, SYS_readlink,
        SYS_gettimeofday, SYS_capget, SYS_capset, SYS_sigaltstack, SYS_utime, SYS_statfs,
        SYS_pivot_root, SYS_settimeofday, SYS_getcpu, SYS_listxattr, SYS_llistxattr,
        SYS_removexattr, SYS_lremovexattr, SYS_utimes, SYS_get_mempolicy, SYS_STATMOUNT,
        SYS_LISTMOUNT,
    ]),
    (0b100, &[
        SYS_ioctl, SYS_mincore, SYS_shmctl, SYS_sendfile, SYS_fcntl, SYS_msgctl,
        SYS_rt_sigqueueinfo, SYS_sched_setscheduler, SYS_sched_setaffinity, SYS_sched_getaffinity,
        SYS_io_submit, SYS_kexec_load, SYS_seccomp, SYS_pidfd_send_signal, SYS_io_uring_register,
        SYS_landlock_add_rule,
    ]),
    (0b101, &[SYS_init_module, SYS_symlinkat]),
    (0b110, &[
        SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_setitimer, SYS_accept, SYS_getsockname,
        SYS_getpeername, SYS_sysfs, SYS_fsetxattr, SYS_fgetxattr, SYS_io_cancel, SYS_timer_create,
        SYS_mq_getsetattr, SYS_futimesat, SYS_NEWFSTATAT, SYS_readlinkat, SYS_get_robust_list,
        SYS_utimensat, SYS_accept4, SYS_openat2, SYS_CACHESTAT,
    ]),
    (0b111, &[
        SYS_execve, SYS_getresuid, SYS_getresgid, SYS_rt_sigtimedwait, SYS_setxattr, SYS_lsetxattr,
        SYS_getxattr, SYS_lgetxattr, SYS_add_key,
    ]),
    (0b1000, &[
        SYS_socketpair, SYS_setsockopt, SYS_semctl, SYS_ptrace, SYS_reboot, SYS_epoll_ctl,
        SYS_mbind, SYS_rt_tgsigqueueinfo, SYS_kexec_file_load, SYS_quotactl_fd,
    ]),
    (0b1001, &[SYS_mq_open, SYS_futex_waitv]),
    (0b1010, &[
        SYS_wait4, SYS_quotactl, SYS_semtimedop, SYS_renameat, SYS_linkat, SYS_splice,
        SYS_process_vm_readv, SYS_process_vm_writev, SYS_renameat2, SYS_copy_file_range,
        SYS_move_mount, SYS_mount_setattr,
    ]),
    (0b1100, &[
        SYS_timer_settime, SYS_clock_nanosleep, SYS_migrate_pages, SYS_timerfd_settime,
        SYS_prlimit64, SYS_fsconfig,
    ]),
    (0b1101, &[SYS_ppoll]),
    (0b1110, &[SYS_name_to_handle_at, SYS_execveat]),
    (0b1111, &[SYS_request_key]),
    (0b1_0000, &[SYS_fanotify_mark, SYS_io_uring_enter]),
    (0b1_0001, &[SYS_FUTEX_WAIT]),
    (0b1_0010, &[SYS_sendto, SYS_mq_timedsend, SYS_epoll_pwait, SYS_recvmmsg, SYS_statx]),
    (0b1_0100, &[SYS_waitid]),
    (0b1_0111, &[SYS_mount]),
    (0b1_1000, &[SYS_getsockopt, SYS_io_getevents]),
    (0b1_1010, &[SYS_mq_timedreceive, SYS_epoll_pwait2]),
    (0b1_1100, &[SYS_move_pages]),
    (0b1_1110, &[SYS_select, SYS_prctl, SYS_keyctl]),
    (0b11_0010, &[SYS_recvfrom]),
    (0b11_1000, &[SYS_IO_PGETEVENTS]),
    (0b11_1110, &[SYS_pselect6]),
];
