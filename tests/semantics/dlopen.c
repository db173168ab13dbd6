/* Libraries that are loaded and unloaded while other threads keep memory short. */
#include "common.h"
#include <dlfcn.h>
#include <math.h>

static atomic_int stop;

static void *press(void *argument)
{
    (void)argument;
    while (!stop)
        pressure(24);
    return NULL;
}

/* A thread that uses a library which another thread loaded. */
static void *call(void *argument)
{
    double (*function)(double) = (double (*)(double))(uintptr_t)argument;
    double sum = 0;
    for (int i = 0; i < 10000; i++)
        sum += function(i * 0.001);
    return (void *)(uintptr_t)(sum > 0);
}

int main(void)
{
    pthread_t threads[2], caller;
    int wrong = 0;
    char *ballast = heap_pages(6000);
    fill(ballast, 6000, 1);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, press, NULL);
    for (int i = 0; i < 100; i++) {
        void *library = dlopen("libm.so.6", i % 2 ? RTLD_NOW : RTLD_LAZY), *result;
        if (!library) {
            check(0, "dlopen: %s", dlerror());
            break;
        }
        double (*cosine)(double) = (double (*)(double))(uintptr_t)dlsym(library, "cos");
        double (*power)(double, double) =
            (double (*)(double, double))(uintptr_t)dlsym(library, "pow");
        double (*exponential)(double) = (double (*)(double))(uintptr_t)dlsym(library, "exp");
        wrong += !cosine || !power || !exponential || cosine(0) != 1 || power(2, 10) != 1024;
        wrong +=
            dlsym(library, "no_such_function") != NULL || !strstr(dlerror(), "no_such_function");
        pthread_create(&caller, NULL, call, (void *)(uintptr_t)exponential);
        pthread_join(caller, &result);
        wrong += result != (void *)1;
        wrong += dlclose(library) != 0;
        wrong += dlopen("libno-such-library.so.9", RTLD_NOW) != NULL ||
                 !strstr(dlerror(), "libno-such-library.so.9");
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    check(wrong == 0, "a library loaded, used and unloaded 100 times: %d wrong", wrong);
    check(bad_pages(ballast, 6000, 1) == 0, "memory is as it was");
    free(ballast);
    return finish();
}
