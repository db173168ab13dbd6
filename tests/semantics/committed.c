/* How much a system that promises only memory that it has would promise to this process: all of
 * its private mappings that can be written. Prints "no more than N MiB: yes" or "... no (M)".
 * usage: committed MIB */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    size_t most = strtoul(argv[argc - 1], NULL, 10), total = 0;
    /* More than a process has that has no engine. */
    char *block = malloc(2 << 20);
    memset(block, 1, 2 << 20);
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end;
    char access[5], line[512];
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &start, &end, access) == 3 && !strcmp(access, "rw-p"))
            total += end - start;
    fclose(maps);
    free(block);
    if (total >> 20 <= most)
        printf("no more than %zu MiB: yes\n", most);
    else
        printf("no more than %zu MiB: no (%zu)\n", most, total >> 20);
    return 0;
}
