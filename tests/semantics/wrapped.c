/* Actions that are set by the C library's sigaction, which a library has found as the next one
   after its own: also for the signals that faults and calls come by. */
#include "common.h"
#include <dlfcn.h>
#include <sys/syscall.h>

enum { MEMORY_PAGES = 64 };
static char *memory;
static int (*wrapped)(int, const struct sigaction *, struct sigaction *);
static volatile sig_atomic_t hits, was_right;

static int is_right(void)
{
    push_out(memory, MEMORY_PAGES * PAGE);
    return bad_pages(memory, MEMORY_PAGES, 1) == 0;
}

static void look(int number, siginfo_t *info, void *context)
{
    (void)context;
    was_right = info->si_signo == number && is_right();
    hits++;
}

static void handled(int number, const char *name)
{
    struct sigaction action, before, now;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = look;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigfillset(&action.sa_mask);
    check(wrapped(number, NULL, &before) == 0 && before.sa_handler == SIG_DFL, "%s: its default",
          name);
    check(wrapped(number, &action, NULL) == 0 && is_right(), "%s: a handler is set", name);
    check(sigaction(number, NULL, &now) == 0 && now.sa_sigaction == look &&
              wrapped(number, NULL, &now) == 0 && now.sa_sigaction == look &&
              sigismember(&now.sa_mask, SIGBUS) == 1,
          "%s: it is what was set", name);
    hits = was_right = 0;
    raise(number);
    check(hits == 1 && was_right, "%s: it runs", name);
    check(wrapped(number, &before, NULL) == 0 && is_right(), "%s: it is taken back", name);
    check(signal(number, SIG_IGN) == SIG_DFL && raise(number) == 0 && is_right() &&
              signal(number, SIG_DFL) == SIG_IGN,
          "%s: it is ignored", name);
}

int main(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW);
    struct sigaction action;
    be_managed();
    *(void **)&wrapped = library ? dlsym(library, "wrapped") : NULL;
    if (!wrapped)
        die("dlopen");
    memory = map_pages(MEMORY_PAGES);
    fill(memory, MEMORY_PAGES, 1);
    memset(&action, 0, sizeof action);
    handled(SIGUSR1, "SIGUSR1");
    handled(SIGSYS, "SIGSYS");
    handled(SIGBUS, "SIGBUS");
    for (int number = 32; number < 34; number++)
        check(wrapped(number, &action, NULL) == -1 && errno == EINVAL, "one of the C library's");
    check(wrapped(SIGKILL, &action, NULL) == -1 && errno == EINVAL, "SIGKILL");
    check(wrapped(1000, NULL, &action) == -1 && errno == EINVAL, "none");
    /* The C library's own uses. */
    check(system("exit 7") == 7 << 8 && is_right(), "system");
    return finish();
}
