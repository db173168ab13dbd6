/*
 * For AddressSanitizer: memory from malloc and from mmap, and a mistake if one is asked for: `over`
 * or `leak`.
 */
#include "common.h"

/*
 * Blocks whose addresses are nowhere afterwards. One may still be where malloc had it on the stack,
 * which the sanitizer looks through: natively that hides a single block in one of 1,200 runs.
 */
__attribute__((noinline)) static void leak(void)
{
    for (int n = 0; n < 16; n++) {
        char *volatile block = malloc(1000);
        block[0] = 1;
        block = NULL;
    }
}

int main(int count, char **words)
{
    size_t bytes = 12 * MIB, sum = 0;
    unsigned char *block = malloc(bytes);
    unsigned char *mapping =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t n = 0; n < bytes; n++)
        block[n] = mapping[n] = (unsigned char)mix(n / 8);
    for (size_t n = 0; n < bytes; n++)
        sum += block[n] * 3 + mapping[n];
    printf("%zu, LD_PRELOAD is %s\n", sum, getenv("LD_PRELOAD") ? "set" : "not set");
    fflush(stdout);
    if (count > 1 && !strcmp(words[1], "leak"))
        leak();
    if (count > 1 && !strcmp(words[1], "over"))
        ((volatile unsigned char *)block)[bytes] = 1;
    free(block);
    return 0;
}
