/* Maps a file for reading in the ways that programs do, sums what it sees, and compares with read().
 *
 *     cc -O2 -Wall mmap_sum.c -o mmap_sum && ./mmap_sum FILE
 *
 * Prints the file's size and its sums; the same file gives the same lines on every file system. A mapping that differs
 * from what read() returns is told on standard error and gives status 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A sum that depends on the order of the bytes. */
static uint64_t sum(uint64_t value, const unsigned char *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        value = (value ^ data[i]) * 0x100000001b3u;
    return value;
}

static const uint64_t START = 0xcbf29ce484222325u;

static void __attribute__((noreturn)) fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* The sum of a range by pread, in pieces that fit no page. */
static uint64_t sum_read(int fd, off_t from, size_t count)
{
    static unsigned char piece[100003];
    uint64_t value = START;
    while (count > 0) {
        ssize_t got = pread(fd, piece, count < sizeof piece ? count : sizeof piece, from);
        if (got < 0)
            fail("pread");
        if (got == 0) {
            fprintf(stderr, "the file ends at %lld, %zu bytes early\n", (long long)from, count);
            exit(1);
        }
        value = sum(value, piece, (size_t)got);
        from += got;
        count -= (size_t)got;
    }
    return value;
}

/* Maps a range, sums it and compares. The descriptor is closed first when asked: a mapping outlives it. */
static void map(const char *path, const char *what, int flags, off_t from, size_t count, int close_first)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        fail(path);
    uint64_t expected = sum_read(fd, from, count);
    unsigned char *data = mmap(NULL, count, PROT_READ, flags, fd, from);
    if (data == MAP_FAILED)
        fail(what);
    if (close_first)
        close(fd);
    uint64_t value = sum(START, data, count);
    if (value != expected) {
        fprintf(stderr, "%s: the mapping gives %016llx, read gives %016llx\n", what, (unsigned long long)value,
                (unsigned long long)expected);
        exit(1);
    }
    /* The last page's rest reads as zeros. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), over = count % page;
    struct stat st;
    if (!close_first && fstat(fd, &st) == 0 && from + (off_t)count == st.st_size && over != 0)
        for (size_t i = count; i < count + page - over; i++)
            if (data[i] != 0) {
                fprintf(stderr, "%s: byte %zu, behind the end, is %02x\n", what, i, data[i]);
                exit(1);
            }
    if (munmap(data, count) != 0)
        fail("munmap");
    if (!close_first)
        close(fd);
    printf("%s %lld+%zu %016llx\n", what, (long long)from, count, (unsigned long long)value);
}

/* Writes to a private mapping stay private. */
static void change_private(const char *path, size_t size)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        fail(path);
    uint64_t before = sum_read(fd, 0, size);
    unsigned char *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        fail("private writable");
    for (size_t i = 0; i < size; i += 1000)
        data[i] ^= 0xff;
    if (sum_read(fd, 0, size) != before) {
        fprintf(stderr, "a private mapping changed the file\n");
        exit(1);
    }
    for (size_t i = 0; i < size; i += 1000)
        data[i] ^= 0xff;
    if (sum(START, data, size) != before) {
        fprintf(stderr, "a private mapping lost bytes\n");
        exit(1);
    }
    munmap(data, size);
    close(fd);
    printf("private writable ok\n");
}

/* Says what a mapping that must fail returns. */
static void refuse(const char *what, const char *path, size_t count, int protection, int flags, off_t from)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        fail(path);
    errno = 0;
    void *data = mmap(NULL, count, protection, flags, fd, from);
    printf("%s: %s\n", what, data == MAP_FAILED ? strerrorname_np(errno) : "mapped");
    if (data != MAP_FAILED)
        munmap(data, count);
    close(fd);
}

int main(int argc, char **argv)
{
    struct stat st;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    if (stat(argv[1], &st) != 0)
        fail(argv[1]);
    size_t size = (size_t)st.st_size, page = (size_t)sysconf(_SC_PAGESIZE);
    printf("size %zu\n", size);
    refuse("no bytes", argv[1], 0, PROT_READ, MAP_PRIVATE, 0);
    refuse("odd offset", argv[1], 1, PROT_READ, MAP_PRIVATE, 1);
    refuse("shared writable of a read-only descriptor", argv[1], page, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    if (size == 0)
        return 0;
    map(argv[1], "private whole", MAP_PRIVATE, 0, size, 0);
    map(argv[1], "shared whole", MAP_SHARED, 0, size, 0);
    map(argv[1], "shared whole, closed", MAP_SHARED, 0, size, 1);
    if (size > page) {
        /* From a page inside to the end, and a few bytes over one page boundary. */
        off_t from = (off_t)(size / 2 / page * page);
        if (from == 0)
            from = (off_t)page;
        map(argv[1], "private at an offset", MAP_PRIVATE, from, size - (size_t)from, 0);
        map(argv[1], "shared at an offset", MAP_SHARED, from, size - (size_t)from, 0);
        map(argv[1], "private, closed, populated", MAP_PRIVATE | MAP_POPULATE, from, size - (size_t)from, 1);
    }
    if (size > 3 * page)
        map(argv[1], "private in the middle", MAP_PRIVATE, (off_t)page, page + 17, 1);
    change_private(argv[1], size);
    return 0;
}
