/*
 * A program that changes its user, its groups or its capabilities: everything that shares its
 * command line, and so its memory, has the same afterwards.
 */
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define SOMEBODY 54321

static char own_line[4096];
static size_t own_len;
/* Whether nothing that this program executes gets more rights than it has. */
static int promised;

static size_t command_line(const char *pid, char *line, size_t room)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    int fd = open(path, O_RDONLY);
    ssize_t len = fd < 0 ? 0 : read(fd, line, room);
    close(fd);
    return len > 0 ? (size_t)len : 0;
}

/* The lines of a task's status that say what it may, one after the other; nothing for workers of
   io_uring, which run no code of a program's. */
static void rights(const char *pid, const char *task, char *to, size_t room)
{
    char path[600], line[512];
    snprintf(path, sizeof path, "/proc/%s/task/%s/status", pid, task);
    FILE *status = fopen(path, "r");
    to[0] = 0;
    while (status && fgets(line, sizeof line, status) && strncmp(line, "Name:\tiou-", 10))
        if (!strncmp(line, "Uid:", 4) || !strncmp(line, "Gid:", 4) ||
            !strncmp(line, "Groups:", 7) || !strncmp(line, "CapPrm:", 7) ||
            !strncmp(line, "CapEff:", 7) || (promised && !strncmp(line, "NoNewPrivs:", 11)))
            strncat(to, line, room - strlen(to) - 1);
    if (status)
        fclose(status);
}

static void all_the_same(const char *after)
{
    char expected[2048], found[2048], line[sizeof own_line], self[32];
    snprintf(self, sizeof self, "%d", (int)getpid());
    rights(self, self, expected, sizeof expected);
    int other = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *process; (process = readdir(processes));) {
        if (process->d_name[0] < '0' || process->d_name[0] > '9')
            continue;
        if (command_line(process->d_name, line, sizeof line) != own_len ||
            memcmp(line, own_line, own_len))
            continue;
        char path[300];
        snprintf(path, sizeof path, "/proc/%s/task", process->d_name);
        DIR *tasks = opendir(path);
        for (struct dirent *task; tasks && (task = readdir(tasks));) {
            if (task->d_name[0] == '.')
                continue;
            rights(process->d_name, task->d_name, found, sizeof found);
            if (found[0] && strcmp(found, expected)) {
                other++;
                fprintf(stderr, "after %s: %s/%s has\n%snot\n%s", after, process->d_name,
                        task->d_name, found, expected);
            }
        }
        if (tasks)
            closedir(tasks);
    }
    closedir(processes);
    check(other == 0, "after %s: %d have other rights", after, other);
}

static void promise(void)
{
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new rights by executing");
    promised = 1;
    all_the_same("that");
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        /* A command line of its own. */
        char number[32];
        snprintf(number, sizeof number, "%d", (int)getpid());
        execl("/proc/self/exe", argv[0], number, NULL);
        die("execl");
    }
    own_len = command_line("self", own_line, sizeof own_line);
    size_t pages = 24 * MIB / PAGE;
    char *memory = map_pages(pages);
    fill(memory, pages, 3);
    pressure(40);
    if (geteuid() != 0) {
        promise();
        printf("     only root has rights to give up: the test is left out\n");
        return finish();
    }
    gid_t *groups = (gid_t *)heap_pages(1);
    for (int i = 0; i < 100; i++)
        groups[i] = (gid_t)(SOMEBODY + i);
    pressure(40);
    check(setgroups(100, groups) == 0, "setgroups");
    all_the_same("setgroups");
    check(initgroups("root", SOMEBODY) == 0, "initgroups");
    all_the_same("initgroups");
    check(seteuid(SOMEBODY) == 0 && seteuid(0) == 0 && setegid(SOMEBODY) == 0, "there and back");
    all_the_same("there and back");
    uint32_t header[2] = {0x20080522, 0}, sets[6] = {0xff, 0xff, 0, 0, 0, 0};
    check(syscall(SYS_capset, header, sets) == 0, "capset");
    all_the_same("capset");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        check(setresgid(SOMEBODY, SOMEBODY, SOMEBODY) == 0 &&
                  setresuid(SOMEBODY, SOMEBODY, SOMEBODY) == 0,
              "a child's setresuid");
        check(bad_pages(memory, pages, 3) == 0, "the child's memory");
        fflush(stdout);
        _exit(failures != 0);
    }
    check(reap(pid) == 0, "the child");
    check(setgid(SOMEBODY) == 0 && setuid(SOMEBODY) == 0, "setuid");
    all_the_same("setuid");
    check(setuid(0) == -1 && errno == EPERM, "and not back");
    promise();
    check(bad_pages(memory, pages, 3) == 0, "memory is as it was");
    return finish();
}
