// Threads that work by libc's own functions (taken by handle, so that nothing but caught system calls leads into the mount),
// while signals interrupt them and others are cancelled in the middle of the same calls. Arguments: a directory, seconds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 4 };
static const char *directory;
static atomic_int stop, cleaned, handled;
static int pipes[2];
static int (*my_open)(const char *, int, ...);
static ssize_t (*my_read)(int, void *, size_t);
static ssize_t (*my_pwrite)(int, const void *, size_t, off_t);
static int (*my_close)(int);

static void interrupt(int signal) {
    int before = errno;
    ftok("/etc/passwd", signal);
    my_close(my_open("/nosuchdirectory/file", O_RDONLY));
    handled++;
    errno = before;
}

static void fail(const char *what, const char *text) {
    printf("%s: %s\n", what, text);
    exit(1);
}

static void *work(void *number) {
    char path[300], text[64] = "", back[64];
    double kept = 1.5;
    snprintf(path, sizeof path, "%s/worker%ld", directory, (long)number);
    for (int i = 0; !stop; i++) {
        int fd = my_open(path, O_RDWR | O_CREAT, 0644);
        snprintf(text, sizeof text, "round %d of %ld", i, (long)number);
        double next = kept * 1.0000001;
        if (fd < 0 || my_pwrite(fd, text, sizeof text, 0) != sizeof text)
            fail("cannot write", strerror(errno));
        if (next != kept * 1.0000001)
            fail("a register changed", path);
        kept = next;
        if (my_read(fd, back, sizeof back) != sizeof back || strcmp(text, back) != 0)
            fail(text, back);
        if (my_close(fd) != 0 || ftok(path, 1) == -1)
            fail("cannot find", path);
    }
    return kept > 0 ? number : NULL;
}

static void clean(void *unused) {
    (void)unused;
    cleaned++;
}

static void *wait_for_byte(void *unused) {
    char byte;
    pthread_cleanup_push(clean, NULL);
    my_read(pipes[0], &byte, 1);
    pthread_cleanup_pop(0);
    return unused;
}

static void *work_until_cancelled(void *unused) {
    char path[300], bytes[64];
    snprintf(path, sizeof path, "%s/cancelled", directory);
    pthread_cleanup_push(clean, NULL);
    for (;;) {
        int fd = my_open(path, O_RDWR | O_CREAT, 0644);
        my_read(fd, bytes, sizeof bytes);
        my_pwrite(fd, bytes, sizeof bytes, 0);
        my_close(fd);
    }
    pthread_cleanup_pop(0);
    return unused;
}

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    directory = arguments[1];
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    *(void **)&my_open = dlsym(libc, "open");
    *(void **)&my_read = dlsym(libc, "read");
    *(void **)&my_pwrite = dlsym(libc, "pwrite");
    *(void **)&my_close = dlsym(libc, "close");
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t workers[WORKERS];
    for (long i = 0; i < WORKERS; i++)
        pthread_create(&workers[i], NULL, work, (void *)i);
    if (pipe(pipes) != 0)
        return 3;
    int made = 0;
    for (time_t end = time(NULL) + atoi(arguments[2]); time(NULL) < end;) {
        pthread_t two[2];
        pthread_create(&two[0], NULL, wait_for_byte, NULL);
        pthread_create(&two[1], NULL, work_until_cancelled, NULL);
        for (int i = 0; i < WORKERS; i++)
            pthread_kill(workers[i], SIGUSR1);
        usleep(500);
        for (int i = 0; i < 2; i++, made++) {
            void *result;
            pthread_cancel(two[i]);
            pthread_join(two[i], &result);
            if (result != PTHREAD_CANCELED)
                fail("not cancelled", i ? "at work" : "waiting");
        }
    }
    stop = 1;
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    // A thread that is cancelled before its first call has nothing to clean.
    if (cleaned > made || cleaned < made / 2 || handled == 0)
        printf("%d of %d cleaned, %d signals\n", cleaned, made, handled);
    else
        printf("all well\n");
    return 0;
}
