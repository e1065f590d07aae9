// Many threads fill one file, which is new or holds zeros: half of them by stores into a shared mapping, half by writes of eight bytes, all into the
// same pages. Each has places of its own, so that nothing may be missing at the end. Prints what is.
//
//   stores_and_writes FILE THREADS PAGES
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, EACH = PAGE / sizeof(uint64_t) };

static int file;
static uint64_t *map;
static long threads, pages;
static pthread_barrier_t start;

static uint64_t wanted(long place) { return 0x1000000000000000ull + (uint64_t)place; }

static void *fill(void *argument) {
    long me = (long)argument;
    pthread_barrier_wait(&start);
    for (long place = me; place < pages * EACH; place += threads) {
        uint64_t value = wanted(place);
        if (me % 2 == 0) {
            ((volatile uint64_t *)map)[place] = value;
        } else if (pwrite(file, &value, sizeof value, place * (off_t)sizeof value) != sizeof value) {
            perror("pwrite");
            exit(2);
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    threads = atol(arguments[2]);
    pages = atol(arguments[3]);
    file = open(arguments[1], O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, pages * PAGE) != 0) return perror(arguments[1]), 2;
    map = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) return perror("mmap"), 2;
    pthread_barrier_init(&start, NULL, threads);
    pthread_t *all = calloc(threads, sizeof *all);
    for (long i = 0; i < threads; i++) pthread_create(&all[i], NULL, fill, (void *)i);
    for (long i = 0; i < threads; i++) pthread_join(all[i], NULL);
    long missing = 0;
    for (long place = 0; place < pages * EACH; place++) {
        uint64_t written = 0;
        uint64_t mapped = map[place];
        if (pread(file, &written, sizeof written, place * (off_t)sizeof written) != sizeof written) return 2;
        if (written != wanted(place) || mapped != wanted(place)) {
            if (missing++ < 8)
                printf("place %ld (page %ld, by a %s): %#lx read, %#lx mapped\n", place, place / EACH,
                       place % threads % 2 ? "write" : "store", written, mapped);
        }
    }
    printf("%ld missing\n", missing);
    return missing != 0;
}
