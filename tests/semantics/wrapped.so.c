/* What wrapped.c opens: a library with a sigaction of its own, which calls the next one, as
   Firefox's libmozsandbox.so has it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>

int wrapped(int number, const struct sigaction *new, struct sigaction *old);

int wrapped(int number, const struct sigaction *new, struct sigaction *old)
{
    int (*real)(int, const struct sigaction *, struct sigaction *);
    *(void **)&real = dlsym(RTLD_NEXT, "sigaction");
    return real(number, new, old);
}
