/* Programs that put a narrow filter of system calls on themselves, and use much memory under it. */
#include "common.h"
#include <linux/audit.h>
#include <linux/filter.h>
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
        enum {
            HEAD = 4,
            COUNT = sizeof filter / sizeof filter[0],
            MORE = sizeof of_threads / sizeof of_threads[0]
        };
        struct sock_filter more[COUNT + MORE];
        memcpy(more, filter, HEAD * sizeof filter[0]);
        memcpy(more + HEAD, of_threads, sizeof of_threads);
        memcpy(more + HEAD + MORE, filter + HEAD, (COUNT - HEAD) * sizeof filter[0]);
        struct sock_fprog longer = {COUNT + MORE, more};
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

int main(void)
{
    early = heap_pages(512);
    fill(early, 512, 7);
    sandboxed(0);
    sandboxed(1);
    sandboxed(2);
    threads();
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
