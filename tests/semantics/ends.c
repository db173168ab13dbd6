/*
 * When a process is reaped nothing of it is left: shared memory is detached, its program may be
 * written, its file system is free. By each way to end.
 */
#include "common.h"
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define RUNS 20

static const char *const ways[] = {"exit", "_exit", "exit_group by number",
                                   "exit by a second thread", "return of an executed program"};

static void *exits(void *unused)
{
    (void)unused;
    exit(0);
}

static void end(int way, const char *program)
{
    pthread_t thread;
    switch (way) {
    case 0:
        exit(0);
    case 1:
        _exit(0);
    case 2:
        syscall(SYS_exit_group, 0);
        break;
    case 3:
        pthread_create(&thread, NULL, exits, NULL);
        pthread_exit(NULL);
    default:
        execl(program, program, "child", NULL);
        _exit(1);
    }
}

static void copy_self(const char *to)
{
    char buffer[65536];
    int in = open("/proc/self/exe", O_RDONLY), out = open(to, O_WRONLY | O_TRUNC);
    ssize_t n;
    while ((n = read(in, buffer, sizeof buffer)) > 0)
        if (write(out, buffer, (size_t)n) != n)
            die("copy");
    fchmod(out, 0700);
    close(in);
    close(out);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "child"))
        return 0;
    char program[] = "/tmp/overspill-ends-XXXXXX";
    close(mkstemp(program));
    copy_self(program);
    int shared = shmget(IPC_PRIVATE, 4 * MIB, IPC_CREAT | 0600);
    if (shared < 0)
        die("shmget");
    char *memory = map_pages(16 * MIB / PAGE);
    fill(memory, 16 * MIB / PAGE, 1);
    for (int way = 0; way < 5; way++) {
        int attached = 0, busy = 0, wrong = 0;
        for (int run = 0; run < RUNS; run++) {
            pid_t pid = fork_flushed();
            if (pid == 0) {
                if (shmat(shared, NULL, 0) == (void *)-1)
                    _exit(2);
                memory[run * PAGE] ^= 1;
                end(way, program);
            }
            wrong += reap(pid) != 0;
            struct shmid_ds about;
            shmctl(shared, IPC_STAT, &about);
            attached += about.shm_nattch != 0;
            int fd = open(program, O_WRONLY);
            busy += fd < 0;
            close(fd);
        }
        check(!wrong && !attached && !busy,
              "%s: %d ended wrongly, %d still attached, %d still busy", ways[way], wrong, attached,
              busy);
    }
    shmctl(shared, IPC_RMID, NULL);
    unlink(program);
    check(bad_pages(memory, 16 * MIB / PAGE, 1) == 0, "memory is as it was");
    return finish();
}
