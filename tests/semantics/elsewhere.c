/*
 * Programs that a job executes where the swap devices are out of reach, on a file system that is
 * read-only there, and by a user without rights. They run, and what they and their children have in
 * memory is whole.
 */
#define _GNU_SOURCE
#include "common.h"
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>

#define PAGES ((size_t)(40 * MIB / PAGE))
#define NOBODY 65534

/* Pages that are worth compressing. */
static size_t rewritten(unsigned char *memory, unsigned from, unsigned to)
{
    size_t bad = 0;
    for (size_t page = 0; page < PAGES; page++) {
        unsigned char *at = memory + page * PAGE;
        for (size_t i = 0; from && i < PAGE; i += 512)
            bad += at[i] != (unsigned char)(page + from);
        memset(at, (int)(page + to), PAGE);
    }
    return bad;
}

static int child(void)
{
    unsigned char *memory = (unsigned char *)map_pages(PAGES);
    size_t bad = rewritten(memory, 0, 1) + rewritten(memory, 1, 2);
    pid_t pid = fork();
    if (pid == 0)
        _exit(rewritten(memory, 2, 3) + rewritten(memory, 3, 4) != 0);
    bad += rewritten(memory, 2, 5);
    bad += reap(pid) != 0;
    return bad + rewritten(memory, 5, 6) != 0;
}

static void read_only_devices(void)
{
    const char *listed = getenv("OVERSPILL_SWAP");
    char path[4096] = "/var/tmp";
    if (listed)
        snprintf(path, sizeof path, "%.*s", (int)strcspn(listed, ":,"), listed);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount(path, path, NULL, MS_BIND, NULL) ||
        mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL))
        _exit(77);
}

static void give_up_rights(void)
{
    if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
        setresuid(NOBODY, NOBODY, NOBODY))
        _exit(77);
}

static int executed(const char *program, void (*prepare)(void))
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        prepare();
        execl(program, "elsewhere", "child", NULL);
        _exit(76);
    }
    return reap(pid);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "child"))
        return child();
    if (geteuid() != 0) {
        printf("     only root can be somebody else, and elsewhere: the test is left out\n");
        return finish();
    }
    pressure(40);
    /* Where everybody may execute it. */
    char program[64];
    snprintf(program, sizeof program, "/tmp/overspill-elsewhere-%d", (int)getpid());
    char command[4400];
    snprintf(command, sizeof command, "cp /proc/%d/exe %s && chmod 755 %s", (int)getpid(), program,
             program);
    if (system(command) != 0)
        die("copying the program");
    int result = executed(program, give_up_rights);
    check(result == 0, "by a user without rights: %d", result);
    result = executed(program, read_only_devices);
    if (result == 77)
        printf("     mounts cannot be made here: this part is left out\n");
    else
        check(result == 0, "where the devices are read-only: %d", result);
    unlink(program);
    return finish();
}
