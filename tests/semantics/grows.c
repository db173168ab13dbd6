/* A mapping from when the process was small that grows, again and again, as LuaJIT's tables do: it
   holds what it held, and is memory as any other. */
#define STAY_SMALL
#include "common.h"

int main(void)
{
    size_t len = 128 << 10;
    char *plain = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *other = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (plain == MAP_FAILED || other == MAP_FAILED)
        die("mmap");
    stamp(plain, len, 1);
    stamp(other, len, 2);
    if (mprotect(other, PAGE, PROT_READ) != 0)
        die("mprotect");
    int right = 1;
    for (uint64_t seed = 1; len < 40 * MIB; seed = len) {
        plain = mremap(plain, len, 2 * len, MREMAP_MAYMOVE);
        if (plain == MAP_FAILED)
            die("mremap");
        right &= stamped(plain, len, seed) && plain[len] == 0 && plain[2 * len - 1] == 0;
        len *= 2;
        stamp(plain, len, len);
        evict_all();
        right &= stamped(plain, len, len);
    }
    check(right, "it holds what was written, up to %zu MiB", len / MIB);

    /* Of which a part is protected: two mappings, which mremap never takes. */
    void *both = mremap(other, 128 << 10, MIB, MREMAP_MAYMOVE);
    check(both == MAP_FAILED && errno == EFAULT && stamped(other, 128 << 10, 2),
          "two mappings do not grow");
    char *rest = mremap(other + PAGE, (128 << 10) - PAGE, MIB, MREMAP_MAYMOVE);
    check(rest != MAP_FAILED && rest[MIB - 1] == 0, "one of them does");
    char *shrunk = mremap(plain, len, PAGE, 0);
    check(shrunk == plain && munmap(plain, PAGE) == 0, "and becomes small again");
    return finish();
}
