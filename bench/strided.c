// One process of several that write or read a shared file in turns: request n of process p is the piece n * processes + p.
// Each piece begins with its number, which reads check.
//
// usage: strided write|read FILE REQUEST PROCESSES PROCESS COUNT BEGIN
// BEGIN: when to begin, seconds of the realtime clock. Prints how long it took, with the fsync that ends it, seconds.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static int failed(const char *what)
{
    fprintf(stderr, "strided: %s: %s\n", what, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 8)
        return fprintf(stderr, "usage: strided write|read FILE REQUEST PROCESSES PROCESS COUNT BEGIN\n"), 2;
    int writes = strcmp(argv[1], "write") == 0;
    size_t request = strtoul(argv[3], NULL, 10);
    uint64_t processes = strtoul(argv[4], NULL, 10), process = strtoul(argv[5], NULL, 10);
    uint64_t count = strtoul(argv[6], NULL, 10);
    double begin = strtod(argv[7], NULL);
    char *buffer = malloc(request);
    int file = open(argv[2], writes ? O_WRONLY : O_RDONLY);
    if (file < 0 || !buffer)
        return failed(argv[2]);
    memset(buffer, (int)process, request);
    while (now() < begin)
        usleep(1000);
    double begun = now();
    for (uint64_t n = 0; n < count; n++) {
        uint64_t piece = n * processes + process, found;
        if (writes)
            memcpy(buffer, &piece, sizeof piece);
        ssize_t done = writes ? pwrite(file, buffer, request, piece * request) : pread(file, buffer, request, piece * request);
        if (done != (ssize_t)request)
            return failed(done < 0 ? argv[2] : "a part only");
        memcpy(&found, buffer, sizeof found);
        if (found != piece || buffer[request - 1] != (char)process)
            return fprintf(stderr, "strided: piece %lu is wrong\n", (unsigned long)piece), 1;
    }
    if (writes && fsync(file) != 0)
        return failed("fsync");
    printf("%.6f\n", now() - begun);
    return 0;
}
