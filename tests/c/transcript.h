/* What the transcript programs share.
 *
 * Each program takes a directory, works in it, and prints what happened. Run on a local directory and on a mount, it
 * must print the same bytes, so nothing that may differ is printed: no inode numbers, no times that were not set, no
 * paths outside of the directory given. The transcript goes to a copy of the first standard output, so that a program
 * may redirect descriptor 1 as part of the test.
 */
#ifndef TRANSCRIPT_H
#define TRANSCRIPT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-result"
#pragma GCC diagnostic ignored "-Wformat-truncation"

static int transcript_fd = -1;
static char base[PATH_MAX];

/* Prints one line of the transcript. The directory's name in it becomes DIR. */
static void __attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
    char text[16384], line[16384];
    va_list list;
    int saved = errno;
    va_start(list, format);
    vsnprintf(text, sizeof text - 1, format, list);
    va_end(list);
    size_t out = 0, length = strlen(base);
    for (const char *at = text; *at != 0 && out < sizeof line - 8;) {
        if (length > 0 && strncmp(at, base, length) == 0) {
            memcpy(line + out, "DIR", 3);
            out += 3;
            at += length;
        } else {
            line[out++] = *at++;
        }
    }
    line[out++] = '\n';
    if (write(transcript_fd, line, out) < 0)
        _exit(99);
    errno = saved;
}

/* The name of what a call returned: its value, or its error. */
static const char *result(long value)
{
    static char texts[8][64];
    static int next;
    char *text = texts[next++ % 8];
    if (value < 0)
        snprintf(text, 64, "%ld %s", value, strerrorname_np(errno) ? strerrorname_np(errno) : "?");
    else
        snprintf(text, 64, "%ld", value);
    return text;
}

/* Runs an expression and says what it returned. */
#define TELL(expression)                                                                                               \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long told = (long)(expression);                                                                                \
        say("%s = %s", #expression, result(told));                                                                     \
    } while (0)

/* Likewise, saying only whether it worked: for descriptors and pointers. */
#define WORKS(expression)                                                                                              \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long told = (long)(expression);                                                                                \
        say("%s: %s", #expression, told == -1 ? result(told) : "ok");                                                  \
    } while (0)

#define POINTER(expression)                                                                                            \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        const void *told = (expression);                                                                               \
        say("%s: %s", #expression, told == NULL ? result(-1) : "ok");                                                  \
    } while (0)

/* A path in the directory. Sixteen are valid at a time. */
static const char *in(const char *name)
{
    static char paths[16][2 * PATH_MAX];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

/* Makes a file with this text, by system calls alone. */
static void put(const char *name, const char *text)
{
    int fd = open(in(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        say("cannot make %s: %s", name, result(-1));
    close(fd);
}

/* Says what a file holds, by system calls alone. */
static void show(const char *name)
{
    char text[8192];
    int fd = open(in(name), O_RDONLY);
    if (fd < 0) {
        say("%s: %s", name, result(-1));
        return;
    }
    ssize_t count = read(fd, text, sizeof text - 1);
    text[count < 0 ? 0 : count] = 0;
    /* The count is to be the same wherever the directory is. */
    ssize_t bytes = count;
    for (const char *at = text; count > 0 && (at = strstr(at, base)) != NULL; at += strlen(base))
        bytes -= (ssize_t)strlen(base) - 3;
    say("%s holds %zd bytes: \"%s\"", name, bytes, text);
    close(fd);
}

/* Says how a child ended. */
static void ended(const char *what, pid_t child)
{
    int status = 0;
    if (waitpid(child, &status, 0) != child)
        say("%s: no child", what);
    else if (WIFEXITED(status))
        say("%s: exit %d", what, WEXITSTATUS(status));
    else
        say("%s: signal %d", what, WTERMSIG(status));
}

/* Takes the directory from the arguments, and makes an empty one of the program's own in it. */
static void begin(int argc, char **argv, const char *name)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        exit(2);
    }
    snprintf(base, sizeof base, "%s/%s", argv[1], name);
    transcript_fd = fcntl(1, F_DUPFD_CLOEXEC, 50);
    if (mkdir(base, 0755) != 0) {
        fprintf(stderr, "%s: %s\n", base, strerror(errno));
        exit(2);
    }
    umask(022);
}

#endif
