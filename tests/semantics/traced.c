/*
 * Executes a static program as a debugger does: traced from its start, it has its first instruction
 * where its file says. Exit status 2 without a program.
 *
 * usage: traced PROGRAM ARGUMENT...
 */
#include "common.h"
#include <elf.h>
#include <sys/ptrace.h>

/* The first word of code that a file has, and where. */
static long first_word(const char *path, Elf64_Addr *at)
{
    Elf64_Ehdr head;
    Elf64_Phdr part;
    long word = 0;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || read(fd, &head, sizeof head) != sizeof head)
        die(path);
    *at = head.e_entry;
    for (int i = 0; i < head.e_phnum; i++)
        if (pread(fd, &part, sizeof part, (off_t)(head.e_phoff + i * sizeof part)) > 0 &&
            part.p_type == PT_LOAD && head.e_entry - part.p_vaddr < part.p_filesz)
            if (pread(fd, &word, sizeof word,
                      (off_t)(part.p_offset + head.e_entry - part.p_vaddr)) != sizeof word)
                die("pread");
    close(fd);
    return word;
}

int main(int argc, char **argv)
{
    Elf64_Addr entry;
    int status;
    if (argc < 2)
        return 2;
    long word = first_word(argv[1], &entry);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execv(argv[1], argv + 1);
        _exit(127);
    }
    check(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "it stops when it is executed");
    check(word != 0 && ptrace(PTRACE_PEEKTEXT, pid, entry, NULL) == word,
          "its first instruction is where its file says");
    ptrace(PTRACE_CONT, pid, NULL, NULL);
    check(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "and it ends: %d",
          WEXITSTATUS(status));
    return failures != 0;
}
