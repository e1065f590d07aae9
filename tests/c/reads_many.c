/* Reads all of many files again and again, while another thread replaces them by new versions, until something comes on its standard input.
 * Usage: reads_many DEPLOYMENT. Says `ready` when it has begun, and in the end how many rounds of each there were.
 *
 * A file's version never becomes less for who reads it, and what is read is all of one version: files are written under another name and
 * renamed. */
#include <bivouac.h>
#include <fcntl.h>
#include <pthread.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILES = 600, LONGEST = 200000 };

static bivouac_t *deployment;
static atomic_int stops;

static void fail(const char *what, int file) {
    printf("%s of %d: %s\n", what, file, bivouac_error());
    exit(1);
}

/* In the inode, in one block, and in several of 64 KiB. */
static size_t size_of(int file) {
    return file % 10 == 0 ? LONGEST - (size_t)file : file % 2 ? 20 + (size_t)file : 6000 + (size_t)file;
}

static unsigned char byte_of(int file, unsigned version, size_t at) {
    return (unsigned char)(at * 7 + at / 251 + (size_t)file * 31 + version * 13);
}

static void name_of(int file, char *name) {
    sprintf(name, "/many/%d", file);
}

static void write_version(int file, unsigned version, unsigned char *buffer) {
    char name[32], other[40];
    bivouac_file_t *to;
    size_t size = size_of(file);
    name_of(file, name);
    sprintf(other, "%s.new", name);
    memcpy(buffer, &version, sizeof version);
    for (size_t at = sizeof version; at < size; at++)
        buffer[at] = byte_of(file, version, at);
    if (bivouac_open(deployment, other, O_WRONLY | O_CREAT | O_TRUNC, 0644, &to))
        fail("open", file);
    ssize_t written = bivouac_pwrite(to, buffer, size, 0);
    if (written < 0)
        fail("write", file);
    if (written != (ssize_t)size) {
        printf("%zd bytes of %zu of %d written\n", written, size, file);
        exit(1);
    }
    if (bivouac_close(to))
        fail("close", file);
    if (bivouac_rename(deployment, other, name, 0))
        fail("rename", file);
}

static void *replace(void *rounds) {
    unsigned char *buffer = malloc(LONGEST);
    for (unsigned version = 1; !stops; version++, ++*(int *)rounds)
        for (int file = 0; file < FILES && !stops; file += 3)
            write_version(file, version, buffer);
    free(buffer);
    return NULL;
}

/* The version that all of it is of. */
static unsigned check(int file, const unsigned char *found, ssize_t length) {
    unsigned version;
    if (length != (ssize_t)size_of(file)) {
        printf("%zd bytes of %zu of %d\n", length, size_of(file), file);
        exit(1);
    }
    memcpy(&version, found, sizeof version);
    for (size_t at = sizeof version; at < (size_t)length; at++)
        if (found[at] != byte_of(file, version, at)) {
            printf("byte %zu of %d is not of version %u\n", at, file, version);
            exit(1);
        }
    return version;
}

int main(int argc, char **argv) {
    static struct bivouac_piece pieces[FILES];
    static char names[FILES][32];
    static unsigned seen[FILES];
    int read_rounds = 0, replaced = 0;
    pthread_t thread;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2 || bivouac_attach(argv[1], &deployment))
        fail("attach", 0);
    if (bivouac_mkdir(deployment, "/many", 0755))
        fail("mkdir", 0);
    for (int file = 0; file < FILES; file++) {
        name_of(file, names[file]);
        pieces[file].path = names[file];
        pieces[file].length = size_of(file) + 1;
        pieces[file].buffer = malloc(pieces[file].length);
        write_version(file, 0, pieces[file].buffer);
    }
    pthread_create(&thread, NULL, replace, &replaced);
    puts("ready");
    while (!poll(&input, 1, 0)) {
        for (int file = 0; file < FILES; file++)
            memset(pieces[file].buffer, 0xee, pieces[file].length);
        if (bivouac_read_many(deployment, pieces, FILES))
            fail("read", -1);
        for (int file = 0; file < FILES; file++) {
            if (pieces[file].result < 0) {
                printf("read of %d: %s\n", file, strerror((int)-pieces[file].result));
                exit(1);
            }
            unsigned version = check(file, pieces[file].buffer, pieces[file].result);
            if (version < seen[file]) {
                printf("%d was of version %u, and is of %u\n", file, seen[file], version);
                exit(1);
            }
            seen[file] = version;
        }
        read_rounds++;
    }
    stops = 1;
    pthread_join(thread, NULL);
    for (int file = 0; file < FILES; file++)
        free(pieces[file].buffer);
    bivouac_detach(deployment);
    printf("%d %d\n", read_rounds, replaced);
    return 0;
}
