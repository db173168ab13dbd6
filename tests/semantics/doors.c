/* A descriptor with O_DIRECT comes by the way that the argument names. What it is used for does not
   matter here: that it was seen is in the statistics. It is not one of the programs that are
   compared. */
#include "common.h"
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static int opened(void)
{
    /* By no function of the C library's: this is not to be seen. */
    register long r10 __asm__("r10") = 0600;
    long fd;
    __asm__ volatile("syscall"
                     : "=a"(fd)
                     : "a"(SYS_openat), "D"((long)AT_FDCWD), "S"("doors.tmp"),
                       "d"((long)(O_RDWR | O_CREAT | O_DIRECT)), "r"(r10)
                     : "rcx", "r11", "memory");
    if (fd == -EINVAL) {
        printf("     (left out: no direct I/O here)\n");
        exit(0);
    }
    if (fd < 0)
        die("open");
    unlink("doors.tmp");
    return (int)fd;
}

/* Sends a descriptor to itself, and receives it. */
static void by_message(int many, int by_number)
{
    int ends[2], fd = opened();
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    *part = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET,
                             .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) || sendmsg(ends[0], &message, 0) != 1)
        die("sendmsg");
    close(fd);
    struct mmsghdr messages = {.msg_hdr = message};
    long got = many        ? recvmmsg(ends[1], &messages, 1, 0, NULL)
               : by_number ? syscall(SYS_recvmsg, ends[1], &message, 0)
                           : recvmsg(ends[1], &message, 0);
    check(got == 1, "received");
}

int main(int argc, char **argv)
{
    const char *door = argc > 1 ? argv[1] : "";
    char name[] = "doors.XXXXXX.tmp", plain[] = "doors.XXXXXX";
    close(opened());
    /* Enough to have an engine. */
    fill(heap_pages(4096), 4096, 1);
    if (!strcmp(door, "mkostemp")) {
        check(mkostemp(plain, O_DIRECT) >= 0 && unlink(plain) == 0, "made");
    } else if (!strcmp(door, "mkostemps64")) {
        check(mkostemps64(name, 4, O_DIRECT) >= 0 && unlink(name) == 0, "made");
    } else if (!strcmp(door, "recvmsg")) {
        by_message(0, 0);
    } else if (!strcmp(door, "recvmmsg")) {
        by_message(1, 0);
    } else if (!strcmp(door, "syscall-recvmsg")) {
        by_message(0, 1);
    } else if (!strcmp(door, "pidfd_getfd")) {
        int fd = opened(), self = (int)syscall(SYS_pidfd_open, getpid(), 0);
        check(syscall(SYS_pidfd_getfd, self, fd, 0) >= 0, "got");
    } else if (!strcmp(door, "openat2")) {
        unsigned long long how[3] = {O_RDWR | O_CREAT | O_DIRECT, 0600, 0};
        check(syscall(SYS_openat2, AT_FDCWD, "doors.tmp", how, sizeof how) >= 0, "opened");
        unlink("doors.tmp");
    } else if (!strcmp(door, "function-openat2")) {
        /* glibc has it from 2.43 on. */
        unsigned long long how[3] = {O_RDWR | O_CREAT | O_DIRECT, 0600, 0};
        int (*function)(int, const char *, const void *, size_t);
        *(void **)&function = dlsym(RTLD_DEFAULT, "openat2");
        check(function && function(AT_FDCWD, "doors.tmp", how, sizeof how) >= 0, "opened");
        unlink("doors.tmp");
    } else if (!strcmp(door, "fcntl")) {
        int fd = mkostemp(plain, O_CLOEXEC);
        check(syscall(SYS_fcntl, fd, F_SETFL, O_DIRECT) == 0 && unlink(plain) == 0, "set");
    } else if (strcmp(door, "none")) {
        die(door);
    }
    return finish();
}
