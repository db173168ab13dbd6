/* A signal that comes while a program forks, and whose handler forks itself: first in a process
   that does little, then in one whose memory is out. */
#include "common.h"
#include <sys/time.h>

#define ROUNDS 1500
#define PAGES ((size_t)6000)

static volatile sig_atomic_t handled, wrong;

static void on_signal(int signal)
{
    int error = errno;
    (void)signal;
    pid_t pid = fork();
    if (pid == 0)
        _exit(1);
    int status = 0;
    wrong |= pid < 0 || waitpid(pid, &status, 0) != pid || status != 1 << 8;
    handled++;
    errno = error;
}

static void forks(int rounds, const char *of)
{
    handled = 0;
    for (int i = 0; i < rounds; i++) {
        struct itimerval soon = {{0, 0}, {0, 1 + i * 7 % 400}};
        setitimer(ITIMER_REAL, &soon, NULL);
        pid_t pid = fork();
        if (pid == 0)
            _exit(7);
        int status = 0;
        pid_t got;
        while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
            ;
        wrong |= got != pid || status != 7 << 8;
        while (handled == i)
            usleep(50);
    }
    check(handled == rounds && !wrong, "%d forks of %s, and %d in handlers", rounds, of,
          (int)handled);
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    forks(ROUNDS, "a small process");
    char *memory = map_pages(PAGES);
    fill(memory, PAGES, 1);
    forks(20, "one that has an engine");
    check(bad_pages(memory, PAGES, 1) == 0, "its memory");
    return finish();
}
