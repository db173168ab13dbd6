/*
 * Not compared with a native run (failures.rs): kills the process that shares its memory, where
 * there is one, and goes on.
 */
#include "common.h"
#include <dirent.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>

static int is_beside(pid_t pid)
{
    return pid > 0 && pid != getpid() && syscall(SYS_kcmp, getpid(), pid, KCMP_VM, 0, 0) == 0;
}

int main(int argc, char **argv)
{
    size_t pages = 64 * MIB / PAGE;
    char *memory = map_pages(pages);
    fill(memory, pages, 1);
    if (argc > 1 && !strcmp(argv[1], "child")) {
        pid_t pid = fork_flushed();
        if (pid) {
            int status;
            waitpid(pid, &status, 0);
            printf("a child ended by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
            return bad_pages(memory, pages, 1) != 0;
        }
        memory[0] ^= 1;
    }
    printf("begun\n");
    fflush(stdout);
    DIR *all = opendir("/proc");
    for (struct dirent *entry; (entry = readdir(all));)
        if (is_beside(atoi(entry->d_name)) && kill(atoi(entry->d_name), SIGKILL))
            die("kill");
    printf("%zu pages are wrong\n", bad_pages(memory + PAGE, pages - 1, 2));
    return 0;
}
