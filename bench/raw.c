/* What plain sockets and plain files carry: the limits for the remote targets.
 *
 * raw ping tcp|unix COUNT           64 bytes to another process and back; median round trip, microseconds
 * raw file read|write COUNT FILE    4 KiB of FILE at random places; median call, microseconds
 * raw move read|write tcp|unix BYTES PROCS SECONDS DIR [copy|kernel]
 *     PROCS processes each have BYTES at a time moved between their memory and DIR/raw.N (128 MiB, made here) by a serving
 *     process of their own: a 64-byte request, the bytes, for writes a 64-byte answer. `kernel`: the serving process uses
 *     sendfile and splice; `copy`: read and send, receive and write. MiB a second in all
 * raw loop COUNT FILE               reads 4 KiB of FILE again and again; calls a second
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HEADER = 64, FILE_SIZE = 128 << 20 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, long count) {
    qsort(times, count, sizeof *times, compare);
    return times[count / 2];
}

static void send_all(int fd, const void *data, size_t len) {
    for (const char *at = data; len > 0;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n <= 0) exit(0); /* the other end has finished */
        at += n, len -= n;
    }
}

/* 0: the other end has finished. */
static int receive_all(int fd, void *data, size_t len) {
    for (char *at = data; len > 0;) {
        ssize_t n = recv(fd, at, len, MSG_WAITALL);
        if (n <= 0) return 0;
        at += n, len -= n;
    }
    return 1;
}

/* A connected pair: real TCP over loopback, or a Unix socket pair. */
static void pair(int tcp, int fds[2]) {
    if (!tcp) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) fail("socketpair");
        return;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (listener < 0 || bind(listener, (void *)&address, len) || listen(listener, 1) ||
        getsockname(listener, (void *)&address, &len))
        fail("listen");
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (fds[0] < 0 || connect(fds[0], (void *)&address, len)) fail("connect");
    fds[1] = accept(listener, NULL, NULL);
    if (fds[1] < 0) fail("accept");
    close(listener);
    for (int i = 0; i < 2; i++) setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int ping(int tcp, long count) {
    int fds[2];
    char message[HEADER] = {0};
    pair(tcp, fds);
    if (fork() == 0) {
        close(fds[0]);
        while (receive_all(fds[1], message, HEADER)) send_all(fds[1], message, HEADER);
        _exit(0);
    }
    close(fds[1]);
    double *times = malloc(count * sizeof *times);
    for (long i = -count / 10; i < count; i++) {
        double start = now();
        send_all(fds[0], message, HEADER);
        if (!receive_all(fds[0], message, HEADER)) fail("recv");
        if (i >= 0) times[i] = now() - start;
    }
    printf("%.3f\n", median(times, count) * 1e6);
    close(fds[0]);
    wait(NULL);
    return 0;
}

static int file(int writing, long count, const char *path) {
    int fd = open(path, writing ? O_RDWR : O_RDONLY);
    off_t blocks = fd < 0 ? 0 : lseek(fd, 0, SEEK_END) / 4096;
    if (blocks == 0) fail(path);
    static char buffer[4096];
    double *times = malloc(count * sizeof *times);
    uint64_t state = 88172645463325252u;
    for (long i = 0; i < count; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        off_t at = (off_t)(state % blocks) * 4096;
        double start = now();
        ssize_t n = writing ? pwrite(fd, buffer, 4096, at) : pread(fd, buffer, 4096, at);
        times[i] = now() - start;
        if (n != 4096) fail("pread or pwrite");
    }
    printf("%.3f\n", median(times, count) * 1e6);
    return 0;
}

/* Serves one connection: moves what is asked for between the socket and the file. */
static void serve(int socket, int fd, int writing, size_t bytes, int kernel) {
    char header[HEADER], *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    int pipes[2];
    if (buffer == MAP_FAILED || pipe(pipes)) fail("mmap or pipe");
    fcntl(pipes[1], F_SETPIPE_SZ, 1 << 20);
    while (receive_all(socket, header, HEADER)) {
        off_t at;
        memcpy(&at, header, sizeof at);
        if (!writing && kernel) {
            for (size_t left = bytes; left > 0;) {
                ssize_t n = sendfile(socket, fd, &at, left);
                if (n <= 0) _exit(0);
                left -= n;
            }
        } else if (!writing) {
            if (pread(fd, buffer, bytes, at) != (ssize_t)bytes) fail("pread");
            send_all(socket, buffer, bytes);
        } else if (kernel) {
            for (size_t left = bytes; left > 0;) {
                ssize_t n = splice(socket, NULL, pipes[1], NULL, left, SPLICE_F_MOVE);
                if (n <= 0) _exit(0);
                left -= n;
                while (n > 0) {
                    ssize_t out = splice(pipes[0], NULL, fd, &at, n, SPLICE_F_MOVE);
                    if (out <= 0) fail("splice");
                    n -= out;
                }
            }
            send_all(socket, header, HEADER);
        } else {
            if (!receive_all(socket, buffer, bytes)) _exit(0);
            if (pwrite(fd, buffer, bytes, at) != (ssize_t)bytes) fail("pwrite");
            send_all(socket, header, HEADER);
        }
    }
    _exit(0);
}

static uint64_t client(int socket, int writing, size_t bytes, double until) {
    char header[HEADER] = {0}, *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (buffer == MAP_FAILED) fail("mmap");
    uint64_t moved = 0;
    for (off_t at = 0; now() < until; at = (at + bytes) % (FILE_SIZE - FILE_SIZE % bytes)) {
        memcpy(header, &at, sizeof at);
        send_all(socket, header, HEADER);
        if (writing) send_all(socket, buffer, bytes);
        if (!receive_all(socket, writing ? header : buffer, writing ? HEADER : bytes)) fail("recv");
        moved += bytes;
    }
    return moved;
}

static int move(int writing, int tcp, size_t bytes, int procs, double seconds, const char *dir, int kernel) {
    uint64_t *moved = mmap(NULL, procs * sizeof *moved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static char zeros[1 << 20];
    int sockets[procs][2], files[procs];
    for (int i = 0; i < procs; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/raw.%d", dir, i);
        files[i] = open(path, O_RDWR | O_CREAT, 0600);
        if (files[i] < 0) fail(path);
        for (off_t at = lseek(files[i], 0, SEEK_END); at < FILE_SIZE; at += sizeof zeros)
            if (pwrite(files[i], zeros, sizeof zeros, at) != sizeof zeros) fail("pwrite");
        pair(tcp, sockets[i]);
    }
    double start = now(), until = start + seconds;
    for (int i = 0; i < 2 * procs; i++) {
        if (fork() != 0) continue;
        int me = i / 2, serving = i % 2;
        for (int other = 0; other < procs; other++)
            for (int end = 0; end < 2; end++)
                if (other != me || end != serving) close(sockets[other][end]);
        if (serving) serve(sockets[me][1], files[me], writing, bytes, kernel);
        moved[me] = client(sockets[me][0], writing, bytes, until);
        _exit(0);
    }
    for (int i = 0; i < procs; i++) close(sockets[i][0]), close(sockets[i][1]);
    int status, bad = 0;
    while (wait(&status) > 0) bad |= status;
    double passed = now() - start;
    uint64_t sum = 0;
    for (int i = 0; i < procs; i++) sum += moved[i];
    printf("%.3f\n", sum / passed / (1 << 20));
    return bad != 0;
}

static int loop(long count, const char *path) {
    int fd = open(path, O_RDONLY);
    static char buffer[4096];
    double start = now();
    for (long i = 0; i < count; i++)
        if (pread(fd, buffer, sizeof buffer, i % 1024 * 4096) != sizeof buffer) fail(path);
    printf("%.1f\n", count / (now() - start));
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "ping")) return ping(!strcmp(argv[2], "tcp"), atol(argv[3]));
    if (argc == 5 && !strcmp(argv[1], "file")) return file(!strcmp(argv[2], "write"), atol(argv[3]), argv[4]);
    if (argc == 4 && !strcmp(argv[1], "loop")) return loop(atol(argv[2]), argv[3]);
    if (argc == 9 && !strcmp(argv[1], "move"))
        return move(!strcmp(argv[2], "write"), !strcmp(argv[3], "tcp"), atol(argv[4]), atoi(argv[5]), atof(argv[6]), argv[7],
                    !strcmp(argv[8], "kernel"));
    fprintf(stderr, "raw: see the top of bench/raw.c\n");
    return 2;
}
