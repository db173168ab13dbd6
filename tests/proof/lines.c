// Writes log-like records in random order to standard output: what `sort` is given in the demo and
// in the proof.
//
// usage: lines BYTES [SEED]
//
// A record is a random key of 16 hexadecimal digits, then 48 words of a small vocabulary: about 400
// bytes that compress as logs do. The same seed gives the same bytes. The output ends with the
// record that reaches BYTES.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const WORDS[] = {
    "accepted", "account",  "backend", "cache",   "client",  "closed",  "commit",   "connection",
    "deadline", "delivery", "error",   "exceeded", "frontend", "gateway", "handler",  "index",
    "latency",  "message",  "network", "opened",  "partition", "payload", "queue",    "rejected",
    "replica",  "request",  "retry",   "session", "snapshot", "storage", "timeout",  "worker",
};

// xorshift64*: fast, and the same everywhere.
static uint64_t next(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1DULL;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s BYTES [SEED]\n", argv[0]);
        return 2;
    }
    uint64_t bytes = strtoull(argv[1], NULL, 10);
    uint64_t state = argc == 3 ? strtoull(argv[2], NULL, 10) : 1;
    if (state == 0) state = 1; // xorshift never leaves zero

    static char buffer[1 << 20];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    for (uint64_t written = 0; written < bytes;) {
        char record[1024];
        static const char HEX[] = "0123456789abcdef";
        uint64_t key = next(&state);
        size_t len = 0;
        for (int shift = 60; shift >= 0; shift -= 4) record[len++] = HEX[key >> shift & 15];
        // 12 words of 4 to 12 letters a random number, five bits each.
        for (int group = 0; group < 4; group++) {
            uint64_t chance = next(&state);
            for (int i = 0; i < 12; i++, chance >>= 5) {
                const char *word = WORDS[chance & 31];
                size_t word_len = strlen(word);
                record[len++] = ' ';
                memcpy(record + len, word, word_len);
                len += word_len;
            }
        }
        record[len++] = '\n';
        if (fwrite(record, 1, len, stdout) != len) {
            perror("lines: cannot write");
            return 1;
        }
        written += len;
    }
    if (fflush(stdout) != 0) {
        perror("lines: cannot write");
        return 1;
    }
    return 0;
}
