/*
 * Another process writes single words into this one's memory, by /proc/PID/mem and by ptrace, while
 * the pages leave memory and come back. A call may fail where a page is out. What it says that it
 * has written is there, and nothing else.
 */
#include "common.h"
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#define PAGES ((size_t)256)
/* Each pass has a word of its own in every page. The last word is the target's. */
#define PASSES (WORDS - 1)

/* What both sides see. */
static struct control {
    /* Whose memory, where it is, and a thread there that may be stopped. */
    _Atomic uintptr_t target;
    _Atomic int pid, thread;
    /* The writer has begun, or cannot; it is done. */
    _Atomic int begun, cannot, done;
    char written[PASSES][PAGES];
} *control;

static uint64_t old_word(size_t page, size_t word)
{
    return mix(page * WORDS + word);
}

static uint64_t new_word(size_t page, size_t word)
{
    return mix(~(page * WORDS + word));
}

/* ---- The writer ---- */

static int memory_file;

static int by_file(uintptr_t at, uint64_t word)
{
    return pwrite(memory_file, &word, sizeof word, (off_t)at) == sizeof word;
}

static int by_ptrace(uintptr_t at, uint64_t word)
{
    return ptrace(PTRACE_POKEDATA, control->thread, (void *)at, (void *)word) == 0;
}

static void open_file(void)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/mem", control->pid);
    memory_file = open(name, O_RDWR | O_CLOEXEC);
    control->cannot = memory_file < 0;
}

static void stop_thread(void)
{
    int status;
    control->cannot = ptrace(PTRACE_SEIZE, control->thread, NULL, NULL) != 0
                      || ptrace(PTRACE_INTERRUPT, control->thread, NULL, NULL) != 0
                      || waitpid(control->thread, &status, __WALL) != control->thread;
}

static void write_all(int (*write_word)(uintptr_t at, uint64_t word), void (*prepare)(void))
{
    while (!control->target)
        usleep(100);
    prepare();
    control->begun = 1;
    for (size_t pass = 0; pass < PASSES && !control->cannot; pass++)
        for (size_t page = 0; page < PAGES; page++)
            control->written[pass][page] =
                (char)write_word(control->target + page * PAGE + pass * 8, new_word(page, pass));
    control->done = 1;
}

/* ---- The target ---- */

static void *be_stopped(void *unused)
{
    control->thread = (int)syscall(SYS_gettid);
    while (!control->done)
        usleep(1000);
    return unused;
}

/* Until the writer is done: pages leave, and come back to be written to. */
static void leave_and_come_back(uint64_t *words)
{
    while (!control->done) {
        for (size_t page = 0; page < PAGES; page++)
            ((volatile uint64_t *)words)[page * WORDS + PASSES]++;
        push_out(words, PAGES * PAGE);
    }
}

static void be_written(const char *by, int (*write_word)(uintptr_t, uint64_t),
                       void (*prepare)(void))
{
    pthread_t thread;
    size_t count = 0, lost = 0, changed = 0;
    memset(control, 0, sizeof *control);
    control->pid = getpid();
    /* Before there is anything that it would share. */
    pid_t writer = fork_flushed();
    if (writer == 0) {
        write_all(write_word, prepare);
        _exit(0);
    }
    prctl(PR_SET_PTRACER, writer, 0, 0, 0);
    if (pthread_create(&thread, NULL, be_stopped, NULL) != 0)
        die("pthread_create");
    while (!control->thread)
        usleep(100);
    uint64_t *words = (uint64_t *)map_pages(PAGES);
    for (size_t i = 0; i < PAGES * WORDS; i++)
        words[i] = old_word(0, i);
    control->target = (uintptr_t)words;
    leave_and_come_back(words);
    int status = reap(writer);
    pthread_join(thread, NULL);
    if (control->cannot) {
        printf("     (left out: %s)\n", by);
    } else {
        for (size_t pass = 0; pass < PASSES; pass++)
            for (size_t page = 0; page < PAGES; page++) {
                uint64_t word = words[page * WORDS + pass];
                count += control->written[pass][page];
                if (control->written[pass][page])
                    lost += word != new_word(page, pass);
                else
                    changed += word != old_word(page, pass);
            }
        check(lost == 0, "words written by %s: %zu are lost", by, lost);
        check(changed == 0, "words that could not be written by it: %zu are changed", changed);
        check(count > 0 && status == 0, "it has written, and ends");
        if (getenv("POKED_COUNTS"))
            dprintf(2, "%s: %zu of %zu\n", by, count, PASSES * PAGES);
    }
    munmap(words, PAGES * PAGE);
}

int main(void)
{
    void *p = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0);
    if (p == MAP_FAILED)
        die("mmap of control");
    control = (struct control *)p;
    be_managed();
    be_written("/proc/PID/mem", by_file, open_file);
    be_written("ptrace", by_ptrace, stop_thread);
    return finish();
}
