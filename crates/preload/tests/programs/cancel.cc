// A thread that is cancelled inside an interposed call unwinds: its destructors run.
#include <atomic>
#include <cstdio>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static std::atomic<int> unwound{0};
static std::atomic<int> ready{0};
static int ends[2];

struct Guard {
    ~Guard() { unwound++; }
};

static void *reader(void *) {
    Guard guard;
    char byte;
    ready++;
    (void)!read(ends[0], &byte, 1);
    return nullptr;
}

static void *opener(void *) {
    Guard guard;
    ready++;
    // A fifo without a writer: open waits.
    (void)!open("fifo", O_RDONLY);
    return nullptr;
}

int main() {
    if (pipe(ends)) return 1;
    pthread_t threads[2];
    pthread_create(&threads[0], nullptr, reader, nullptr);
    pthread_create(&threads[1], nullptr, opener, nullptr);
    while (ready < 2) usleep(1000);
    usleep(50000);
    for (auto thread : threads) {
        pthread_cancel(thread);
        void *result;
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) return 2;
    }
    std::printf("unwound %d\n", unwound.load());
    return unwound == 2 ? 0 : 3;
}
