/* Threads that change what descriptors and the working directory are, between a local directory (first argument) and
 * one of the mount (second), while others use them. Prints how often something was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile int stop;
static int number;
static const char line[] = "0123456789\n";
enum { LENGTH = sizeof line - 1 };

struct tally { long done, wrong; int errno_seen; };

static void *writer(void *pointer) {
    struct tally *tally = pointer;
    while (!stop) {
        if (write(number, line, LENGTH) == LENGTH) tally->done++;
        else { tally->wrong++; tally->errno_seen = errno; }
    }
    return NULL;
}

/* What is written while a number changes hands lands in the one file or in the other. */
static void numbers(const char *local, const char *mount) {
    char path[2][4096];
    int files[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/number", i ? mount : local);
        files[i] = open(path[i], O_WRONLY | O_CREAT | O_APPEND | O_TRUNC, 0644);
    }
    number = dup(files[0]);
    pthread_t threads[2];
    struct tally tallies[2] = {0};
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, writer, &tallies[i]);
    for (int i = 0; i < 2; i++) {
        dup2(files[i], number);
        usleep(20000);
    }
    for (int i = 0; i < 20000; i++) dup2(files[i & 1], number);
    stop = 1;
    long done = 0, wrong = 0, size = 0;
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        done += tallies[i].done;
        wrong += tallies[i].wrong;
        if (tallies[i].wrong) printf("writing: %s\n", strerror(tallies[i].errno_seen));
    }
    int used = 1;
    for (int i = 0; i < 2; i++) {
        struct stat stat;
        fstat(files[i], &stat);
        size += stat.st_size;
        used &= stat.st_size > 0;
        close(files[i]);
    }
    close(number);
    printf("numbers: %ld wrong, %ld lost, both used: %d\n", wrong, done - size / LENGTH, used);
}

static void *asks(void *unused) {
    struct stat stat_buffer;
    while (!stop) stat("nothing", &stat_buffer);
    return unused;
}

/* Who changes the working directory is there afterwards, whatever others ask meanwhile. */
static void directories(const char *local, const char *mount) {
    char mark[4096], here[4096];
    snprintf(mark, sizeof mark, "%s/mark", mount);
    close(open(mark, O_WRONLY | O_CREAT, 0644));
    stop = 0;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, asks, NULL);
    long wrong = 0;
    for (int i = 0; i < 6000; i++) {
        const char *to = i & 1 ? mount : local;
        if (chdir(to)) wrong++;
        usleep(10);
        if (!getcwd(here, sizeof here) || strcmp(here, to)) wrong++;
        if (access("mark", F_OK) == 0 != (i & 1)) wrong++;
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("directories: %ld wrong\n", wrong);
}

static int target;
static void *writes_on(void *unused) {
    static char block[100000];
    for (off_t at = 0;; at = (at + sizeof block) % (sizeof block * 20)) pwrite(target, block, sizeof block, at);
    return unused;
}

/* A thread that writes to the mount can be cancelled between two calls, and the mount goes on. */
static void cancelled(const char *mount) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cancelled", mount);
    target = open(path, O_RDWR | O_CREAT, 0644);
    long wrong = 0;
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, writes_on, NULL);
        usleep(5000 + i * 137);
        pthread_cancel(thread);
        struct timespec end;
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += 5;
        void *result = NULL;
        if (pthread_timedjoin_np(thread, &result, &end) || result != PTHREAD_CANCELED) wrong++;
        char byte = 'x';
        if (pwrite(target, &byte, 1, i) != 1 || pread(target, &byte, 1, i) != 1 || byte != 'x') wrong++;
    }
    close(target);
    printf("cancelled: %ld wrong\n", wrong);
}

int main(int argc, char **argv) {
    if (argc < 3) return 1;
    numbers(argv[1], argv[2]);
    directories(argv[1], argv[2]);
    cancelled(argv[2]);
    return 0;
}
