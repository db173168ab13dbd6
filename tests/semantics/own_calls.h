/* System calls by instructions of the program's own, and handlers that they set. */
#ifndef OWN_CALLS_H
#define OWN_CALLS_H

#include "common.h"
#include <sys/syscall.h>

/* A call whose number is in the code. */
#define CALL(number, a, b, c, d, e, f)                                                             \
    ({                                                                                             \
        register long r10 __asm__("r10") = (long)(d);                                              \
        register long r8 __asm__("r8") = (long)(e);                                                \
        register long r9 __asm__("r9") = (long)(f);                                                \
        long result;                                                                               \
        __asm__ volatile("mov %[nr], %%eax\n\tsyscall"                                             \
                         : "=a"(result)                                                            \
                         : [nr] "i"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)    \
                         : "rcx", "r11", "memory");                                                \
        result;                                                                                    \
    })

/* What rt_sigaction(2) takes. */
struct kernel_action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

/* How a handler ends. */
__asm__(".text\nown_restorer:\n\tmov $15, %rax\n\tsyscall\n");
extern void own_restorer(void);

#define OWN_RESTORER 0x04000000

#endif
