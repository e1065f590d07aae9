/* Reads and writes of a file, at random places, as programs make them: through the C library, or as the kernel has it (with the preload
 * library, in a deployment).
 *
 * library api DEPLOYMENT read|write BYTES SECONDS     MiB/s, through bivouac.h
 * library posix FILE read|write BYTES SECONDS         the same with pread and pwrite
 */
#define _GNU_SOURCE
#include <bivouac.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FILE_SIZE = 64 << 20 };

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, bivouac_error());
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fail("usage");
    }
    int api = strcmp(argv[1], "api") == 0, reads = strcmp(argv[3], "read") == 0, fd = -1;
    size_t bytes = strtoul(argv[4], NULL, 10);
    double seconds = atof(argv[5]);
    char *buffer = malloc(FILE_SIZE);
    memset(buffer, 7, FILE_SIZE);
    bivouac_t *deployment = NULL;
    bivouac_file_t *file = NULL;
    if (api) {
        if (bivouac_attach(argv[2], &deployment) || bivouac_open(deployment, "library", O_RDWR | O_CREAT, 0644, &file) ||
            bivouac_pwrite(file, buffer, FILE_SIZE, 0) != FILE_SIZE) {
            fail("begin");
        }
    } else if ((fd = open(argv[2], O_RDWR | O_CREAT, 0644)) < 0 || pwrite(fd, buffer, FILE_SIZE, 0) != FILE_SIZE) {
        fail("begin");
    }
    uint64_t state = 88172645463325252u;
    double begun = now();
    long calls = 0;
    do {
        /* The clock is read now and then only. */
        for (int i = 0; i < 64; i++, calls++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            int64_t at = (int64_t)(state % (FILE_SIZE / bytes) * bytes);
            ssize_t done = api ? (reads ? bivouac_pread(file, buffer, bytes, at) : bivouac_pwrite(file, buffer, bytes, at))
                               : (reads ? pread(fd, buffer, bytes, at) : pwrite(fd, buffer, bytes, at));
            if (done != (ssize_t)bytes) {
                fail("transfer");
            }
        }
    } while (now() - begun < seconds);
    printf("%f\n", calls * (double)bytes / (now() - begun) / (1 << 20));
    bivouac_detach(deployment);
    return 0;
}
