/* vfork children: what they do with descriptors is their own, and they leave nothing behind in their parent. */
#include "transcript.h"
#include <limits.h>
#include <malloc.h>

/* A number of /proc/self/status, KiB. */
static long status(const char *name)
{
    char line[256];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name) + 1);
    if (file != NULL)
        fclose(file);
    return value;
}

static void one_child(int how)
{
    char *const argv[] = { "true", "one", "two", NULL };
    pid_t child = vfork();
    if (child == 0) {
        if (how % 2 == 0)
            (void)!chdir(in("dir"));
        if (how % 3 == 0)
            dup2(open(in("file"), O_RDONLY), 0);
        if (how % 5 == 0)
            execlp("no-such-program", "none", (char *)NULL);
        if (how % 2 == 0)
            execvp("true", argv);
        execlp("true", "true", "one", (char *)NULL);
        _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0)
        say("a child failed: %x", status);
}

static void nothing_is_left(void)
{
    mkdir(in("dir"), 0755);
    put("file", "text");
    for (int i = 0; i < 20; i++)
        one_child(i);
    long size = status("VmSize");
    int fd = open("/dev/null", O_RDONLY);
    close(fd);
    // What each child leaves would be there in both rounds; on a busy machine, something else comes once in a while.
    long grown = LONG_MAX;
    for (int round = 0; round < 2; round++) {
        struct mallinfo2 before = mallinfo2();
        for (int i = 0; i < 300; i++)
            one_child(i);
        struct mallinfo2 after = mallinfo2();
        long more = (long)after.uordblks - (long)before.uordblks;
        grown = more < grown ? more : grown;
    }
    if (grown < 8192)
        say("the heap is steady");
    else
        say("the heap has grown by %ld", grown);
    size = status("VmSize") - size;
    if (size < 1024)
        say("the process is steady");
    else
        say("the process has grown by %ld KiB", size);
    int again = open("/dev/null", O_RDONLY);
    say("the same number %d", fd == again);
    close(again);
}

/* Numbers that mean something else in the child. */
static void numbers(void)
{
    int channel[2];
    char text[64] = "";
    pipe(channel);
    put("target", "");
    put("other", "0123456789");
    int target = open(in("target"), O_RDWR), other = open(in("other"), O_RDONLY), dir = open(in("dir"), O_RDONLY);
    /* Known in the parent as what they are. */
    write(channel[1], "a", 1);
    read(channel[0], text, 1);
    read(other, text, 2);
    pid_t child = vfork();
    if (child == 0) {
        /* The pipe's end becomes the file, and a file a pipe. */
        dup2(target, channel[1]);
        ssize_t one = write(channel[1], "to the file", 11);
        int more[2];
        pipe(more);
        dup2(more[1], other);
        ssize_t two = write(other, "to the pipe", 11);
        char got[16] = "";
        ssize_t three = read(more[0], got, sizeof got - 1);
        close(other);
        int reused = open("/dev/null", O_RDWR);
        ssize_t four = write(reused, "to nobody", 9);
        close(reused);
        int fresh = open(in("other"), O_RDONLY);
        ssize_t five = read(fresh, text, 4);
        dup2(other, dir);
        struct stat st;
        int six = fstat(dir, &st);
        say("child: %zd %zd %zd %s %zd %zd %.4s %d %d", one, two, three, got, four, five, text, six, S_ISREG(st.st_mode));
        _exit(0);
    }
    ended("child", child);
    /* In the parent nothing has changed. */
    struct stat st;
    TELL(write(channel[1], "still a pipe", 12));
    TELL(read(channel[0], text, sizeof text));
    TELL(read(other, text, 4));
    say("text %.4s", text);
    TELL(fstat(dir, &st));
    say("a directory %d", S_ISDIR(st.st_mode));
    show("target");
    TELL(write(target, "and", 3));
    show("target");
    close(target);
    close(other);
    close(dir);
    close(channel[0]);
    close(channel[1]);
}

/* A child that has been forked vforks at once. */
static void of_a_forked_child(void)
{
    int channel[2];
    pipe(channel);
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = vfork();
        if (grandchild == 0) {
            dup2(open(in("other"), O_RDONLY), channel[1]);
            _exit(0);
        }
        waitpid(grandchild, NULL, 0);
        TELL(write(channel[1], "own", 3));
        _exit(0);
    }
    ended("forked child", child);
    char text[8] = "";
    TELL(read(channel[0], text, 3));
    close(channel[0]);
    close(channel[1]);
}

int main(int argc, char **argv)
{
    begin(argc, argv, "vforks");
    nothing_is_left();
    numbers();
    of_a_forked_child();
    /* So that the transcript is long enough to be believed. */
    for (int i = 0; i < 5; i++)
        numbers();
    return 0;
}
