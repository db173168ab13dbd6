/*
 * The job that is tortured: processes that work on pages of known content in every way there is,
 * and look at each of them again. It is an ordinary program and knows nothing of overspill.
 *
 * usage: load TABLE PROCESSES MIB THREADS SEED CLASS[,CLASS...]
 *        load TABLE leaf SEED
 *
 * TABLE is a file of struct table (below) that who watches has mapped as well. PROCESSES workers of
 * MIB each are started again whenever one ends, until the table says that it is time. What a worker
 * does follows from the seed, its number and how often it was started.
 *
 * Exit status: 0; 7 where something was not as it should be, which the table tells; 99 where the
 * load itself could not go on.
 */
#include "load.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

struct table *table;
static const char *const NAMES[] = CLASS_NAMES;
static _Thread_local struct slot *own;

/* ---- What is told ---- */

void wrong(const char *what, ...)
{
    int first = 0;
    if (atomic_compare_exchange_strong(&table->told, &first, 1)) {
        va_list args;
        va_start(args, what);
        int len = snprintf(table->finding, sizeof table->finding, "process %d, %s: ", getpid(),
                           own ? NAMES[own->doing] : "start");
        vsnprintf(table->finding + len, sizeof table->finding - len, what, args);
        va_end(args);
        atomic_store(&table->told, 2);
    }
    _exit(WRONG);
}

void die(const char *what)
{
    int error = errno;
    if (error == EFAULT && atomic_load(&table->pages_may_be_lost)) {
        /* A system call was handed a lost page: as if the program had touched it. */
        signal(SIGBUS, SIG_DFL);
        raise(SIGBUS);
    }
    dprintf(2, "load %d: %s: %s\n", getpid(), what, strerror(error));
    _exit(BROKEN);
}

int is_over(void)
{
    return atomic_load(&table->stop) != 0;
}

/* The thread goes on; who watches sees that. */
void beat(enum class doing)
{
    if (!own)
        return;
    atomic_store_explicit(&own->doing, doing, memory_order_relaxed);
    atomic_fetch_add_explicit(&own->beats, 1, memory_order_relaxed);
}

/* A slot of the table for this thread: one that nobody has, or whose thread has ended. */
void appear(void)
{
    pid_t self = gettid();
    for (int pass = 0; pass < 2; pass++)
        for (struct slot *slot = table->slots; slot < table->slots + SLOTS; slot++) {
            int had = atomic_load(&slot->thread);
            if (had != 0 && (pass == 0 || tgkill(slot->process, had, 0) == 0 || errno != ESRCH))
                continue;
            if (atomic_compare_exchange_strong(&slot->thread, &had, -self)) {
                atomic_store(&slot->process, getpid());
                atomic_fetch_add(&slot->beats, 1);
                atomic_store(&slot->thread, self);
                own = slot;
                return;
            }
        }
    own = NULL;
}

void disappear(void)
{
    if (own)
        atomic_store(&own->thread, 0);
    own = NULL;
}

/* ---- Ends of children ---- */

/* Whether a child ended as one may: by itself, or because who watches kills or takes pages away. */
void judge(int status, const char *who)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (WIFEXITED(status) && WEXITSTATUS(status) == WRONG)
        _exit(WRONG);
    if (WIFEXITED(status) && WEXITSTATUS(status) == BROKEN)
        _exit(BROKEN);
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (number == SIGKILL)
        atomic_fetch_add(&table->killed, 1);
    else if (number == SIGBUS && atomic_load(&table->pages_may_be_lost))
        atomic_fetch_add(&table->lost, 1);
    else
        wrong("%s ended with status %#x", who, status);
}

/* Waits for a child; beats meanwhile, since it is the child's to be slow. */
void await(pid_t child, const char *who)
{
    for (;;) {
        int status;
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child)
            return judge(status, who);
        if (ended < 0 && errno != EINTR)
            die("waitpid");
        beat(own ? own->doing : 0);
        usleep(500);
    }
}

/* ---- Workers ---- */

static unsigned parse_classes(char *list)
{
    unsigned classes = 0;
    for (char *name = strtok(list, ","); name; name = strtok(NULL, ",")) {
        unsigned class = 0;
        while (class < CLASSES && strcmp(NAMES[class], name))
            class++;
        if (class == CLASSES) {
            dprintf(2, "load: there is no class '%s'\n", name);
            _exit(BROKEN);
        }
        classes |= 1u << class;
    }
    return classes;
}

static pid_t start_worker(const struct plan *plan, unsigned number, unsigned time)
{
    pid_t parent = getpid(), child = fork();
    if (child != 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    struct plan own_plan = *plan;
    own_plan.seed = mix(mix(plan->seed + number) + time);
    work(&own_plan);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        die("usage");
    int file = open(argv[1], O_RDWR | O_CLOEXEC);
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (table == MAP_FAILED)
        die("the table");
    close(file);
    load_program = argv[0];
    load_table = argv[1];
    if (!strcmp(argv[2], "leaf"))
        return leaf(strtoull(argv[3], NULL, 10));
    if (argc != 7)
        die("usage");
    int processes = atoi(argv[2]);
    struct plan plan = {
        .pages = strtoull(argv[3], NULL, 10) * 256,
        .threads = atoi(argv[4]),
        .seed = strtoull(argv[5], NULL, 10),
        .classes = parse_classes(argv[6]),
    };
    pid_t workers[SLOTS] = {0};
    unsigned times[SLOTS] = {0};
    int left = processes;
    while (left > 0) {
        /* Who watches may have been killed. */
        if (kill(table->watcher, 0) && errno == ESRCH)
            atomic_store(&table->stop, 1);
        for (int i = 0; i < processes; i++)
            if (workers[i] == 0 && !is_over())
                workers[i] = start_worker(&plan, i, times[i]++);
        int status;
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended < 0 && errno != ECHILD)
            die("waitpid");
        for (int i = 0; i < processes && ended > 0; i++)
            if (workers[i] == ended) {
                workers[i] = 0;
                judge(status, "a worker");
            }
        if (ended <= 0)
            usleep(2000);
        left = is_over() ? 0 : processes;
        for (int i = 0; i < processes && is_over(); i++)
            left += workers[i] != 0;
    }
    return 0;
}
