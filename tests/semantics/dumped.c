/* A program whose data go on where they end: it was dumped with its heap, as GNU Common Lisp and
   older Emacsen are, and executes itself again where addresses are random. */
#include "common.h"
#include <sys/personality.h>

extern char end;

int main(int count, char **arguments)
{
    char *begins = sbrk(0);
    int random = personality(0xffffffff);
    if (count == 1 && !(random & ADDR_NO_RANDOMIZE)) {
        personality(random | ADDR_NO_RANDOMIZE);
        execl("/proc/self/exe", arguments[0], "again", NULL);
        die("execl");
    }
    check(begins >= &end && begins < &end + MIB, "the heap begins behind the data");
    size_t len = 8 * MIB;
    char *more = sbrk((intptr_t)len);
    check(more >= begins && more < begins + MIB, "and grows there");
    stamp(more, len, 5);
    pressure(40);
    check(stamped(more, len, 5), "it holds what is written");
    return finish();
}
