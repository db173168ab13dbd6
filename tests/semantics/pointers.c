/*
 * Every system call that takes addresses, with memory behind each of them in turn that is out, that
 * may not be accessed, that is not there, or that ends too soon: the kernel says what it says of
 * other memory. Each is made by the instruction itself, as a program without the C library makes
 * it.
 *
 * The calls are those of `crates/os/src/seccomp/arguments.rs` that have addresses; a test compares
 * both. Left out (LEFT_OUT) is what changes the machine, or
 * the process for good, and what signal delivery refuses.
 */
#include "common.h"
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <time.h>

/* LEFT_OUT: SYS_settimeofday SYS_clock_settime SYS_adjtimex SYS_clock_adjtime SYS_sethostname
   SYS_setdomainname SYS_reboot SYS_kexec_load SYS_kexec_file_load SYS_init_module SYS_finit_module
   SYS_delete_module SYS_acct SYS_swapon SYS_swapoff SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot
   SYS_move_mount SYS_mount_setattr SYS_fsconfig SYS_fspick SYS_open_tree SYS_quotactl
   SYS_quotactl_fd SYS_setgroups SYS_capset SYS_ptrace SYS_seccomp SYS_add_key SYS_request_key
   SYS_keyctl SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_sigaltstack
   SYS_uselib SYS_set_thread_area SYS_get_thread_area SYS_ustat SYS_lookup_dcookie SYS_sysfs
   SYS_modify_ldt SYS_execveat SYS_syslog SYS_bpf SYS_fanotify_mark SYS_perf_event_open SYS_fsopen
   SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_rt_sigaction SYS_statmount SYS_listmount
   SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_futex_waitv SYS_open_by_handle_at
   SYS_name_to_handle_at SYS_setrlimit SYS_cachestat SYS_futex_wake SYS_futex_wait
   SYS_futex_requeue SYS_mq_notify SYS_vmsplice */

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_io_pgetevents
#define SYS_io_pgetevents 333
#endif

enum { MOST = 6, ROOM = 64 };
/* In place of the number of a child that has ended. */
#define ZOMBIE 0x20b1e

/* What calls are about. Made anew before each. */
static int pipes[2], pair[2], listener, client, file, other, directory, ep, tick, queue = -1;
static int messages, semaphores, shared, notify, itself;
static timer_t timer;
static aio_context_t aio;
static pid_t zombie = -1;

/* What they are handed: memory that is there. */
static char path[] = "file", path2[] = "made", dot[] = ".", name[] = "user.x", text[512];
static int two[2], word, length;
static long times2[4], long_word;
static uint64_t processors = ~(uint64_t)0;
static struct pollfd polled;
static struct timespec no_time, left_time;
static uint64_t set, old_set;
static fd_set sets[3];
static struct iovec vector, paged;
static struct msghdr header;
static struct mmsghdr headers;
static struct sockaddr_un address;
static struct epoll_event event;
static struct itimerspec timer_new, timer_old;
static struct itimerval interval_new, interval_old;
static struct rlimit limit_new = {0, 0}, limit_old;
static struct rusage usage;
static siginfo_t info;
static struct sembuf operation;
static struct { long type; char data[16]; } message;
static struct flock lock_of;
static struct iocb block;
static struct iocb *blocks;
static struct io_event done;
static struct sigevent no_event;
static struct mq_attr attributes;
static struct { uint32_t size, policy; uint64_t rest[5]; } scheduling;
static struct { uint64_t flags, mode, resolve; } how;
static struct { const void *set; size_t size; } masked;
static struct { uint32_t version; int pid; } capability_head;
static char *there, *area;

static long raw(long number, const long a[6])
{
    register long fourth __asm__("r10") = a[3], fifth __asm__("r8") = a[4],
                  sixth __asm__("r9") = a[5];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(fourth), "r"(fifth),
                       "r"(sixth)
                     : "rcx", "r11", "memory");
    return result;
}

static void nobody(int signal)
{
    (void)signal;
}

static void drain(int fd)
{
    char some[512];
    while (recv(fd, some, sizeof some, MSG_DONTWAIT) > 0)
        ;
}

static void prepare_objects(void)
{
    polled = (struct pollfd){pipes[0], POLLIN, 0};
    no_time = (struct timespec){0, 0};
    set = old_set = 0;
    memset(sets, 0, sizeof sets);
    FD_SET(pipes[0], &sets[0]);
    memset(text, 'a', 16);
    vector = (struct iovec){text, 16};
    paged = (struct iovec){there, PAGE};
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    length = sizeof address;
    header = (struct msghdr){.msg_iov = &vector, .msg_iovlen = 1};
    headers = (struct mmsghdr){.msg_hdr = header};
    event = (struct epoll_event){EPOLLIN, {0}};
    memset(&timer_new, 0, sizeof timer_new);
    memset(&interval_new, 0, sizeof interval_new);
    operation = (struct sembuf){0, 1, IPC_NOWAIT};
    message.type = 1;
    lock_of = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
    memset(&block, 0, sizeof block);
    block.aio_fildes = (uint32_t)file;
    block.aio_lio_opcode = IOCB_CMD_PREAD;
    block.aio_buf = (uint64_t)text;
    block.aio_nbytes = 16;
    blocks = &block;
    no_event = (struct sigevent){.sigev_notify = SIGEV_NONE};
    attributes = (struct mq_attr){.mq_flags = O_NONBLOCK, .mq_maxmsg = 4, .mq_msgsize = 128};
    memset(&scheduling, 0, sizeof scheduling);
    scheduling.size = 48;
    memset(&how, 0, sizeof how);
    masked.set = &set;
    masked.size = 8;
    capability_head.version = 0x20080522;
    capability_head.pid = 0;
    memset(times2, 0, sizeof times2);
    word = 0;
    long_word = 0;
}

/* As it was: a pipe with bytes in it, a queued message of each kind, a connection that waits. */
static void prepare(long number)
{
    char some[64] = {0};
    sigset_t ones;
    struct { long type; char data[16]; } taken;
    drain(pair[0]);
    drain(pair[1]);
    while (read(pipes[0], some, sizeof some) > 0)
        ;
    if (write(pipes[1], text, 32) != 32 || send(pair[1], text, 32, 0) != 32)
        die("prepare");
    while (msgrcv(messages, &taken, sizeof taken.data, 0, IPC_NOWAIT) >= 0)
        ;
    taken.type = 1;
    msgsnd(messages, &taken, sizeof taken.data, IPC_NOWAIT);
    if (queue >= 0) {
        char large[128];
        while (mq_receive(queue, large, sizeof large, NULL) >= 0)
            ;
        mq_send(queue, "queued", 7, 0);
    }
    lseek(file, 0, SEEK_SET);
    lseek(other, 0, SEEK_SET);
    lseek(directory, 0, SEEK_SET);
    if (number == SYS_accept || number == SYS_accept4) {
        struct sockaddr_un to;
        socklen_t len = sizeof to;
        close(client);
        int waiting = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (waiting >= 0)
            close(waiting);
        client = socket(AF_UNIX, SOCK_STREAM, 0);
        getsockname(listener, (struct sockaddr *)&to, &len);
        if (connect(client, (struct sockaddr *)&to, len) != 0)
            die("connect");
    }
    if ((number == SYS_wait4 || number == SYS_waitid) && (zombie < 0 || kill(zombie, 0) != 0)) {
        zombie = fork();
        if (zombie == 0)
            _exit(3);
        waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT);
    }
    unlink(path2);
    rmdir(path2);
    if (number == SYS_rmdir)
        mkdir(path2, 0700);
    if (number == SYS_unlink || number == SYS_unlinkat || number == SYS_rename ||
        number == SYS_renameat || number == SYS_renameat2)
        close(open(path2, O_CREAT | O_RDWR, 0600));
    if (number == SYS_rename || number == SYS_renameat || number == SYS_renameat2)
        rename(path2, "old");
    fsetxattr(file, name, "value", 5, 0);
    (void)!ftruncate(file, 4096);
    sigemptyset(&ones);
    if (number == SYS_rt_sigsuspend || number == SYS_rt_sigtimedwait) {
        sigaddset(&ones, SIGUSR1);
        sigprocmask(SIG_BLOCK, &ones, NULL);
        raise(SIGUSR1);
    }
    prepare_objects();
    if (number == SYS_rt_sigtimedwait)
        set = 1u << (SIGUSR1 - 1);
}

struct argument {
    long value;
    size_t size;
};

struct call {
    const char *what;
    long number;
    struct argument arguments[MOST];
    /* Whether its result is a descriptor. */
    int opens;
    /* Arguments, a bit each, that the kernel would not get to the end of: a stopped call that needs
       its sixth argument fails there (crates/preload/src/trap/present.rs). */
    unsigned whole;
};

#define P(object) {(long)&(object), sizeof(object)}
#define S(object, bytes) {(long)&(object), bytes}
#define N(value) {(long)(value), 0}
#define NONE {0, 0}

/* The memory that is handed to a call in place of an argument. */
enum state { OUT, OUT_AT_END, FORBIDDEN, BEHIND, CUT_OFF, READ_ONLY, STATES };
static const char *const names[STATES] = {
    "out", "out, up to its end", "forbidden", "behind", "cut off", "read only",
};

/* Pages: [0] to hold a copy, with a hole behind; [2] without access; [4] for reading. */
static long place(enum state state, const struct argument *argument)
{
    size_t size = argument->size;
    const void *content = (const void *)argument->value;
    char *at = area + ROOM;
    switch (state) {
    case OUT: break;
    case OUT_AT_END: at = area + PAGE - (size + 7) / 8 * 8; break;
    case CUT_OFF: at = area + PAGE - size / 2 / 8 * 8 - (size < 16 ? size / 2 : 0); break;
    case FORBIDDEN: return (long)(area + 2 * PAGE + ROOM);
    case BEHIND: return (long)(area + PAGE + ROOM);
    case READ_ONLY:
        at = area + 4 * PAGE + ROOM;
        mprotect(area + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE);
        break;
    default: break;
    }
    size_t room = (size_t)((state == READ_ONLY ? area + 5 * PAGE : area + PAGE) - at);
    memcpy(at, content, size < room ? size : room);
    if (state == READ_ONLY) {
        mprotect(area + 4 * PAGE, PAGE, PROT_READ);
        push_out(area + 4 * PAGE, PAGE);
    } else {
        push_out(area, PAGE);
    }
    return (long)at;
}

/* What was submitted is over before the next. */
static void await(long number, long result)
{
    struct io_event event_of;
    while (number == SYS_io_submit && result == 1 &&
           syscall(SYS_io_getevents, aio, 1, 1, &event_of, NULL) != 1)
        ;
}

static void one(const struct call *call, int at, enum state state)
{
    long arguments[MOST];
    prepare(call->number);
    for (int i = 0; i < MOST; i++)
        arguments[i] = call->arguments[i].value == ZOMBIE ? zombie : call->arguments[i].value;
    if (at >= 0)
        arguments[at] = place(state, &call->arguments[at]);
    long result = raw(call->number, arguments);
    await(call->number, result);
    if (call->opens && result >= 0)
        close((int)result);
    /* Its ring may lie in a hole. */
    if (call->number == SYS_io_setup && result >= 0) {
        aio_context_t made;
        memcpy(&made, (void *)arguments[1], sizeof made);
        syscall(SYS_io_destroy, made);
    }
    if (call->number == SYS_mq_open && result >= 0)
        mq_unlink("/overspill-pointers-2");
    if (at < 0)
        printf("%s: %s\n", call->what, result >= 0 ? "done" : strerrorname_np((int)-result));
    else
        printf("  %d %s: %s\n", at + 1, names[state],
               result >= 0 ? "done" : strerrorname_np((int)-result));
    if (call->number == SYS_rt_sigsuspend || call->number == SYS_rt_sigtimedwait ||
        call->number == SYS_rt_sigprocmask) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
    }
}

static void every(const struct call *call)
{
    one(call, -1, OUT);
    for (int at = 0; at < MOST; at++)
        if (call->arguments[at].size)
            for (int state = 0; state < STATES; state++)
                if (!(call->whole & 1u << at) || state <= OUT_AT_END)
                    one(call, at, (enum state)state);
    fflush(stdout);
}

#define CALL(call, ...) {#call, call, {__VA_ARGS__}, 0, 0}
#define WHOLE(which, call, ...) {#call, call, {__VA_ARGS__}, 0, which}
#define OPEN(call, ...) {#call, call, {__VA_ARGS__}, 1, 0}

static void calls(void)
{
    const struct call all[] = {
        /* Paths. */
        OPEN(SYS_open, P(path), N(O_RDONLY)),
        OPEN(SYS_creat, P(path2), N(0600)),
        OPEN(SYS_openat, N(AT_FDCWD), P(path), N(O_RDONLY)),
        OPEN(SYS_openat2, N(AT_FDCWD), P(path), P(how), N(24)),
        CALL(SYS_access, P(path), N(R_OK)),
        CALL(SYS_faccessat, N(AT_FDCWD), P(path), N(R_OK)),
        CALL(SYS_faccessat2, N(AT_FDCWD), P(path), N(R_OK), N(0)),
        CALL(SYS_truncate, P(path), N(4096)),
        CALL(SYS_chdir, P(dot)),
        CALL(SYS_mkdir, P(path2), N(0700)),
        CALL(SYS_mkdirat, N(AT_FDCWD), P(path2), N(0700)),
        CALL(SYS_rmdir, P(path2)),
        CALL(SYS_unlink, P(path2)),
        CALL(SYS_unlinkat, N(AT_FDCWD), P(path2), N(0)),
        CALL(SYS_chmod, P(path), N(0600)),
        CALL(SYS_fchmodat, N(AT_FDCWD), P(path), N(0600)),
        CALL(SYS_fchmodat2, N(AT_FDCWD), P(path), N(0600), N(0)),
        CALL(SYS_chown, P(path), N(-1), N(-1)),
        CALL(SYS_lchown, P(path), N(-1), N(-1)),
        CALL(SYS_fchownat, N(AT_FDCWD), P(path), N(-1), N(-1), N(0)),
        CALL(SYS_mknod, P(path2), N(S_IFREG | 0600), N(0)),
        CALL(SYS_mknodat, N(AT_FDCWD), P(path2), N(S_IFREG | 0600), N(0)),
        CALL(SYS_stat, P(path), S(text, sizeof(struct stat))),
        CALL(SYS_lstat, P(path), S(text, sizeof(struct stat))),
        CALL(SYS_newfstatat, N(AT_FDCWD), P(path), S(text, sizeof(struct stat)), N(0)),
        CALL(SYS_statx, N(AT_FDCWD), P(path), N(0), N(STATX_BASIC_STATS), S(text, 256)),
        CALL(SYS_rename, S("old", 4), P(path2)),
        CALL(SYS_renameat, N(AT_FDCWD), S("old", 4), N(AT_FDCWD), P(path2)),
        CALL(SYS_renameat2, N(AT_FDCWD), S("old", 4), N(AT_FDCWD), P(path2), N(0)),
        CALL(SYS_link, P(path), P(path2)),
        CALL(SYS_linkat, N(AT_FDCWD), P(path), N(AT_FDCWD), P(path2), N(0)),
        CALL(SYS_symlink, P(path), P(path2)),
        CALL(SYS_symlinkat, P(path), N(AT_FDCWD), P(path2)),
        CALL(SYS_readlink, S("link", 5), S(text, 16), N(16)),
        CALL(SYS_readlinkat, N(AT_FDCWD), S("link", 5), S(text, 16), N(16)),
        CALL(SYS_utime, P(path), S(times2, 16)),
        CALL(SYS_utimes, P(path), P(times2)),
        CALL(SYS_futimesat, N(AT_FDCWD), P(path), P(times2)),
        CALL(SYS_utimensat, N(AT_FDCWD), P(path), P(times2), N(0)),
        CALL(SYS_statfs, P(path), S(text, sizeof(struct statfs))),
        CALL(SYS_setxattr, P(path), P(name), S(text, 8), N(8), N(0)),
        CALL(SYS_lsetxattr, P(path), P(name), S(text, 8), N(8), N(0)),
        CALL(SYS_fsetxattr, N(file), P(name), S(text, 8), N(8), N(0)),
        CALL(SYS_getxattr, P(path), P(name), S(text, 64), N(64)),
        CALL(SYS_lgetxattr, P(path), P(name), S(text, 64), N(64)),
        CALL(SYS_fgetxattr, N(file), P(name), S(text, 64), N(64)),
        CALL(SYS_listxattr, P(path), S(text, 64), N(64)),
        CALL(SYS_llistxattr, P(path), S(text, 64), N(64)),
        CALL(SYS_flistxattr, N(file), S(text, 64), N(64)),
        CALL(SYS_removexattr, P(path), P(name)),
        CALL(SYS_lremovexattr, P(path), P(name)),
        CALL(SYS_fremovexattr, N(file), P(name)),
        CALL(SYS_inotify_add_watch, N(notify), P(path), N(IN_OPEN)),
        OPEN(SYS_memfd_create, P(path), N(0)),
        OPEN(SYS_mq_open, S("overspill-pointers-2", 21), N(O_RDWR | O_CREAT), N(0600),
             P(attributes)),
        CALL(SYS_mq_unlink, S("overspill-none", 15)),
        CALL(SYS_getcwd, S(text, 256), N(256)),
        CALL(SYS_execve, S("not-there", 10), S(long_word, 8), S(long_word, 8)),
        /* Data. */
        CALL(SYS_read, N(pipes[0]), S(text, 16), N(16)),
        CALL(SYS_write, N(pipes[1]), S(text, 16), N(16)),
        CALL(SYS_pread64, N(file), S(text, 16), N(16), N(0)),
        CALL(SYS_pwrite64, N(file), S(text, 16), N(16), N(0)),
        CALL(SYS_readv, N(pipes[0]), P(vector), N(1)),
        CALL(SYS_writev, N(pipes[1]), P(vector), N(1)),
        CALL(SYS_preadv, N(file), P(vector), N(1), N(0), N(0)),
        CALL(SYS_pwritev, N(file), P(vector), N(1), N(0), N(0)),
        CALL(SYS_preadv2, N(file), P(vector), N(1), N(0), N(0), N(0)),
        CALL(SYS_pwritev2, N(file), P(vector), N(1), N(0), N(0), N(0)),
        CALL(SYS_sendto, N(pair[0]), S(text, 16), N(16), N(0), NONE, N(0)),
        WHOLE(1 << 4, SYS_recvfrom, N(pair[0]), S(text, 16), N(16), N(MSG_DONTWAIT), P(address),
              P(length)),
        CALL(SYS_sendmsg, N(pair[0]), P(header), N(0)),
        CALL(SYS_recvmsg, N(pair[0]), P(header), N(MSG_DONTWAIT)),
        CALL(SYS_sendmmsg, N(pair[0]), P(headers), N(1), N(0)),
        CALL(SYS_recvmmsg, N(pair[0]), P(headers), N(1), N(MSG_DONTWAIT), P(no_time)),
        CALL(SYS_getrandom, S(text, 16), N(16), N(0)),
        CALL(SYS_getdents, N(directory), S(text, 256), N(256)),
        CALL(SYS_getdents64, N(directory), S(text, 256), N(256)),
        CALL(SYS_msgsnd, N(messages), P(message), N(16), N(IPC_NOWAIT)),
        CALL(SYS_msgrcv, N(messages), P(message), N(16), N(0), N(IPC_NOWAIT)),
        CALL(SYS_mq_timedsend, N(queue), S(text, 16), N(16), N(0), P(no_time)),
        CALL(SYS_mq_timedreceive, N(queue), S(text, 128), N(128), P(word), P(no_time)),
        CALL(SYS_process_vm_readv, N(getpid()), P(vector), N(1), P(vector), N(1), N(0)),
        CALL(SYS_process_vm_writev, N(getpid()), P(vector), N(1), P(vector), N(1), N(0)),
        CALL(SYS_sendfile, N(pipes[1]), N(file), P(long_word), N(16)),
        CALL(SYS_copy_file_range, N(file), P(long_word), N(other), P(times2[0]), N(16), N(0)),
        CALL(SYS_splice, N(file), P(long_word), N(pipes[1]), NONE, N(16), N(0)),
        CALL(SYS_io_submit, N(aio), N(1), P(blocks)),
        CALL(SYS_io_getevents, N(aio), N(0), N(1), P(done), P(no_time)),
        WHOLE(1 << 3 | 1 << 4, SYS_io_pgetevents, N(aio), N(0), N(1), P(done), P(no_time),
              P(masked)),
        CALL(SYS_io_cancel, N(aio), P(block), P(done)),
        CALL(SYS_process_madvise, N(itself), P(paged), N(1), N(MADV_COLD), N(0)),
        /* Descriptors. */
        CALL(SYS_fstat, N(file), S(text, sizeof(struct stat))),
        CALL(SYS_fstatfs, N(file), S(text, sizeof(struct statfs))),
        CALL(SYS_ioctl, N(pipes[0]), N(FIONREAD), P(word)),
        CALL(SYS_fcntl, N(file), N(F_GETLK), P(lock_of)),
        CALL(SYS_poll, P(polled), N(1), N(0)),
        CALL(SYS_ppoll, P(polled), N(1), P(no_time), P(set), N(8)),
        CALL(SYS_select, N(pipes[0] + 1), P(sets[0]), P(sets[1]), P(sets[2]), P(times2)),
        CALL(SYS_pselect6, N(pipes[0] + 1), P(sets[0]), P(sets[1]), P(sets[2]), P(no_time),
             P(masked)),
        CALL(SYS_epoll_ctl, N(ep), N(EPOLL_CTL_MOD), N(pipes[0]), P(event)),
        CALL(SYS_epoll_wait, N(ep), P(event), N(1), N(0)),
        CALL(SYS_epoll_pwait, N(ep), P(event), N(1), N(0), P(set), N(8)),
        CALL(SYS_epoll_pwait2, N(ep), P(event), N(1), P(no_time), P(set), N(8)),
        CALL(SYS_connect, N(pair[0]), P(address), N(sizeof address)),
        CALL(SYS_bind, N(pair[0]), P(address), N(sizeof address)),
        OPEN(SYS_accept, N(listener), P(address), P(length)),
        OPEN(SYS_accept4, N(listener), P(address), P(length), N(0)),
        CALL(SYS_getsockname, N(listener), P(address), P(length)),
        CALL(SYS_getpeername, N(client), P(address), P(length)),
        CALL(SYS_getsockopt, N(pair[0]), N(SOL_SOCKET), N(SO_TYPE), P(word), P(length)),
        CALL(SYS_setsockopt, N(pair[0]), N(SOL_SOCKET), N(SO_PASSCRED), P(word), N(4)),
        OPEN(SYS_signalfd, N(-1), P(set), N(8)),
        OPEN(SYS_signalfd4, N(-1), P(set), N(8), N(0)),
        CALL(SYS_timerfd_gettime, N(tick), P(timer_old)),
        CALL(SYS_timerfd_settime, N(tick), N(0), P(timer_new), P(timer_old)),
        CALL(SYS_mq_getsetattr, N(queue), P(attributes), P(attributes)),
        CALL(SYS_semop, N(semaphores), P(operation), N(1)),
        CALL(SYS_semtimedop, N(semaphores), P(operation), N(1), P(no_time)),
        CALL(SYS_semctl, N(semaphores), N(0), N(IPC_STAT), S(text, sizeof(struct semid_ds))),
        CALL(SYS_shmctl, N(shared), N(IPC_STAT), S(text, sizeof(struct shmid_ds))),
        CALL(SYS_msgctl, N(messages), N(IPC_STAT), S(text, sizeof(struct msqid_ds))),
        /* Time, signals, children. */
        CALL(SYS_time, P(long_word)),
        CALL(SYS_times, S(text, sizeof(struct tms))),
        CALL(SYS_gettimeofday, S(times2, 16), S(text, 8)),
        CALL(SYS_clock_gettime, N(CLOCK_MONOTONIC), P(left_time)),
        CALL(SYS_clock_getres, N(CLOCK_MONOTONIC), P(left_time)),
        CALL(SYS_nanosleep, P(no_time), P(left_time)),
        CALL(SYS_clock_nanosleep, N(CLOCK_MONOTONIC), N(0), P(no_time), P(left_time)),
        CALL(SYS_getitimer, N(ITIMER_VIRTUAL), P(interval_old)),
        CALL(SYS_setitimer, N(ITIMER_VIRTUAL), P(interval_new), P(interval_old)),
        CALL(SYS_timer_gettime, N(timer), P(timer_old)),
        CALL(SYS_timer_settime, N(timer), N(0), P(timer_new), P(timer_old)),
        CALL(SYS_timer_create, N(CLOCK_MONOTONIC), P(no_event), P(word)),
        CALL(SYS_futex, P(word), N(FUTEX_WAIT | FUTEX_PRIVATE_FLAG), N(1), P(no_time)),
        CALL(SYS_rt_sigpending, P(old_set), N(8)),
        CALL(SYS_rt_sigsuspend, P(set), N(8)),
        CALL(SYS_rt_sigtimedwait, P(set), P(info), P(no_time), N(8)),
        CALL(SYS_rt_sigprocmask, N(SIG_BLOCK), P(set), P(old_set), N(8)),
        CALL(SYS_pidfd_send_signal, N(itself), N(0), P(info), N(0)),
        CALL(SYS_wait4, N(ZOMBIE), P(word), N(WNOHANG), P(usage)),
        CALL(SYS_waitid, N(P_PID), N(ZOMBIE), P(info), N(WEXITED | WNOHANG | WNOWAIT), P(usage)),
        /* The process, and the machine. */
        CALL(SYS_pipe, P(two)),
        CALL(SYS_pipe2, P(two), N(0)),
        CALL(SYS_socketpair, N(AF_UNIX), N(SOCK_STREAM), N(0), P(two)),
        CALL(SYS_uname, S(text, sizeof(struct utsname))),
        CALL(SYS_sysinfo, S(text, sizeof(struct sysinfo))),
        CALL(SYS_getrlimit, N(RLIMIT_CORE), P(limit_old)),
        CALL(SYS_prlimit64, N(0), N(RLIMIT_CORE), P(limit_new), P(limit_old)),
        CALL(SYS_getrusage, N(RUSAGE_SELF), P(usage)),
        CALL(SYS_getgroups, N(32), S(text, 128)),
        CALL(SYS_getresuid, S(two[0], 4), S(two[1], 4), P(word)),
        CALL(SYS_getresgid, S(two[0], 4), S(two[1], 4), P(word)),
        CALL(SYS_getcpu, S(two[0], 4), S(two[1], 4), NONE),
        CALL(SYS_capget, P(capability_head), S(text, 24)),
        CALL(SYS_sched_setparam, N(0), S(long_word, 4)),
        CALL(SYS_sched_getparam, N(0), P(word)),
        CALL(SYS_sched_setscheduler, N(0), N(-1), P(word)),
        CALL(SYS_sched_rr_get_interval, N(0), P(left_time)),
        CALL(SYS_sched_setaffinity, N(0), N(8), P(processors)),
        CALL(SYS_sched_getaffinity, N(0), N(128), S(text, 128)),
        CALL(SYS_sched_setattr, N(-1), P(scheduling), N(0)),
        CALL(SYS_sched_getattr, N(0), S(text, 56), N(56), N(0)),
        CALL(SYS_arch_prctl, N(0x1003), P(long_word)),
        CALL(SYS_prctl, N(PR_SET_NAME), S(path, 16), NONE, NONE, NONE),
        CALL(SYS_prctl, N(PR_GET_NAME), S(text, 16), NONE, NONE, NONE),
        CALL(SYS_io_setup, N(1), P(long_word)),
        CALL(SYS_get_robust_list, N(0), P(long_word), S(times2[0], 8)),
        CALL(SYS_get_mempolicy, P(word), S(text, 128), N(1024), N(0), N(0)),
        CALL(SYS_set_mempolicy, N(0), S(long_word, 8), N(64)),
        CALL(SYS_mincore, N(there), N(PAGE), S(text, 1)),
        CALL(SYS_mbind, N(there), N(PAGE), N(0), S(long_word, 8), N(64), N(0)),
        CALL(SYS_move_pages, N(0), N(1), S(blocks, 8), NONE, P(word), N(0)),
        CALL(SYS_migrate_pages, N(0), N(8), S(long_word, 8), S(times2[0], 8)),
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        every(&all[i]);
}

/* ---- What lies behind an argument ---- */

/*
 * Prints what became of a call with memory behind the structure in one of its arguments: by the
 * instruction, with the structure out as well, and by the C library's function for all calls, with
 * one that is no managed memory.
 */
static void behind(const char *what, long number, int at, size_t outer, void **pointer,
                   size_t inner, const long given[6])
{
    static char same[512];
    void *right = NULL;
    for (int by_function = 0; by_function < 2; by_function++) {
        printf("%s, %s\n", what, by_function ? "by the function" : "by the instruction");
        for (int state = 0; state < STATES; state++) {
            struct argument content = {(long)same, inner};
            long arguments[6], result;
            prepare(number);
            memcpy(arguments, given, sizeof arguments);
            if (state == 0 && !by_function)
                right = *pointer;
            memcpy(same, right, inner);
            *pointer = (void *)place((enum state)state, &content);
            if (by_function) {
                result = syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
                                 arguments[4], arguments[5]);
                result = result == -1 ? -errno : result;
            } else {
                memcpy(there, (void *)given[at], outer);
                push_out(there, PAGE);
                arguments[at] = (long)there;
                result = raw(number, arguments);
            }
            await(number, result);
            printf("  %s: %s\n", names[state],
                   result >= 0 ? "done" : strerrorname_np((int)-result));
        }
    }
    fflush(stdout);
}

/* The structure in argument AT, and the pointer in it to so many bytes. */
#define BEHIND_OF(what, number, at, structure, pointer, inner, ...)                     \
    do {                                                                                \
        prepare(number);                                                                \
        long given[6] = {__VA_ARGS__};                                                  \
        behind(what, number, at, sizeof(structure), (void **)&(pointer), inner, given); \
    } while (0)

static void nested(void)
{
    static struct iovec far = {text, 16};
    long vec = (long)&vector, head = (long)&header, remote = (long)&far, self = getpid();
    BEHIND_OF("the set of pselect6", SYS_pselect6, 5, masked, masked.set, 8, pipes[0] + 1,
              (long)&sets[0], 0, 0, (long)&no_time, (long)&masked);
    BEHIND_OF("the set of io_pgetevents", SYS_io_pgetevents, 5, masked, masked.set, 8, (long)aio,
              0, 1, (long)&done, (long)&no_time, (long)&masked);
    BEHIND_OF("the buffer of readv", SYS_readv, 1, vector, vector.iov_base, 16, pipes[0], vec, 1);
    BEHIND_OF("the buffer of writev", SYS_writev, 1, vector, vector.iov_base, 16, pipes[1], vec,
              1);
    BEHIND_OF("the buffer of preadv", SYS_preadv, 1, vector, vector.iov_base, 16, file, vec, 1);
    BEHIND_OF("the buffer of pwritev", SYS_pwritev, 1, vector, vector.iov_base, 16, file, vec, 1);
    BEHIND_OF("the vector of recvmsg", SYS_recvmsg, 1, header, header.msg_iov, sizeof vector,
              pair[0], head, MSG_DONTWAIT);
    BEHIND_OF("the vector of sendmsg", SYS_sendmsg, 1, header, header.msg_iov, sizeof vector,
              pair[0], head, 0);
    BEHIND_OF("the block of io_submit", SYS_io_submit, 2, blocks, blocks, sizeof block, (long)aio,
              1, (long)&blocks);
    /* One process, two sides. */
    BEHIND_OF("the local buffer of process_vm_readv", SYS_process_vm_readv, 1, vector,
              vector.iov_base, 16, self, vec, 1, remote, 1, 0);
    BEHIND_OF("the remote buffer of process_vm_readv", SYS_process_vm_readv, 3, far, far.iov_base,
              16, self, vec, 1, remote, 1, 0);
    far.iov_base = text;
    BEHIND_OF("the local buffer of process_vm_writev", SYS_process_vm_writev, 1, vector,
              vector.iov_base, 16, self, vec, 1, remote, 1, 0);
    BEHIND_OF("the remote buffer of process_vm_writev", SYS_process_vm_writev, 3, far,
              far.iov_base, 16, self, vec, 1, remote, 1, 0);
}

/* pselect(3), whose set the C library hands on behind a structure of its own. */
static void by_pselect(void)
{
    printf("the set of pselect\n");
    for (int state = 0; state < STATES; state++) {
        struct argument content = P(set);
        prepare(SYS_pselect6);
        const void *at = (void *)place((enum state)state, &content);
        int result = pselect(pipes[0] + 1, &sets[0], NULL, NULL, &no_time, at);
        printf("  %s: %s\n", names[state], result >= 0 ? "done" : strerrorname_np(errno));
    }
    fflush(stdout);
}

/* The names and control data of messages: the header says how long they are, and is told. */
static void messages_with_names(void)
{
    for (int sends = 0; sends < 2; sends++)
        for (int field = 0; field < 2; field++) {
            printf("the %s of %s\n", field ? "control data" : "name",
                   sends ? "sendmsg" : "recvmsg");
            for (int state = 0; state < STATES; state++) {
                static char content[64];
                struct argument argument = {(long)content, sizeof content};
                prepare(SYS_recvmsg);
                memset(content, 0, sizeof content);
                void *at = (void *)place((enum state)state, &argument);
                if (field) {
                    header.msg_control = at;
                    header.msg_controllen = sizeof content;
                } else {
                    header.msg_name = at;
                    header.msg_namelen = sizeof content;
                }
                memcpy(there, &header, sizeof header);
                push_out(there, PAGE);
                long arguments[6] = {pair[0], (long)there, MSG_DONTWAIT, 0, 0, 0};
                long result = raw(sends ? SYS_sendmsg : SYS_recvmsg, arguments);
                printf("  %s: %s\n", names[state],
                       result >= 0 ? "done" : strerrorname_np((int)-result));
            }
        }
    fflush(stdout);
}

static void make_world(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct mq_attr small = {.mq_maxmsg = 4, .mq_msgsize = 128};
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    socklen_t len = sizeof to;
    struct sigaction action = {.sa_handler = nobody};
    sigaction(SIGUSR1, &action, NULL);
    file = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    other = open("other", O_CREAT | O_RDWR | O_TRUNC, 0600);
    directory = open(".", O_RDONLY | O_DIRECTORY);
    unlink("link");
    if (file < 0 || other < 0 || directory < 0 || symlink(path, "link") != 0 ||
        pipe2(pipes, O_NONBLOCK) != 0 ||
        socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair) != 0)
        die("files");
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    client = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&to, sizeof to.sun_family) != 0 ||
        listen(listener, 4) != 0 || getsockname(listener, (struct sockaddr *)&to, &len) != 0 ||
        connect(client, (struct sockaddr *)&to, len) != 0)
        die("sockets");
    ep = epoll_create1(0);
    struct epoll_event in = {EPOLLIN, {0}};
    epoll_ctl(ep, EPOLL_CTL_ADD, pipes[0], &in);
    tick = timerfd_create(CLOCK_MONOTONIC, 0);
    itself = (int)syscall(SYS_pidfd_open, getpid(), 0);
    notify = inotify_init1(0);
    mq_unlink("/overspill-pointers");
    queue = mq_open("/overspill-pointers", O_CREAT | O_RDWR | O_NONBLOCK, 0600, &small);
    messages = msgget(IPC_PRIVATE, 0600);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    shared = shmget(IPC_PRIVATE, PAGE, 0600);
    if (syscall(SYS_io_setup, 8, &aio) != 0 || timer_create(CLOCK_MONOTONIC, &none, &timer) != 0)
        die("io_setup");
}

int main(void)
{
    be_managed();
    alarm(300);
    make_world();
    there = map_pages(2);
    memset(there, 1, 2 * PAGE);
    area = map_pages(6);
    memset(area, 1, 6 * PAGE);
    munmap(area + PAGE, PAGE);
    mprotect(area + 2 * PAGE, PAGE, PROT_NONE);
    munmap(area + 3 * PAGE, PAGE);
    munmap(area + 5 * PAGE, PAGE);
    calls();
    nested();
    by_pselect();
    messages_with_names();
    mq_unlink("/overspill-pointers");
    msgctl(messages, IPC_RMID, NULL);
    semctl(semaphores, 0, IPC_RMID);
    shmctl(shared, IPC_RMID, NULL);
    check(1, "to the end");
    return finish();
}
