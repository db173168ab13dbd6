/* What a core dump would hold: memory that was reserved and never used is left out, as is what the
   program says. */
#include "common.h"

#define GIB ((size_t)1 << 30)

static char smaps[4 << 20];

static void read_smaps(void)
{
    int file = open("/proc/self/smaps", O_RDONLY);
    ssize_t n = 0, got;
    while ((got = read(file, smaps + n, sizeof smaps - 1 - (size_t)n)) > 0)
        n += got;
    if (file < 0 || got < 0)
        die("smaps");
    close(file);
    smaps[n] = 0;
}

/*
 * Goes through the mappings that overlap a range: bytes of those that a core dump leaves out, and
 * bytes of the others in which there is a page. A mapping in which there is none may count as
 * either.
 */
static void sum(uintptr_t from, uintptr_t to, size_t *left_out, size_t *dumped)
{
    *left_out = *dumped = 0;
    uintptr_t start = 0, end = 0;
    for (char *line = smaps; *line; line = strchr(line, '\n') + 1) {
        unsigned long a, b;
        if (sscanf(line, "%lx-%lx ", &a, &b) == 2) {
            start = a > from ? a : from;
            end = b < to ? b : to;
        } else if (strncmp(line, "VmFlags:", 8) == 0 && start < end) {
            char *newline = strchr(line, '\n');
            *newline = 0;
            *(strstr(line, " dd") ? left_out : dumped) += end - start;
            *newline = '\n';
        }
    }
}

/* Pages of mappings that would be dumped in which there is much of a word. */
static size_t dumped_with(uint64_t word)
{
    static uint64_t page[PAGE / 8];
    int memory = open("/proc/self/mem", O_RDONLY), map = open("/proc/self/pagemap", O_RDONLY);
    uintptr_t start = 0, end = 0;
    size_t found = 0;
    if (memory < 0 || map < 0)
        die("mem");
    read_smaps();
    for (char *line = smaps; *line; line = strchr(line, '\n') + 1) {
        unsigned long a, b;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s", &a, &b, rights) == 3) {
            start = a;
            end = rights[0] == 'r' && b - a < 8 * GIB ? b : a;
        } else if (strncmp(line, "VmFlags:", 8) == 0) {
            char *newline = strchr(line, '\n');
            *newline = 0;
            int is_dumped = !strstr(line, " dd");
            *newline = '\n';
            for (uintptr_t at = start; is_dumped && at < end; at += PAGE) {
                uint64_t entry, same = 0;
                if (pread(map, &entry, 8, (off_t)(at / PAGE * 8)) != 8 || !(entry >> 63) ||
                    pread(memory, page, PAGE, (off_t)at) != (ssize_t)PAGE)
                    continue;
                for (size_t i = 0; i < PAGE / 8; i++)
                    same += page[i] == word;
                found += same > 8;
            }
        }
    }
    close(memory);
    close(map);
    return found;
}

/* What the engine copies of it, so that the kernel can read it, is in no core dump either. */
static void copies(void)
{
    enum { SECRET = 16 };
    int ends[2], file = open("/dev/urandom", O_RDONLY);
    static char there[SECRET * 4096];
    uint64_t word;
    if (pipe(ends) != 0 || read(file, &word, 8) != 8)
        die("pipe");
    close(file);
    char *p = map_pages(SECRET);
    check(madvise(p, SECRET * PAGE, MADV_DONTDUMP) == 0, "a secret");
    for (size_t i = 0; i < SECRET * PAGE / 8; i++)
        ((uint64_t *)p)[i] = word;
    check(dumped_with(word) == 0, "no page of it is dumped");
    pressure(40);
    fcntl(ends[1], F_SETPIPE_SZ, SECRET * PAGE);
    check(write(ends[1], p, SECRET * PAGE) == (ssize_t)(SECRET * PAGE), "it is written");
    size_t pages = dumped_with(word);
    check(pages == 0, "%zu pages of copies of it are dumped", pages);
    ssize_t got = read(ends[0], there, sizeof there);
    check(got == (ssize_t)sizeof there, "and read: %zd, %d", got, errno);
    check(memcmp(there, p, sizeof there) == 0, "as it was");
    memset(there, 0, sizeof there);
    munmap(p, SECRET * PAGE);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    size_t left_out, dumped;
    copies();
    /* As large as mappings come, at the end of what is mapped, used and given back. */
    char *p = mmap(NULL, 3 * GIB, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    fill(p, 256, 1);
    read_smaps();
    sum((uintptr_t)p, (uintptr_t)p + 3 * GIB, &left_out, &dumped);
    check(left_out == 0 && dumped == 3 * GIB, "memory is dumped");
    pressure(40);
    munmap(p, 3 * GIB);
    read_smaps();
    sum(0, UINTPTR_MAX, &left_out, &dumped);
    /* A reservation of addresses for the heap may look as if it were dumped. A window of addresses
       must not. */
    check(dumped < 256 * GIB, "there is little to be dumped once it is unmapped");

    p = map_pages(64);
    fill(p, 64, 2);
    check(madvise(p + 8 * PAGE, 16 * PAGE, MADV_DONTDUMP) == 0, "a part need not be dumped");
    read_smaps();
    sum((uintptr_t)p, (uintptr_t)p + 64 * PAGE, &left_out, &dumped);
    check(left_out == 16 * PAGE && dumped == 48 * PAGE, "and nothing else");
    pressure(40);
    check(bad_pages(p, 64, 2) == 0, "which changes nothing of the content");
    check(madvise(p + 8 * PAGE, 8 * PAGE, MADV_DODUMP) == 0, "half of it comes back");
    read_smaps();
    sum((uintptr_t)p, (uintptr_t)p + 64 * PAGE, &left_out, &dumped);
    check(left_out == 8 * PAGE && dumped == 56 * PAGE, "and is dumped");
    /* Also what of it nobody has touched since it came to be there. */
    char *moved = mremap(p + 16 * PAGE, 8 * PAGE, 32 * PAGE, MREMAP_MAYMOVE);
    read_smaps();
    sum((uintptr_t)moved, (uintptr_t)moved + 32 * PAGE, &left_out, &dumped);
    check(moved != MAP_FAILED && left_out == 32 * PAGE && dumped == 0,
          "the rest is dumped nowhere, wherever it moves");
    munmap(moved, 32 * PAGE);
    munmap(p, 64 * PAGE);
    p = mmap(p, 64 * PAGE, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    read_smaps();
    sum((uintptr_t)p, (uintptr_t)p + 64 * PAGE, &left_out, &dumped);
    check(p != MAP_FAILED && left_out == 0 && dumped == 64 * PAGE,
          "new memory in its place is dumped as a whole");
    munmap(p, 64 * PAGE);
    return finish();
}
