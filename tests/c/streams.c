/* Streams whose descriptors change under them: saved pointers to the standard streams, freopen, dup2 and fclose, names of
 * open descriptors, the end of the process; and what little-used calls do. */
#include "transcript.h"
#include <dirent.h>
#include <locale.h>
#include <pthread.h>
#include <stdio_ext.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <wchar.h>

/* In a child, as the standard streams change. */
static void child(const char *name, void (*body)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        body();
        exit(0);
    }
    ended(name, pid);
}

/* A descriptor of a file in the directory. */
static int opened(const char *name, int flags)
{
    int fd = open(in(name), flags, 0644);
    if (fd < 0)
        say("cannot open %s: %s", name, result(-1));
    return fd;
}

static void onto(int fd, int number)
{
    dup2(fd, number);
    close(fd);
}

static void saved_by_freopen(void)
{
    FILE *out = stdout;
    say("same pointer %d", freopen(in("saved"), "w", stdout) == out);
    fprintf(out, "by saved pointer, ");
    printf("by variable, ");
    putc_unlocked('u', out);
    putc(',', out);
    fwrite(" fwrite,", 1, 8, out);
    say("pending %zu fileno %d", __fpending(out), fileno(out));
    say("to null: same pointer %d", freopen("/dev/null", "w", out) == out);
    fputs("lost", out);
    say("back: same pointer %d", freopen(in("saved"), "a", out) == out);
    fputs(" appended", out);
    TELL(fflush(out));
    show("saved");
    say("reading: same pointer %d", freopen(in("saved"), "r", out) == out);
    say("reads %c, writes %d", getc(out), fputs("x", out) < 0 ? -1 : 0);
    TELL(fclose(out));
    TELL(fcntl(1, F_GETFD));
}

static void saved_by_dup2(void)
{
    FILE *out = stdout, *error = stderr;
    static char room[5000];
    setvbuf(stdout, room, _IOFBF, sizeof room);
    fputs("pending goes along, ", out);
    onto(opened("saved", O_WRONLY | O_CREAT | O_TRUNC), 1);
    fprintf(out, "then %s, ", "saved");
    for (int i = 0; i < 3000; i++)
        putc_unlocked("0123456789"[i % 10], i % 2 ? out : stdout);
    struct stat st;
    fstat(1, &st);
    say("size %lld before the buffer is full", (long long)st.st_size);
    for (int i = 0; i < 3000; i++)
        putchar_unlocked('.');
    fstat(1, &st);
    say("size %lld after, in pieces of the buffer", (long long)st.st_size);
    onto(open("/dev/null", O_WRONLY), 1);
    TELL(fflush(out));
    onto(opened("saved", O_WRONLY | O_TRUNC), 1);
    TELL(ftruncate(1, 0));
    fputs("after null", out);
    fflush(NULL);
    show("saved");
    onto(opened("errors", O_WRONLY | O_CREAT | O_TRUNC), 2);
    fputs("unbuffered ", error);
    show("errors");
    say("same pointer %d", freopen(in("errors"), "a", stderr) == error);
    fputs("by freopen", error);
    say("pending %zu", __fpending(error));
    fflush(error);
    show("errors");
}

static void reading_on(void)
{
    FILE *input = stdin;
    put("one", "abcdef");
    put("two", "UVWXYZ");
    onto(opened("one", O_RDONLY), 0);
    int first = getc(input);
    /* The bytes ahead are the stream's, whatever becomes of the descriptor. */
    onto(opened("two", O_RDONLY), 0);
    char text[20];
    for (int i = 0; i < 8; i++)
        text[i] = (char)getc_unlocked(i % 2 ? input : stdin);
    say("read %c, then what was ahead and the next: %.8s", first, text);
    ungetc('!', input);
    TELL(freopen(in("one"), "r", stdin) == input);
    say("what was put back is gone: %c", getchar());
    onto(open("/dev/null", O_RDONLY), 0);
    while (getchar() != EOF) {
    }
    say("eof %d error %d", feof(input) != 0, ferror(input) != 0);
    clearerr(stdin);
    onto(opened("two", O_RDONLY), 0);
    say("reads on: %s", fgets(text, sizeof text, input));
}

static void wide_streams(void)
{
    setlocale(LC_ALL, "C.UTF-8");
    FILE *out = stdout;
    say("orientation %d", fwide(out, 1) > 0);
    fputws(L"\u00e9 pending,", out);
    onto(opened("wide", O_WRONLY | O_CREAT | O_TRUNC), 1);
    fputws(L" \u20ac,", out);
    fwprintf(out, L" %d %ls", 7, L"\u03b1");
    TELL(fflush(out));
    show("wide");
    onto(open("/dev/null", O_WRONLY), 1);
    say("to null %d", fputws(L"lost", stdout) > 0);
    TELL(fflush(out));
    put("characters", "\u00e9\u20acab\u03b1\u03b2");
    onto(opened("characters", O_RDONLY), 0);
    wint_t first = getwc(stdin), second = getwchar();
    say("characters %x %x", (unsigned)first, (unsigned)second);
    FILE *file = fopen("/dev/null", "w");
    fputws(L"wide", file);
    say("wide into the directory: same pointer %d", freopen(in("turned"), "w", file) == file);
    fputs("bytes again", file);
    TELL(fclose(file));
    show("turned");
}

/* Wide reading of a local file goes on after the descriptor has changed. */
static void wide_reading_on(void)
{
    setlocale(LC_ALL, "C.UTF-8");
    int ends[2];
    pipe(ends);
    write(ends[1], "\u00e9\u20acxy", 7);
    close(ends[1]);
    onto(ends[0], 0);
    wint_t first = getwchar();
    put("characters", "\u03b1\u03b2");
    onto(opened("characters", O_RDONLY), 0);
    say("characters %x, then %x", (unsigned)first, (unsigned)getwchar());
    wint_t x = getwchar(), y = getwchar(), next = getwchar();
    say("then %x %x, then %x of the next", (unsigned)x, (unsigned)y, (unsigned)next);
}

static void closed_and_reopened(void)
{
    FILE *out = stdout;
    onto(opened("closed", O_WRONLY | O_CREAT | O_TRUNC), 1);
    fputs("written by fclose", out);
    TELL(fclose(out));
    TELL(fcntl(1, F_GETFD));
    show("closed");
    say("fputs %d", fputs("into nothing", out) < 0 ? -1 : 0);
    int fd = opened("other", O_RDWR | O_CREAT | O_TRUNC);
    say("the number is free: %d", fd);
    fflush(out);
    say("reopened: same pointer %d", freopen(in("closed"), "w", out) == out);
    say("fileno %d", fileno(out));
    fputs("again", stdout);
    fflush(NULL);
    show("closed");
    show("other");
    POINTER(freopen(in("missing/below"), "w", out));
    say("closed again: fileno %s", result(fileno(out)));
}

static void *read_one(void *read)
{
    *(int *)read = getchar();
    return NULL;
}

static void moved_while_reading(void)
{
    int ends[2], read = 0;
    pipe(ends);
    onto(ends[0], 0);
    put("one", "abcdef");
    pthread_t thread;
    pthread_create(&thread, NULL, read_one, &read);
    usleep(100000);
    onto(opened("one", O_RDONLY), 0);
    say("dup2 does not wait");
    write(ends[1], "p", 1);
    pthread_join(thread, NULL);
    int next = getchar();
    say("the thread read %c, then comes %c", read, next);
}

/* Whether a number that was the directory's is a plain one again. */
static void is_free(const char *what, int number)
{
    int ends[2];
    char text[8] = "";
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    if (ends[0] != number && ends[1] != number)
        say("%s: the number was not given again", what);
    write(ends[0], "secret", 6);
    ssize_t count = recv(ends[1], text, 7, MSG_DONTWAIT);
    say("%s: the peer got %zd \"%s\"", what, count, text);
    close(ends[0]);
    close(ends[1]);
}

static void numbers_taken(void)
{
    FILE *file = fopen("/dev/null", "w");
    int number = fileno(file), fd = opened("taken", O_RDWR | O_CREAT | O_TRUNC);
    dup2(fd, number);
    fclose(file);
    is_free("fclose", number);
    file = popen("exit 3", "r");
    number = fileno(file);
    dup2(fd, number);
    say("pclose %d", WEXITSTATUS(pclose(file)));
    is_free("pclose", number);
    DIR *directory = opendir("/proc/self");
    number = dirfd(directory);
    dup2(fd, number);
    TELL(closedir(directory));
    is_free("closedir", number);
    file = fopen("/dev/null", "r");
    number = fileno(file);
    dup2(fd, number);
    say("same pointer %d", freopen("/dev/zero", "r", file) == file);
    char byte = 1;
    ssize_t count = read(number, &byte, 1);
    say("freopen: read %zd %d", count, byte);
    dup2(fd, number);
    say("same pointer %d", freopen(NULL, "r+", file) == file);
    TELL(fputs("through the new file", file) >= 0);
    TELL(fclose(file));
    show("taken");
}

static void reopened_itself(void)
{
    put("itself", "0123456789");
    FILE *file = fopen(in("itself"), "r");
    say("%c", fgetc(file));
    say("same pointer %d", freopen(NULL, "r+", file) == file);
    say("from the start: %c", fgetc(file));
    fseek(file, 5, SEEK_SET);
    fputs("XY", file);
    fflush(file);
    show("itself");
    say("same pointer %d", freopen(NULL, "a", file) == file);
    fputs("end", file);
    fflush(file);
    show("itself");
    say("same pointer %d", freopen(NULL, "w", file) == file);
    fflush(file);
    show("itself");
    static char room[4096];
    setvbuf(file, room, _IOFBF, sizeof room);
    fputs("in the program's buffer", file);
    say("same pointer %d", freopen(in("itself"), "r", file) == file);
    memset(room, '#', sizeof room);
    char text[40] = "";
    say("read \"%s\"", fgets(text, sizeof text, file));
    say("the program's buffer is left alone %d", room[0] == '#');
    fclose(file);
}

static void names_of_descriptors(void)
{
    put("named", "0123456789");
    int fd = opened("named", O_RDONLY), again, out;
    char path[64], text[20] = "";
    read(fd, text, 4);
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    again = open(path, O_RDWR);
    say("position %lld and %lld", (long long)lseek(fd, 0, SEEK_CUR), (long long)lseek(again, 0, SEEK_CUR));
    TELL(write(again, "ab", 2));
    say("flags %o and %o", fcntl(fd, F_GETFL) & O_ACCMODE, fcntl(again, F_GETFL) & O_ACCMODE);
    close(again);
    show("named");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    again = open(path, O_WRONLY | O_APPEND);
    TELL(write(again, "end", 3));
    close(again);
    show("named");
    WORKS(open(path, O_RDONLY | O_NOFOLLOW));
    WORKS(open(path, O_RDWR | O_CREAT | O_EXCL, 0644));
    WORKS(open(path, O_RDONLY | O_DIRECTORY));
    unlink(in("named"));
    again = open(path, O_RDWR | O_TRUNC);
    struct stat st;
    fstat(fd, &st);
    say("opened without a name %d, size %lld", again >= 0, (long long)st.st_size);
    close(again);
    close(fd);
    put("output", "what was there before");
    fd = opened("output", O_RDWR);
    onto(fd, 1);
    out = open("/dev/stdout", O_WRONLY | O_TRUNC | O_CREAT, 0644);
    write(out, "new", 3);
    close(out);
    show("output");
    FILE *file = fopen("/dev/stdout", "a");
    fputs(" and more", file);
    fclose(file);
    show("output");
    fd = open(base, O_RDONLY | O_DIRECTORY);
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    again = open(path, O_RDONLY | O_DIRECTORY);
    say("a directory %d, its file %d", again >= 0, faccessat(again, "output", F_OK, 0));
    WORKS(open(path, O_RDWR));
    snprintf(path, sizeof path, "/dev/fd/%d/output", fd);
    WORKS(access(path, F_OK));
    int name = opened("output", O_PATH);
    snprintf(path, sizeof path, "/dev/fd/%d", name);
    again = open(path, O_RDONLY);
    say("from O_PATH: read %s", result(read(again, text, 3)));
}

static void *read_for_ever(void *nothing)
{
    getchar();
    return nothing;
}

static void end_while_reading(void)
{
    int ends[2];
    pipe(ends);
    onto(ends[0], 0);
    FILE *file = fopen(in("locked"), "w");
    TELL(flock(fileno(file), LOCK_EX));
    fputs("flushed by exit", file);
    pthread_t thread;
    pthread_create(&thread, NULL, read_for_ever, NULL);
    usleep(100000);
}

/* What exit flushes is written before a lock is given up, however long it takes to flush other streams. */
static void end_under_lock(void)
{
    int begun[2], full[2];
    char byte, many[4096] = "";
    struct flock lock = { .l_type = F_WRLCK };
    struct stat st;
    FILE *file = fopen(in("counted"), "w+");
    pipe(begun);
    pipe(full);
    pid_t reader = fork();
    if (reader == 0) {
        close(full[1]);
        read(begun[0], &byte, 1);
        usleep(300000);
        while (read(full[0], many, sizeof many) > 0) {
        }
        _exit(0);
    }
    pid_t holder = fork();
    if (holder == 0) {
        fcntl(fileno(file), F_SETLK, &lock);
        fputs("counted", file);
        fcntl(full[1], F_SETFL, O_NONBLOCK);
        while (write(full[1], many, sizeof many) > 0) {
        }
        fcntl(full[1], F_SETFL, 0);
        fputs("waits for the reader", fdopen(full[1], "w"));
        write(begun[1], "12", 2);
        exit(0);
    }
    close(full[1]);
    read(begun[0], &byte, 1);
    TELL(fcntl(fileno(file), F_SETLKW, &lock));
    fstat(fileno(file), &st);
    say("under the lock after exit: %lld bytes", (long long)st.st_size);
    ended("holder", holder);
    ended("reader", reader);
}

static void all_flushed(void)
{
    int ends[2];
    char text[40] = "";
    FILE *inside = fopen(in("flushed"), "w");
    pipe(ends);
    FILE *outside = fdopen(ends[1], "w");
    fputs("inside", inside);
    fputs("outside", outside);
    TELL(fflush(NULL));
    show("flushed");
    ssize_t count = read(ends[0], text, sizeof text - 1);
    say("through the pipe %zd \"%s\"", count, text);
    fputs(" more", inside);
    TELL(fcloseall());
    show("flushed");
}

static ssize_t own_read(void *cookie, char *into, size_t room)
{
    int *left = cookie;
    size_t count = room < (size_t)*left ? room : (size_t)*left;
    memset(into, 'c', count);
    *left -= (int)count;
    return (ssize_t)count;
}

static void others(void)
{
    char text[64] = "", memory[32] = "";
    int left = 5;
    FILE *file = fopencookie(&left, "r", (cookie_io_functions_t){ .read = own_read });
    say("own cookie stream: %s fileno %s", fgets(text, sizeof text, file), result(fileno(file)));
    TELL(fclose(file));
    file = fmemopen(memory, sizeof memory, "w+");
    fputs("in memory", file);
    rewind(file);
    say("fmemopen: %s %s", fgets(text, sizeof text, file), memory);
    TELL(fclose(file));
    char *grown = NULL;
    size_t size = 0;
    file = open_memstream(&grown, &size);
    fprintf(file, "grown %d", 5);
    fclose(file);
    say("open_memstream: %zu %s", size, grown);
    free(grown);
    char command[PATH_MAX + 100];
    snprintf(command, sizeof command, "cat > '%s'", in("piped"));
    file = popen(command, "w");
    fputs("by popen", file);
    TELL(pclose(file));
    show("piped");
    snprintf(command, sizeof command, "cat '%s'; exit 4", in("piped"));
    file = popen(command, "r");
    say("popen reads %s", fgets(text, sizeof text, file));
    say("status %d", WEXITSTATUS(pclose(file)));
    file = tmpfile();
    fputs("temporary", file);
    rewind(file);
    say("tmpfile: %s", fgets(text, sizeof text, file));
    fclose(file);
}

static void updating(void)
{
    put("update", "one:two:three\nlast line");
    FILE *file = fopen(in("update"), "r+");
    int one = getc(file), two = getc(file);
    say("%c%c", one, two);
    ungetc('Q', file);
    ungetc('P', file);
    say("tell with two put back %ld", ftell(file));
    one = getc(file);
    two = getc(file);
    say("%c%c%c", one, two, getc(file));
    fseek(file, 4, SEEK_SET);
    fputs("TWO", file);
    fseek(file, 1, SEEK_CUR);
    say("after writing comes %c", getc(file));
    fseek(file, -4, SEEK_END);
    fputs("LINE", file);
    fpos_t position;
    fgetpos(file, &position);
    rewind(file);
    char *line = NULL;
    size_t room = 0;
    ssize_t length = getdelim(&line, &room, ':', file);
    say("getdelim %zd %s", length, line);
    length = getline(&line, &room, file);
    line[length - 1] = 0;
    say("getline %zd %s", length, line);
    length = getline(&line, &room, file);
    say("getline %zd %s", length, line);
    say("getline %zd eof %d", getline(&line, &room, file), feof(file) != 0);
    free(line);
    TELL(fsetpos(file, &position));
    say("at %ld eof %d", ftell(file), feof(file) != 0);
    fputc('!', file);
    fclose(file);
    show("update");
}

int main(int argc, char **argv)
{
    begin(argc, argv, "streams");
    child("saved by freopen", saved_by_freopen);
    child("saved by dup2", saved_by_dup2);
    child("reading on", reading_on);
    child("wide", wide_streams);
    child("wide reading on", wide_reading_on);
    child("closed and reopened", closed_and_reopened);
    child("moved while reading", moved_while_reading);
    child("numbers taken", numbers_taken);
    reopened_itself();
    child("names of descriptors", names_of_descriptors);
    child("end while reading", end_while_reading);
    show("locked");
    child("end under lock", end_under_lock);
    child("all flushed", all_flushed);
    others();
    updating();
    return 0;
}
