/* Programs that put a narrow filter of system calls on themselves, and use much memory under it.
   They are small before. */
#define STAY_SMALL
#include "common.h"
#include <dirent.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define PAGES (64 * MIB / PAGE)
#define ALLOW(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static char *early;

/* What a program needs that reads, writes and allocates. getppid() fails; anything else kills. */
static struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(SYS_read),
    ALLOW(SYS_write),
    ALLOW(SYS_exit),
    ALLOW(SYS_exit_group),
    ALLOW(SYS_rt_sigreturn),
    ALLOW(SYS_brk),
    ALLOW(SYS_mmap),
    ALLOW(SYS_munmap),
    ALLOW(SYS_mremap),
    ALLOW(SYS_madvise),
    ALLOW(SYS_futex),
    ALLOW(SYS_fstat),
    ALLOW(SYS_newfstatat),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
static struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};

/* The filter with more calls that are allowed. */
static struct sock_fprog with(const struct sock_filter *calls, size_t count)
{
    enum { HEAD = 4, ALL = sizeof filter / sizeof filter[0] };
    static struct sock_filter longer[2 * ALL];
    if (count > ALL)
        die("too many calls");
    memcpy(longer, filter, HEAD * sizeof filter[0]);
    memcpy(longer + HEAD, calls, count * sizeof filter[0]);
    memcpy(longer + HEAD + count, filter + HEAD, (ALL - HEAD) * sizeof filter[0]);
    return (struct sock_fprog){(unsigned short)(ALL + count), longer};
}

static void work(int ends[2])
{
    size_t bad = bad_pages(early, 512, 7);
    char *memory = map_pages(PAGES), *heap = malloc(8 * MIB);
    fill(memory, PAGES, 1);
    stamp(heap, 8 * MIB, 3);
    bad += bad_pages(memory, PAGES, 1) + !stamped(heap, 8 * MIB, 3) + bad_pages(early, 512, 7);
    /* A call on memory that is out. */
    for (size_t i = 0; i < 256; i++) {
        bad += write(ends[1], memory + i * PAGE, PAGE) != (ssize_t)PAGE;
        bad += read(ends[0], memory + (i + 1000) * PAGE, PAGE) != (ssize_t)PAGE;
    }
    bad += bad_pages(memory + 1000 * PAGE, 256, 1);
    check(bad == 0, "64 MiB under a filter: %zu bad", bad);
    memory = mremap(memory, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE);
    check(memory != MAP_FAILED && bad_pages(memory, 256, 1) == 0, "a mapping that grows");
    munmap(memory, 2 * PAGES * PAGE);
    free(heap);
    char *end = sbrk((intptr_t)MIB);
    if (end == (void *)-1)
        die("sbrk");
    stamp(end, MIB, 9);
    check(stamped(end, MIB, 9), "the end of the data");
    errno = 0;
    check(syscall(SYS_getppid) == -1 && errno == 77, "the filter has its say");
}

/* 0: by prctl, 1: by seccomp, 2: on all threads, of which there is another. */
static void sandboxed(int way)
{
    int ends[2];
    pid_t pid;
    if (pipe(ends) != 0)
        die("pipe");
    pid = fork_flushed();
    if (pid == 0) {
        failures = 0;
        pressure(24);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (way == 0)
            check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter by prctl");
        else
            check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                          way == 2 ? SECCOMP_FILTER_FLAG_TSYNC : 0, &program) == 0,
                  "a filter by seccomp");
        work(ends);
        fflush(stdout);
        _exit(failures ? 1 : 0);
    }
    int status = reap(pid);
    check(status == 0, "a sandboxed process, way %d: %d", way, status);
    /* And it kills for what it does not allow. */
    pid = fork_flushed();
    if (pid == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
        syscall(SYS_getuid);
        _exit(0);
    }
    check(reap(pid) == 128 + SIGSYS, "what is not allowed kills");
    close(ends[0]);
    close(ends[1]);
}

static atomic_int filtered;

static void *in_thread(void *argument)
{
    while (!filtered)
        usleep(1000);
    work(argument);
    return NULL;
}

/* A thread that was there before gets the filter too, and more of it. */
static void threads(void)
{
    int ends[2];
    if (pipe(ends) != 0)
        die("pipe");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        struct sock_filter of_threads[] = {
            ALLOW(SYS_clock_nanosleep),
            ALLOW(SYS_mprotect),
            ALLOW(SYS_rt_sigprocmask),
            ALLOW(SYS_set_robust_list),
            ALLOW(SYS_rseq),
        };
        struct sock_fprog longer = with(of_threads, sizeof of_threads / sizeof of_threads[0]);
        pthread_t thread;
        failures = 0;
        pthread_create(&thread, NULL, in_thread, ends);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &longer) ==
                  0,
              "a filter for all threads");
        filtered = 1;
        while (pthread_tryjoin_np(thread, NULL) == EBUSY)
            usleep(1000);
        check(syscall(SYS_getppid) == -1 && errno == 77, "and for the first");
        fflush(stdout);
        _exit(failures ? 1 : 0);
    }
    check(reap(pid) == 0, "a process with a filter on all its threads");
    close(ends[0]);
    close(ends[1]);
}

/* ---- What shares the memory ---- */

#define FILTERS "Seccomp_filters: %d"
#define USER "Uid: %d"

/* A number of a thread's status, by its folder in /proc; -1 where there is none, or one of the
   kernel's that works for a ring. */
static int status_of(const char *folder, const char *what)
{
    char path[320], line[256];
    int number = -1, is_worker = 0;
    snprintf(path, sizeof path, "%s/status", folder);
    FILE *status = fopen(path, "r");
    while (status && fgets(line, sizeof line, status)) {
        is_worker |= strncmp(line, "Name:\tiou-", 10) == 0;
        if (!is_worker)
            sscanf(line, what, &number);
    }
    if (status)
        fclose(status);
    return number;
}

/* Whoever shares the memory of a process in a sandbox is in it too, or has its user. */
static void none_is_outside(pid_t process, const char *what, const char *when)
{
    char folder[300];
    struct dirent *entry, *thread;
    DIR *all = opendir("/proc");
    snprintf(folder, sizeof folder, "/proc/%d", process);
    int own = status_of(folder, what), outside = 0;
    while (all && (entry = readdir(all))) {
        pid_t other = (pid_t)atoi(entry->d_name);
        if (other <= 0 || other == process || syscall(SYS_kcmp, process, other, KCMP_VM, 0, 0) != 0)
            continue;
        snprintf(folder, sizeof folder, "/proc/%d/task", other);
        DIR *threads = opendir(folder);
        while (threads && (thread = readdir(threads))) {
            if (thread->d_name[0] == '.')
                continue;
            snprintf(folder, sizeof folder, "/proc/%d/task/%s", other, thread->d_name);
            int number = status_of(folder, what);
            outside += number != own && number != -1;
        }
        if (threads)
            closedir(threads);
    }
    if (all)
        closedir(all);
    check(own >= 0 && outside == 0, "%s: %d threads outside of the sandbox", when, outside);
}

/* Two filters, of root and of somebody without rights; and what is used afterwards. */
static void beside(int is_root)
{
    int ends[2], told[2], seen[2];
    char byte = 0;
    if (pipe(ends) != 0 || pipe(told) != 0 || pipe(seen) != 0)
        die("pipe");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        struct sock_filter again[] = {ALLOW(SYS_prctl), ALLOW(SYS_seccomp)};
        struct sock_fprog longer = with(again, sizeof again / sizeof again[0]);
        failures = 0;
        pressure(24);
        if (!is_root && getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            die("setuid");
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &longer) == 0, "a filter");
        if (write(told[1], &byte, 1) != 1 || read(seen[0], &byte, 1) != 1)
            die("told");
        work(ends);
        check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &longer) == 0, "another");
        if (write(told[1], &byte, 1) != 1 || read(seen[0], &byte, 1) != 1)
            die("told");
        work(ends);
        fflush(stdout);
        _exit(failures ? 1 : 0);
    }
    close(told[1]);
    for (int filters = 1; filters <= 2 && read(told[0], &byte, 1) == 1; filters++) {
        none_is_outside(pid, FILTERS, is_root ? "root" : "somebody");
        if (write(seen[1], &byte, 1) != 1)
            die("seen");
    }
    int status = reap(pid);
    check(status == 0, "a process with two filters, %s: %d", is_root ? "root" : "somebody", status);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(seen[i]);
    }
    close(told[0]);
}

/* The child of a vfork puts itself into a sandbox, not its parent, which goes on to be followed. */
static void vforks(void)
{
    int told[2], seen[2];
    char byte = 0;
    if (pipe(told) != 0 || pipe(seen) != 0)
        die("pipe");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        pressure(24);
        pid_t child = vfork();
        if (child == 0) {
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
            _exit(0);
        }
        if (child < 0 || reap(child) != 0)
            die("vfork");
        if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            die("setuid");
        if (write(told[1], &byte, 1) != 1 || read(seen[0], &byte, 1) != 1)
            die("told");
        _exit(0);
    }
    close(told[1]);
    if (read(told[0], &byte, 1) == 1) {
        none_is_outside(pid, FILTERS, "after a vfork");
        none_is_outside(pid, USER, "another user after a vfork");
    }
    if (write(seen[1], &byte, 1) != 1)
        die("seen");
    check(reap(pid) == 0, "a process whose vforked child has a filter");
    close(told[0]);
    close(seen[0]);
    close(seen[1]);
}

/* ---- What others are kept from ---- */

/* A system call, and what ends the process where the kernel has let it through. */
__asm__("own_gadget: syscall\n\tud2");
extern const unsigned char own_gadget[];

/* Where the preloaded library, or else this program, makes a call and ends. */
static const unsigned char *gadget(void)
{
    const unsigned char *found = NULL;
    int preloaded = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[8];
    unsigned long start, end;
    if (!maps)
        die("maps");
    while (!found && fgets(line, sizeof line, maps)) {
        if (!strstr(line, "liboverspill_preload.so") ||
            sscanf(line, "%lx-%lx %7s", &start, &end, rights) != 3 || rights[2] != 'x')
            continue;
        preloaded = 1;
        found = memmem((void *)start, end - start, own_gadget, 4);
    }
    fclose(maps);
    if (preloaded && !found)
        die("no such instruction");
    return preloaded ? found : own_gadget;
}

static _Noreturn void jump(const unsigned char *place, const long call[7])
{
    register long fourth __asm__("r10") = call[4], fifth __asm__("r8") = call[5],
                         sixth __asm__("r9") = call[6];
    __asm__ volatile("jmp *%0" : : "r"(place), "a"(call[0]), "D"(call[1]), "S"(call[2]),
                     "d"(call[3]), "r"(fourth), "r"(fifth), "r"(sixth) : "memory");
    _exit(0);
}

/* How a process ends that jumps to the instruction, once it is in the sandbox. */
static int jumps_to(const unsigned char *place, const long call[7])
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
        jump(place, call);
    }
    return reap(pid);
}

/* The engine has exceptions from the program's filter. They are of no use to others. */
static void gadgets(void)
{
    static char name[] = "made-in-the-sandbox", text[8], shell[] = "/bin/true";
    static char *words[] = {shell, NULL};
    static struct iovec part = {text, sizeof text};
    static long room[64];
    static siginfo_t queued = {.si_code = SI_QUEUE};
    const unsigned char *place = gadget();
    pid_t other = fork_flushed();
    if (other == 0)
        for (;;)
            pause();
    const struct {
        const char *what;
        long call[7];
    } calls[] = {
        {"open", {SYS_open, (long)name, O_CREAT | O_RDWR, 0600}},
        {"openat", {SYS_openat, AT_FDCWD, (long)name, O_CREAT | O_RDWR, 0600}},
        {"openat in a directory", {SYS_openat, 3, (long)name, O_CREAT | O_RDWR, 0600}},
        {"unlinkat", {SYS_unlinkat, AT_FDCWD, (long)name, 0}},
        {"readlinkat", {SYS_readlinkat, AT_FDCWD, (long)name, (long)text, sizeof text}},
        {"statx", {SYS_statx, AT_FDCWD, (long)name, 0, 0, (long)room}},
        {"statfs", {SYS_statfs, (long)name, (long)room}},
        {"chdir", {SYS_chdir, (long)"/"}},
        {"socket", {SYS_socket, 1, 1, 0}},
        {"execve", {SYS_execve, (long)shell, (long)words, 0}},
        {"clone", {SYS_clone, SIGCHLD}},
        {"kill", {SYS_kill, other, SIGKILL}},
        {"tgkill", {SYS_tgkill, other, other, SIGKILL}},
        {"rt_tgsigqueueinfo", {SYS_rt_tgsigqueueinfo, other, other, 33, (long)&queued}},
        {"process_vm_readv", {SYS_process_vm_readv, other, (long)&part, 1, (long)&part, 1}},
        {"process_vm_writev", {SYS_process_vm_writev, other, (long)&part, 1, (long)&part, 1}},
        {"process_madvise", {SYS_process_madvise, 3, (long)&part, 1, MADV_PAGEOUT}},
        {"pidfd_getfd", {438, 3, 0, 0}},
        {"prlimit64 of another", {SYS_prlimit64, other, RLIMIT_NOFILE, (long)room}},
        {"fcntl(F_SETOWN)", {SYS_fcntl, 0, F_SETOWN, other}},
        {"fcntl(F_DUPFD)", {SYS_fcntl, 0, F_DUPFD, 0}},
        {"fcntl(F_DUPFD_CLOEXEC)", {SYS_fcntl, 0, F_DUPFD_CLOEXEC, 0}},
        {"ioctl", {SYS_ioctl, 0, 0x5401, (long)room}},
        {"pwrite64", {SYS_pwrite64, 1, (long)text, 1, 0}},
        {"pread64", {SYS_pread64, 0, (long)text, 1, 0}},
        {"ftruncate", {SYS_ftruncate, 0, 0}},
        {"pipe2", {SYS_pipe2, (long)room, 0}},
        {"io_uring_setup", {SYS_io_uring_setup, 2, (long)room}},
        {"io_uring_enter", {SYS_io_uring_enter, 3, 1, 0, 0}},
        {"pkey_mprotect", {SYS_pkey_mprotect, (long)place & -4096, 4096, PROT_READ, -1}},
        {"mprotect", {SYS_mprotect, (long)place & -4096, 4096, PROT_READ | PROT_EXEC}},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        int status = jumps_to(place, calls[i].call);
        check(status == 128 + SIGSYS, "no way around the filter for %s: %d", calls[i].what,
              status);
    }
    check(access(name, F_OK) != 0, "nothing was made");
    kill(other, SIGKILL);
    check(reap(other) == 128 + SIGKILL, "the other process is still there");
}

/* ---- Forks ---- */

static const struct sock_filter of_forks[] = {
    ALLOW(SYS_clone),
    ALLOW(SYS_wait4),
    ALLOW(SYS_set_robust_list),
    ALLOW(SYS_rt_sigprocmask),
    ALLOW(SYS_getpid),
    ALLOW(SYS_gettid),
};

/* A child has the filter of its parent, whose number the engine knew when that was put on. */
static void gadgets_in_a_child(void)
{
    static char text[8];
    static struct iovec part = {text, sizeof text};
    static siginfo_t queued = {.si_code = SI_QUEUE};
    enum { PARENT = -7 };
    const struct {
        const char *what;
        long call[7];
    } calls[] = {
        {"kill", {SYS_kill, PARENT, SIGKILL}},
        {"tgkill", {SYS_tgkill, PARENT, PARENT, SIGKILL}},
        {"tkill", {SYS_tkill, PARENT, SIGKILL}},
        {"rt_sigqueueinfo", {SYS_rt_sigqueueinfo, PARENT, SIGKILL, (long)&queued}},
        {"rt_tgsigqueueinfo", {SYS_rt_tgsigqueueinfo, PARENT, PARENT, 33, (long)&queued}},
        {"process_vm_readv", {SYS_process_vm_readv, PARENT, (long)&part, 1, (long)&part, 1}},
        {"process_vm_writev", {SYS_process_vm_writev, PARENT, (long)&part, 1, (long)&part, 1}},
    };
    const unsigned char *place = gadget();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        pid_t pid = fork_flushed();
        if (pid == 0) {
            struct sock_fprog longer = with(of_forks, sizeof of_forks / sizeof of_forks[0]);
            long call[7], own = getpid();
            for (int j = 0; j < 7; j++)
                call[j] = calls[i].call[j] == PARENT ? own : calls[i].call[j];
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &longer);
            pid_t child = fork_flushed();
            if (child == 0)
                jump(place, call);
            _exit(reap(child) == 128 + SIGSYS ? 0 : 1);
        }
        int status = reap(pid);
        check(status == 0, "no way to the parent by %s: %d", calls[i].what, status);
    }
}

/* A process that is small when it puts on its filter, and does nothing for a while. */
static void small(void)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        struct sock_filter of_sleep[] = {ALLOW(SYS_clock_nanosleep)};
        struct sock_fprog longer = with(of_sleep, sizeof of_sleep / sizeof of_sleep[0]);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &longer);
        usleep(1500000);
        char *memory = map_pages(4096);
        fill(memory, 4096, 1);
        _exit(bad_pages(memory, 4096, 1) != 0);
    }
    int status = reap(pid);
    check(status == 0, "a small process in a sandbox lives: %d", status);
}

/* A process in a sandbox forks, and its child: both go on with what is in memory and out of it. */
static void forks(void)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        struct sock_fprog longer = with(of_forks, sizeof of_forks / sizeof of_forks[0]);
        char *memory = map_pages(PAGES);
        failures = 0;
        fill(memory, PAGES, 1);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &longer) == 0, "a filter with forks");
        for (int depth = 0; depth < 2; depth++) {
            pid_t child = fork_flushed();
            if (child > 0) {
                int status = reap(child);
                check(status == 0, "a child in a sandbox, %d: %d", depth, status);
                break;
            }
            size_t bad = bad_pages(memory, PAGES, 1 + depth);
            fill(memory, PAGES, 2 + depth);
            char *own = map_pages(PAGES / 4);
            fill(own, PAGES / 4, 9);
            bad += bad_pages(memory, PAGES, 2 + depth) + bad_pages(own, PAGES / 4, 9);
            check(bad == 0, "memory in the child, %d: %zu bad", depth, bad);
        }
        fflush(stdout);
        _exit(failures ? 1 : 0);
    }
    int status = reap(pid);
    check(status == 0, "a sandboxed process that forks: %d", status);
}

int main(void)
{
    small();
    early = heap_pages(512);
    fill(early, 512, 7);
    sandboxed(0);
    sandboxed(1);
    sandboxed(2);
    threads();
    beside(1);
    beside(0);
    vforks();
    gadgets();
    gadgets_in_a_child();
    forks();
    /* What is no filter is refused as ever. */
    errno = 0;
    check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno == EFAULT,
          "no filter: EFAULT");
    struct sock_fprog empty = {0, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &empty) == -1 && errno == EINVAL,
          "an empty one: EINVAL");
    return finish();
}
