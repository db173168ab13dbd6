/* What a call does not read is whatever a register holds. An address there is none to the call: it
   brings no page back. */
#include "common.h"
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/syscall.h>

#define PAGES 256

static char *memory;
static int queue;

static long fcntl_flags(char *at) { return syscall(SYS_fcntl, 0, F_GETFD, at); }
static long wake(char *at) { return syscall(SYS_futex, &queue, 1, 1, at, at, 0); }
static long name(char *at) { return syscall(SYS_prctl, PR_GET_DUMPABLE, at, at, at, at); }
static long grow(char *at)
{
    static char *grown;
    if (grown == NULL)
        grown = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return syscall(SYS_mremap, grown, MIB, MIB, MREMAP_MAYMOVE, at) == (long)grown;
}
static long forget(char *at) { return syscall(SYS_epoll_ctl, queue, EPOLL_CTL_DEL, 0, at); }
static long close_on_exec(char *at) { return syscall(SYS_ioctl, queue, FIOCLEX, at); }
static long semaphore(char *at) { return syscall(SYS_semctl, -1, 0, GETVAL, at); }
static long processor(char *at)
{
    unsigned here;
    return syscall(SYS_getcpu, &here, NULL, at);
}
static long traced(char *at) { return syscall(SYS_ptrace, PTRACE_CONT, -1, at, at); }

/* How many of its pages are in memory. */
static long present(void)
{
    uint64_t entries[PAGES];
    int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    off_t at = (off_t)((uintptr_t)memory / PAGE * sizeof *entries);
    if (map < 0 || pread(map, entries, sizeof entries, at) != (ssize_t)sizeof entries)
        die("/proc/self/pagemap");
    close(map);
    long pages = 0;
    for (size_t n = 0; n < PAGES; n++)
        pages += (long)(entries[n] >> 63);
    return pages;
}

static void leaves_them_out(const char *what, long (*call)(char *))
{
    evict_all();
    long before = present();
    for (size_t n = 0; n < PAGES; n++)
        call(memory + n * PAGE);
    check(present() < before + PAGES / 4, "%s brings no page back that it does not read", what);
}

int main(void)
{
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    queue = epoll_create1(0);
    if (memory == MAP_FAILED || queue < 0)
        die("mmap or epoll_create1");
    stamp(memory, PAGES * PAGE, 1);
    leaves_them_out("fcntl", fcntl_flags);
    leaves_them_out("futex", wake);
    leaves_them_out("prctl", name);
    leaves_them_out("mremap", grow);
    leaves_them_out("epoll_ctl", forget);
    leaves_them_out("ioctl", close_on_exec);
    leaves_them_out("semctl", semaphore);
    leaves_them_out("getcpu", processor);
    leaves_them_out("ptrace", traced);
    check(stamped(memory, PAGES * PAGE, 1), "and all hold what they held");
    return 0;
}
