/*
 * Calls that follow pointers behind their arguments, to pages that are out: filters of sockets,
 * lists of interfaces, futexes of which several are waited for, registers of a traced process,
 * programs of bpf(2). And what another thread writes beside what a call writes stays.
 */
#include "common.h"
#include <linux/bpf.h>
#include <linux/filter.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

struct waiter {
    uint64_t val, uaddr;
    uint32_t flags, reserved;
};

static void interfaces(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    char *block = heap_pages(4);
    memset(block, 1, 4 * PAGE);
    struct ifconf *managed = (struct ifconf *)block;
    evict_all();
    struct ifconf conf = {.ifc_len = PAGE, .ifc_buf = block + 2 * PAGE};
    check(ioctl(fd, SIOCGIFCONF, &conf) == 0 && conf.ifc_len >= 0,
          "SIOCGIFCONF, the list on the heap");
    managed->ifc_len = PAGE;
    managed->ifc_buf = block + 3 * PAGE;
    evict_all();
    check(ioctl(fd, SIOCGIFCONF, managed) == 0 && managed->ifc_len == conf.ifc_len,
          "SIOCGIFCONF, both on the heap");
    check(syscall(SYS_ioctl, fd, SIOCGIFCONF, &conf) == 0, "SIOCGIFCONF by number");
    errno = 0;
    conf.ifc_buf = (char *)16;
    conf.ifc_len = PAGE;
    int result = ioctl(fd, SIOCGIFCONF, &conf);
    check(result == -1 && errno == EFAULT, "SIOCGIFCONF with a bad address: %s", strerror(errno));
    free(block);
    close(fd);
}

static void filters(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sock_filter *filter = (struct sock_filter *)heap_pages(1);
    filter[0] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0xffff);
    struct sock_fprog program = {1, filter};
    evict_all();
    check(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0,
          "SO_ATTACH_FILTER");
    struct sock_fprog *managed = (struct sock_fprog *)heap_pages(1);
    *managed = program;
    evict_all();
    check(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, managed, sizeof *managed) == 0,
          "the same, both on the heap");
    free(managed);
    free(filter);
    close(fd);
}

static void futexes(void)
{
    uint32_t *words = (uint32_t *)heap_pages(2);
    memset(words, 0, 2 * PAGE);
    words[0] = 1;
    words[1024] = 2;
    struct waiter waiters[2] = {{1, (uintptr_t)words, 2, 0}, {7, (uintptr_t)&words[1024], 2, 0}};
    evict_all();
    long result = syscall(SYS_futex_waitv, waiters, 2, 0, NULL, 0);
    check(result == -1 && (errno == EAGAIN || errno == ENOSYS),
          "futex_waitv finds the value changed: %s", strerror(errno));
    struct waiter *managed = (struct waiter *)heap_pages(1);
    memcpy(managed, waiters, sizeof waiters);
    evict_all();
    result = syscall(SYS_futex_waitv, managed, 2, 0, NULL, 0);
    check(result == -1 && (errno == EAGAIN || errno == ENOSYS), "the same, all on the heap: %s",
          strerror(errno));
    free(managed);
    free(words);
}

static void traced(void)
{
    struct user_regs_struct *registers = (struct user_regs_struct *)heap_pages(1);
    memset(registers, 0, sizeof *registers);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
            _exit(1);
        raise(SIGSTOP);
        _exit(7);
    }
    int status;
    check(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP,
          "a traced child stops");
    evict_all();
    struct iovec area = {registers, sizeof *registers};
    check(ptrace(PTRACE_GETREGSET, pid, (void *)1, &area) == 0 && registers->rip != 0,
          "PTRACE_GETREGSET");
    evict_all();
    check(ptrace(PTRACE_GETREGS, pid, NULL, registers) == 0, "PTRACE_GETREGS");
    check(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0 && reap(pid) == 7, "it goes on");
    free(registers);
}

static void bpf_calls(void)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = 4;
    attr.value_size = 8;
    attr.max_entries = 4;
    int map = (int)syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof attr);
    if (map < 0)
        return;
    char *block = heap_pages(2);
    memset(block, 0, 2 * PAGE);
    *(uint64_t *)(block + PAGE) = 77;
    memset(&attr, 0, sizeof attr);
    attr.map_fd = map;
    attr.key = (uintptr_t)block;
    attr.value = (uintptr_t)(block + PAGE);
    evict_all();
    int right = syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attr, sizeof attr) == 0;
    *(uint64_t *)(block + PAGE) = 0;
    evict_all();
    right = right && syscall(SYS_bpf, BPF_MAP_LOOKUP_ELEM, &attr, sizeof attr) == 0;
    if (!right || *(uint64_t *)(block + PAGE) != 77)
        check(0, "bpf");
    free(block);
    close(map);
}

static struct pollfd *polled;

static void *changer(void *unused)
{
    usleep(100000);
    polled[1].fd = -1;
    polled[1].events = 77;
    *(int *)unused = 1;
    return NULL;
}

static void changed_meanwhile(void)
{
    int ends[2], flag = 0;
    if (pipe(ends))
        die("pipe");
    polled = (struct pollfd *)heap_pages(1);
    polled[0] = (struct pollfd){ends[0], POLLIN, 0};
    polled[1] = (struct pollfd){ends[0], POLLIN, 0};
    pthread_t thread;
    pthread_create(&thread, NULL, changer, &flag);
    check(poll(polled, 2, 400) == 0, "poll waits");
    pthread_join(thread, NULL);
    check(polled[1].fd == -1 && polled[1].events == 77,
          "what another thread wrote meanwhile stays");
    polled[1] = (struct pollfd){ends[1], POLLOUT, 0};
    check(poll(polled, 2, 0) == 1 && polled[1].revents == POLLOUT && polled[0].revents == 0,
          "what poll says is seen");
    fd_set *sets = (fd_set *)heap_pages(1);
    FD_ZERO(&sets[0]);
    FD_ZERO(&sets[1]);
    FD_SET(ends[0], &sets[0]);
    FD_SET(ends[1], &sets[1]);
    check(select(ends[1] + 1, &sets[0], &sets[1], NULL, NULL) == 1, "select");
    check(!FD_ISSET(ends[0], &sets[0]) && FD_ISSET(ends[1], &sets[1]), "what select says is seen");
    free(sets);
    free(polled);
    close(ends[0]);
    close(ends[1]);
}

/* A call that has done its work before it meets a bad address is made once. */
static void consuming(void)
{
    struct {
        sigset_t set;
        char *managed;
    } waited = {.managed = heap_pages(1)};
    struct timespec at_once = {0, 0};
    sigemptyset(&waited.set);
    sigaddset(&waited.set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &waited.set, NULL);
    raise(SIGUSR1);
    errno = 0;
    long result = syscall(SYS_rt_sigtimedwait, &waited.set, (void *)1, &at_once, 8);
    check(result == -1 && errno == EFAULT, "a signal that is taken, to a bad address: %s",
          strerror(errno));
    free(waited.managed);
}

int main(void)
{
    consuming();
    interfaces();
    filters();
    futexes();
    traced();
    bpf_calls();
    changed_meanwhile();
    return finish();
}
