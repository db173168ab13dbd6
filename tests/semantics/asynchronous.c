/* What the C library does on threads and in children of its own, with memory of the program's that
   is out. */
#include "common.h"
#include <aio.h>
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <regex.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <time.h>

#define PAGES ((size_t)256)

static char *memory;

static void evict(void)
{
    pressure(24);
}

static void signals_as_descriptors(void)
{
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGBUS);
    sigaddset(&set, SIGSYS);
    sigprocmask(SIG_BLOCK, &set, &before);
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    struct signalfd_siginfo *info = malloc(sizeof *info);
    memset(info, 0, sizeof *info);
    evict();
    union sigval value = {.sival_int = 4711};
    sigqueue(getpid(), SIGUSR1, value);
    check(read(fd, info, sizeof *info) == sizeof *info && info->ssi_signo == SIGUSR1 &&
              info->ssi_int == 4711,
          "signalfd with SIGBUS and SIGSYS in its mask");
    check(bad_pages(memory, PAGES, 1) == 0, "and memory beside it");
    close(fd);
    free(info);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static atomic_int notified;

static void on_thread(union sigval value)
{
    notified += bad_pages(memory, PAGES, 1) == 0 && value.sival_ptr == memory;
}

static int finished(struct aiocb *request)
{
    const struct aiocb *list[] = {request};
    while (aio_error(request) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    return (int)aio_return(request);
}

static void posix_aio(void)
{
    char name[] = "semantics-aio-XXXXXX", *data = heap_pages(64);
    int fd = mkstemp(name), wrong = 0;
    unlink(name);
    struct aiocb *requests = calloc(64, sizeof *requests);
    fill(data, 64, 500);
    evict();
    for (int i = 0; i < 64; i++) {
        requests[i].aio_fildes = fd;
        requests[i].aio_buf = data + (size_t)i * PAGE;
        requests[i].aio_nbytes = PAGE;
        requests[i].aio_offset = (off_t)i * (off_t)PAGE;
        if (i == 9) {
            requests[i].aio_sigevent.sigev_notify = SIGEV_THREAD;
            requests[i].aio_sigevent.sigev_notify_function = on_thread;
            requests[i].aio_sigevent.sigev_value.sival_ptr = memory;
        }
        wrong += aio_write(&requests[i]) != 0;
    }
    for (int i = 0; i < 64; i++)
        wrong += finished(&requests[i]) != (int)PAGE;
    check(wrong == 0, "aio_write from memory that is out: %d wrong", wrong);
    for (int i = 0; notified == 0 && i < 5000; i++)
        usleep(1000);
    check(notified == 1, "and a thread is told of it");
    memset(data, 0, 64 * PAGE);
    evict();
    for (int i = 0; i < 64; i++) {
        requests[i].aio_sigevent.sigev_notify = SIGEV_NONE;
        wrong += aio_read(&requests[i]) != 0;
    }
    for (int i = 0; i < 64; i++)
        wrong += finished(&requests[i]) != (int)PAGE;
    check(wrong == 0 && bad_pages(data, 64, 500) == 0, "aio_read into memory that is out");
    evict();
    struct aiocb *list[64];
    for (int i = 0; i < 64; i++) {
        requests[i].aio_lio_opcode = LIO_WRITE;
        list[i] = &requests[i];
    }
    check(lio_listio(LIO_WAIT, list, 64, NULL) == 0, "lio_listio");
    free(requests);
    free(data);
    close(fd);
}

static void timers(void)
{
    timer_t timer;
    struct sigevent event;
    struct itimerspec when = {{0, 10000000}, {0, 10000000}};
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_THREAD;
    event.sigev_notify_function = on_thread;
    event.sigev_value.sival_ptr = memory;
    notified = 0;
    evict();
    check(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "a timer with a thread");
    timer_settime(timer, 0, &when, NULL);
    for (int i = 0; notified < 5 && i < 1000; i++) {
        if (i % 20 == 0)
            evict();
        usleep(5000);
    }
    check(notified >= 5, "whose function uses memory that is out");
    timer_delete(timer);
}

static void names(void)
{
    struct ifaddrs *all = NULL;
    int loopback = 0;
    evict();
    check(getifaddrs(&all) == 0, "getifaddrs");
    evict();
    for (struct ifaddrs *each = all; each; each = each->ifa_next)
        loopback += strcmp(each->ifa_name, "lo") == 0;
    check(loopback > 0, "finds the loopback");
    freeifaddrs(all);
    struct addrinfo *found = NULL, *hints = calloc(1, sizeof *hints);
    hints->ai_family = AF_INET;
    char *name = strdup("localhost");
    evict();
    check(getaddrinfo(name, NULL, hints, &found) == 0 && found, "getaddrinfo");
    evict();
    check(found && ((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr.s_addr ==
                       htonl(INADDR_LOOPBACK),
          "finds localhost");
    if (found)
        freeaddrinfo(found);
    free(hints);
    free(name);
}

static void children(void)
{
    char *command = strdup("read line; test \"$line\" = hello; exit $?"), line[16] = "";
    setenv("SEMANTICS_VALUE", "a value that is out", 1);
    evict();
    FILE *pipe = popen(command, "w");
    fputs("hello\n", pipe);
    evict();
    check(pclose(pipe) == 0, "popen to write");
    strcpy(command, "echo \"$SEMANTICS_VALUE\"");
    evict();
    pipe = popen(command, "r");
    evict();
    check(pipe && fgets(line, sizeof line, pipe) && strcmp(line, "a value that is") == 0,
          "popen to read");
    pclose(pipe);
    strcpy(command, "test -n \"$SEMANTICS_VALUE\" && exit 7");
    evict();
    int status = system(command);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "system");
    char **arguments = calloc(4, sizeof *arguments);
    arguments[0] = strdup("sh");
    arguments[1] = strdup("-c");
    arguments[2] = strdup("exit 5");
    pid_t pid = 0;
    evict();
    check(posix_spawnp(&pid, arguments[0], NULL, NULL, arguments, environ) == 0 && reap(pid) == 5,
          "posix_spawnp");
    evict();
    pid = vfork();
    if (pid == 0) {
        execvp(arguments[0], arguments);
        _exit(1);
    }
    check(reap(pid) == 5, "vfork and execvp");
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void library(void)
{
    size_t count = 4 * MIB / sizeof(uint64_t);
    uint64_t *numbers = malloc(count * sizeof *numbers), sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += numbers[i] = mix(i);
    evict();
    qsort(numbers, count, sizeof *numbers, compare);
    int ordered = 1;
    for (size_t i = 1; i < count; i++)
        ordered &= numbers[i - 1] <= numbers[i];
    for (size_t i = 0; i < count; i++)
        sum -= numbers[i];
    check(ordered && sum == 0, "qsort");
    free(numbers);
    regex_t regex;
    regmatch_t match[2];
    char *pattern = strdup("x(a+)y"), *text = malloc(2 * MIB);
    memset(text, 'a', 2 * MIB);
    text[MIB] = 'x';
    text[MIB + 9] = 'y';
    text[2 * MIB - 1] = 0;
    evict();
    check(regcomp(&regex, pattern, REG_EXTENDED) == 0, "regcomp");
    evict();
    check(regexec(&regex, text + MIB - 100, 2, match, 0) == 0 && match[1].rm_so == 101 &&
              match[1].rm_eo == 109,
          "regexec");
    regfree(&regex);
    free(pattern);
    free(text);
}

int main(void)
{
    memory = map_pages(PAGES);
    fill(memory, PAGES, 1);
    signals_as_descriptors();
    posix_aio();
    timers();
    names();
    children();
    library();
    return finish();
}
