/* Streams: opening, buffering, seeking, reopening, the standard streams on redirected descriptors. */
#include "transcript.h"
#include <err.h>
#include <error.h>
#include <signal.h>
#include <stdio_ext.h>
#include <wchar.h>
#include <locale.h>

static void modes(void)
{
    static const char *const all[] = { "r", "w", "a", "r+", "w+", "a+", "rb", "wx", "re", "we+", "z", "", "rm" };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        put("mode", "0123456789");
        errno = 0;
        FILE *file = fopen(in("mode"), all[i]);
        if (file == NULL) {
            say("mode \"%s\": %s", all[i], result(-1));
            continue;
        }
        int flags = fcntl(fileno(file), F_GETFL) & (O_ACCMODE | O_APPEND);
        int cloexec = fcntl(fileno(file), F_GETFD);
        long before = ftell(file);
        int character = fgetc(file);
        int error = ferror(file);
        clearerr(file);
        fseek(file, 0, SEEK_CUR);
        int written = fputs("xy", file);
        int write_error = ferror(file);
        long after = ftell(file);
        say("mode \"%s\": flags %o cloexec %d tell %ld read %d error %d write %d error %d tell %ld close %d", all[i], flags,
            cloexec, before, character, error, written < 0 ? -1 : 0, write_error, after, fclose(file));
        show("mode");
    }
    POINTER(fopen(in("missing"), "r"));
    POINTER(fopen(in("missing/below"), "w"));
    POINTER(fopen(base, "w"));
    put("plain", "x");
    POINTER(fopen(in("plain/below"), "r"));
    FILE *directory = fopen(base, "r");
    say("directory opens %d", directory != NULL);
    if (directory != NULL) {
        errno = 0;
        TELL(fgetc(directory));
        TELL(ferror(directory) != 0);
        fclose(directory);
    }
    umask(0);
    fclose(fopen(in("wide-open"), "w"));
    umask(022);
    struct stat st;
    stat(in("wide-open"), &st);
    say("mode bits %o", st.st_mode);
}

static void buffering(void)
{
    FILE *file = fopen(in("buffer"), "w");
    fputs("held back", file);
    show("buffer");
    say("pending %zu line %d", __fpending(file), __flbf(file));
    fflush(file);
    show("buffer");
    fclose(file);
    file = fopen(in("buffer"), "w");
    TELL(setvbuf(file, NULL, _IOLBF, 0));
    fputs("one line\nhalf", file);
    show("buffer");
    fclose(file);
    file = fopen(in("buffer"), "w");
    TELL(setvbuf(file, NULL, _IONBF, 0));
    fputs("at once", file);
    show("buffer");
    fclose(file);
    static char room[100000];
    file = fopen(in("buffer"), "w");
    TELL(setvbuf(file, room, _IOFBF, sizeof room));
    for (int i = 0; i < 10000; i++)
        fprintf(file, "%05d\n", i);
    struct stat st;
    stat(in("buffer"), &st);
    say("size before close %lld", (long long)st.st_size);
    TELL(fclose(file));
    stat(in("buffer"), &st);
    say("size after close %lld", (long long)st.st_size);
}

static void reading(void)
{
    FILE *file = fopen(in("lines"), "w");
    for (int i = 0; i < 5000; i++)
        fprintf(file, "line %d with %s\n", i, i % 7 ? "words" : "other words");
    fclose(file);
    file = fopen(in("lines"), "r");
    char *line = NULL;
    size_t room = 0;
    long count = 0, bytes = 0, number;
    ssize_t length;
    while ((length = getline(&line, &room, file)) > 0) {
        count++;
        bytes += length;
    }
    say("getline: %ld lines %ld bytes eof %d", count, bytes, feof(file) != 0);
    rewind(file);
    char word[32];
    TELL(fscanf(file, "line %ld with %31s", &number, word));
    say("scanned %ld %s at %ld", number, word, ftell(file));
    TELL(fseek(file, -12, SEEK_END));
    say("tail \"%.11s\"", fgets(line, (int)room, file));
    TELL(fseeko(file, 100000, SEEK_SET));
    fgets(line, (int)room, file);
    say("at 100000: %s", strtok(line, "\n"));
    TELL(fseek(file, -1, SEEK_SET));
    TELL(ungetc('Q', file));
    TELL(fgetc(file));
    fpos_t position;
    TELL(fgetpos(file, &position));
    long there = ftell(file);
    fgetc(file);
    TELL(fsetpos(file, &position));
    say("same position %d", there == ftell(file));
    char *big = malloc(300000);
    rewind(file);
    say("fread %zu", fread(big, 1, 300000, file));
    say("second fread %zu eof %d", fread(big, 1, 10, file), feof(file) != 0);
    free(big);
    free(line);
    fclose(file);
    file = fopen(in("update"), "w+");
    fputs("abcdef", file);
    rewind(file);
    int a = fgetc(file), b = fgetc(file);
    say("update reads %c%c", a, b);
    fseek(file, 0, SEEK_CUR);
    fputs("XY", file);
    fflush(file);
    show("update");
    fseek(file, 100, SEEK_SET);
    fputc('!', file);
    fclose(file);
    struct stat st;
    stat(in("update"), &st);
    say("size with hole %lld", (long long)st.st_size);
}

static void appending(void)
{
    put("log", "begin\n");
    FILE *one = fopen(in("log"), "a"), *two = fopen(in("log"), "a+");
    say("tell %ld %ld", ftell(one), ftell(two));
    fputs("one\n", one);
    fflush(one);
    char text[20] = "";
    fgets(text, sizeof text, two);
    say("a+ reads from the start: %s", strtok(text, "\n"));
    fseek(two, 0, SEEK_SET);
    fputs("two\n", two);
    fflush(two);
    fputs("three\n", one);
    fclose(one);
    fclose(two);
    show("log");
    int fd = open(in("log"), O_RDWR);
    FILE *adopted = fdopen(fd, "a");
    fputs("four\n", adopted);
    say("append flag set %d", (fcntl(fd, F_GETFL) & O_APPEND) != 0);
    fclose(adopted);
    show("log");
    fd = open(in("log"), O_RDONLY);
    POINTER(fdopen(fd, "w"));
    POINTER(fdopen(fd, "q"));
    adopted = fdopen(fd, "r");
    lseek(fd, 6, SEEK_SET);
    fgets(text, sizeof text, adopted);
    say("adopted reads %s", strtok(text, "\n"));
    TELL(fclose(adopted));
    TELL(fcntl(fd, F_GETFD));
    POINTER(fdopen(fd, "r"));
}

/* What is left in the descriptor when a stream has read ahead. */
static void read_ahead(void)
{
    put("ahead", "first\nsecond\nthird\n");
    int fd = open(in("ahead"), O_RDONLY);
    FILE *file = fdopen(dup(fd), "r");
    char text[20];
    fgets(text, sizeof text, file);
    say("descriptor at %lld", (long long)lseek(fd, 0, SEEK_CUR));
    TELL(fflush(file));
    say("after fflush at %lld", (long long)lseek(fd, 0, SEEK_CUR));
    fgets(text, sizeof text, file);
    TELL(fclose(file));
    say("after fclose at %lld", (long long)lseek(fd, 0, SEEK_CUR));
    lseek(fd, 0, SEEK_SET);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 0);
        if (fgets(text, sizeof text, stdin) == NULL)
            _exit(9);
        exit(0);
    }
    ended("reader of stdin", child);
    say("after exit at %lld", (long long)lseek(fd, 0, SEEK_CUR));
    close(fd);
}

static void reopening(void)
{
    put("left", "left\n");
    put("right", "right\n");
    char text[20];
    FILE *file = fopen(in("left"), "r");
    FILE *same = freopen(in("right"), "r", file);
    say("same pointer %d", same == file);
    say("reads %s", strtok(fgets(text, sizeof text, same), "\n"));
    same = freopen("/dev/null", "r", file);
    say("same pointer %d reads %d", same == file, fgetc(file));
    same = freopen(in("left"), "r+", file);
    say("same pointer %d reads %s", same == file, strtok(fgets(text, sizeof text, file), "\n"));
    fclose(file);
    file = fopen("/dev/null", "w");
    fputs("lost", file);
    same = freopen(in("from-null"), "w", file);
    say("same pointer %d", same == file);
    fputs("kept", file);
    fprintf(file, " %d", 5);
    TELL(fclose(file));
    show("from-null");
    file = fopen(in("left"), "r");
    POINTER(freopen(in("missing"), "r", file));
}

/* In a child: the standard streams on files, in each way that they get there. */
static void standard(const char *name, void (*body)(void))
{
    pid_t child = fork();
    if (child == 0) {
        body();
        exit(0);
    }
    ended(name, child);
}

static void by_dup2(void)
{
    fputs("pending goes along ", stdout);
    int fd = open(in("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(fd, 1);
    dup2(fd, 2);
    close(fd);
    puts("to stdout");
    fflush(stdout);
    fputs("to stderr\n", stderr);
    errno = ENOSPC;
    perror("perror");
    fprintf(stderr, "number %d\n", 1);
    warnx("warnx %d", 2);
    program_invocation_name = (char *)"stdio";
    error(0, ENOENT, "error %d", 3);
    psignal(SIGTERM, "psignal");
    putchar('z');
    printf("%s\n", "last, by exit");
}

static void by_freopen(void)
{
    if (freopen(in("out"), "w", stdout) == NULL || freopen(in("left"), "r", stdin) == NULL)
        _exit(8);
    int character;
    while ((character = getchar()) != EOF)
        putchar(character == '\n' ? '|' : character);
    printf("fileno %d %d", fileno(stdin), fileno(stdout));
}

static void by_close(void)
{
    close(1);
    int fd = open(in("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    printf("descriptor %d\n", fd);
    if (fclose(stdout) != 0)
        _exit(7);
    say("closed stdout: descriptor %s", result(fcntl(1, F_GETFD)));
    int result = printf("into nothing\n");
    say("printf afterwards %d, flush %d", result < 0 ? -1 : result, fflush(stdout) != 0 ? -1 : 0);
}

static void switching(void)
{
    int keep = dup(1), null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    for (int i = 0; i < 200; i++) {
        int fd = open(in("out"), O_WRONLY | O_CREAT | (i ? O_APPEND : O_TRUNC), 0644);
        dup2(fd, 1);
        close(fd);
        printf("%d,", i);
        fflush(stdout);
        dup2(null, 1);
        printf("to null");
        fflush(stdout);
    }
    dup2(keep, 1);
}

static void unbuffered(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    int fd = open(in("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(fd, 1);
    fputs("stays unbuffered", stdout);
    show("out");
    _exit(0);
}

static void scanning(void)
{
    put("numbers", "1 2 3 4 5\n");
    int fd = open(in("numbers"), O_RDONLY), number, sum = 0;
    dup2(fd, 0);
    while (scanf("%d", &number) == 1)
        sum += number;
    say("sum %d", sum);
    lseek(0, 0, SEEK_SET);
    clearerr(stdin);
    say("after seek %d", scanf("%d", &number) == 1 ? number : -1);
}

static void wide(void)
{
    setlocale(LC_ALL, "C.UTF-8");
    FILE *file = fopen(in("wide"), "w");
    say("orientation %d", fwide(file, 1) > 0);
    fputwc(L'\u00e9', file);
    fputws(L" \u20ac text\n", file);
    fwprintf(file, L"%d %ls %s\n", 42, L"\u03b1\u03b2", "narrow");
    TELL(fclose(file));
    show("wide");
    file = fopen(in("wide"), "r");
    wint_t first = fgetwc(file);
    say("first %x", (unsigned)first);
    ungetwc(first, file);
    wchar_t line[64];
    while (fgetws(line, 64, file) != NULL)
        say("line of %zu wide characters, last %x", wcslen(line), (unsigned)line[wcslen(line) - 1]);
    say("eof %d", feof(file) != 0);
    fclose(file);
    int fd = open(in("wide"), O_WRONLY | O_TRUNC);
    dup2(fd, 1);
    wprintf(L"wprintf %lc\n", L'\u00fc');
    fflush(stdout);
    show("wide");
}

int main(int argc, char **argv)
{
    begin(argc, argv, "stdio");
    modes();
    buffering();
    reading();
    appending();
    read_ahead();
    reopening();
    standard("by dup2", by_dup2);
    show("out");
    standard("by freopen", by_freopen);
    show("out");
    standard("by close", by_close);
    show("out");
    standard("switching", switching);
    show("out");
    standard("unbuffered", unbuffered);
    standard("scanning", scanning);
    standard("wide", wide);
    return 0;
}
