/* Locks: what becomes of them across fork, exec and close, and what signals do to who waits for one. */
#include "transcript.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/time.h>
#include <time.h>

static int lock(int fd, int command, short type, off_t start, off_t length)
{
    struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
    return fcntl(fd, command, &lock);
}

/* What a process of its own sees of a byte's lock. */
static const char *seen(const char *name, off_t byte)
{
    int channel[2];
    static char text[64];
    pipe(channel);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(in(name), O_RDWR);
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
        int code = fcntl(fd, F_GETLK, &lock);
        if (code != 0)
            snprintf(text, sizeof text, "error %d", errno);
        else if (lock.l_type == F_UNLCK)
            snprintf(text, sizeof text, "free");
        else
            snprintf(text, sizeof text, "%s lock at %d for %d of %s", lock.l_type == F_RDLCK ? "read" : "write",
                     (int)lock.l_start, (int)lock.l_len, lock.l_pid == getppid() ? "its parent" : "another");
        write(channel[1], text, sizeof text);
        _exit(0);
    }
    memset(text, 0, sizeof text);
    read(channel[0], text, sizeof text);
    close(channel[0]);
    close(channel[1]);
    waitpid(child, NULL, 0);
    return text;
}

/* ---- across exec ---- */

static void second_program(int kept, int marked)
{
    say("environment %s", getenv("BIVOUAC_LOCKS") == NULL ? "clean" : getenv("BIVOUAC_LOCKS"));
    say("kept: %s", seen("kept", 0));
    say("closed: %s", seen("closed", 0));
    say("both: %s", seen("both", 0));
    say("marked: %s", seen("marked", 0));
    TELL(lock(kept, F_SETLK, F_WRLCK, 0, 20));
    TELL(lock(kept, F_SETLK, F_UNLCK, 5, 5));
    say("kept: %s", seen("kept", 0));
    say("kept: %s", seen("kept", 5));
    /* Any close gives it up, also of another description. */
    close(open(in("kept"), O_RDONLY));
    say("kept: %s", seen("kept", 0));
    TELL(fcntl(marked, F_SETFD, FD_CLOEXEC));
}

static void third_program(void)
{
    say("marked: %s", seen("marked", 0));
    say("last: %s", seen("last", 0));
    exit(0);
}

static void across_exec(const char *program)
{
    put("kept", "0123456789");
    put("closed", "0123456789");
    put("both", "0123456789");
    put("marked", "0123456789");
    put("last", "0123456789");
    int kept = open(in("kept"), O_RDWR), closed = open(in("closed"), O_RDWR | O_CLOEXEC);
    int both = open(in("both"), O_RDWR), also = open(in("both"), O_RDWR | O_CLOEXEC);
    int marked = open(in("marked"), O_RDWR);
    TELL(lock(kept, F_SETLK, F_WRLCK, 0, 10));
    TELL(lock(closed, F_SETLK, F_WRLCK, 0, 10));
    TELL(lock(both, F_SETLK, F_RDLCK, 0, 10));
    TELL(lock(marked, F_SETLK, F_RDLCK, 0, 10));
    execl("/nonexistent/program", "program", (char *)NULL);
    say("after an exec that failed: %s", seen("closed", 0));
    char one[16], other[16], copy[16];
    snprintf(one, sizeof one, "%d", kept);
    snprintf(other, sizeof other, "%d", marked);
    snprintf(copy, sizeof copy, "%d", dup(transcript_fd));
    (void)also;
    execl(program, program, base, "second", one, other, copy, (char *)NULL);
    say("no exec: %s", result(-1));
}

/* ---- across fork ---- */

static void across_fork(void)
{
    put("forked", "0123456789");
    int fd = open(in("forked"), O_RDWR);
    TELL(lock(fd, F_SETLK, F_WRLCK, 0, 10));
    pid_t child = fork();
    if (child == 0) {
        int mine = lock(fd, F_SETLK, F_WRLCK, 0, 10);
        say("the child's lock: %s", result(mine));
        close(fd);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    say("after the child closed it: %s", seen("forked", 0));
    close(fd);
    say("after the parent closed it: %s", seen("forked", 0));
}

/* ---- signals ---- */

static volatile sig_atomic_t ran;
static sigjmp_buf back;

static void count(int signal)
{
    (void)signal;
    ran++;
}

static void leave(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

static void on_alarm(void (*handler)(int), int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    sigaction(SIGALRM, &action, NULL);
    ran = 0;
}

static void alarm_in(int ms)
{
    struct itimerval timer = { { 0, 0 }, { 0, ms * 1000 } };
    setitimer(ITIMER_REAL, &timer, NULL);
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* A child that holds a lock on the whole file for so long. Returns when it has it. */
static pid_t holder(const char *name, int ms)
{
    int ready[2];
    char byte;
    pipe(ready);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(in(name), O_RDWR);
        lock(fd, F_SETLK, F_WRLCK, 0, 0);
        flock(fd, LOCK_EX);
        write(ready[1], "x", 1);
        usleep(ms * 1000);
        _exit(0);
    }
    read(ready[0], &byte, 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void when(long begun, long from, long to)
{
    long took = now() - begun;
    if (took >= from && took <= to)
        say("in time, handlers ran %d", (int)ran);
    else
        say("after %ld ms, handlers ran %d", took, (int)ran);
}

static void give_up(int fd)
{
    lock(fd, F_SETLK, F_UNLCK, 0, 0);
    lock(fd, F_OFD_SETLK, F_UNLCK, 0, 0);
    flock(fd, LOCK_UN);
}

static void interrupted(const char *what, int fd, int (*wait)(int))
{
    long begun;
    say("%s", what);
    /* Without SA_RESTART the wait ends. */
    pid_t child = holder("waited", 2000);
    on_alarm(count, 0);
    alarm_in(40);
    begun = now();
    TELL(wait(fd));
    when(begun, 30, 1600);
    /* With it, it goes on. */
    on_alarm(count, SA_RESTART);
    alarm_in(40);
    TELL(wait(fd));
    when(begun, 1900, 8000);
    waitpid(child, NULL, 0);
    give_up(fd);
    /* One that leaves leaves no lock behind. */
    child = holder("waited", 2000);
    on_alarm(leave, SA_RESTART);
    begun = now();
    if (sigsetjmp(back, 1) == 0) {
        alarm_in(40);
        TELL(wait(fd));
    }
    when(begun, 30, 1600);
    waitpid(child, NULL, 0);
    usleep(50000);
    int other = open(in("waited"), O_RDWR);
    TELL(flock(other, LOCK_EX | LOCK_NB));
    say("then: %s", seen("waited", 0));
    flock(other, LOCK_UN);
    close(other);
    /* A signal that is ignored, or blocked, changes nothing. */
    child = holder("waited", 120);
    signal(SIGALRM, SIG_IGN);
    alarm_in(40);
    begun = now();
    TELL(wait(fd));
    when(begun, 80, 3000);
    waitpid(child, NULL, 0);
    give_up(fd);
    child = holder("waited", 120);
    on_alarm(count, 0);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, &old);
    alarm_in(40);
    begun = now();
    TELL(wait(fd));
    when(begun, 80, 3000);
    sigprocmask(SIG_SETMASK, &old, NULL);
    say("let in, handlers ran %d", (int)ran);
    waitpid(child, NULL, 0);
    give_up(fd);
}

static int wait_for_bytes(int fd)
{
    return lock(fd, F_SETLKW, F_WRLCK, 0, 0);
}

static int wait_for_bytes_of_description(int fd)
{
    return lock(fd, F_OFD_SETLKW, F_WRLCK, 0, 0);
}

static int wait_for_file(int fd)
{
    return flock(fd, LOCK_EX);
}

int main(int argc, char **argv)
{
    if (argc > 3) {
        snprintf(base, sizeof base, "%s", argv[1]);
        transcript_fd = atoi(argv[5]);
        if (strcmp(argv[2], "third") == 0)
            third_program();
        second_program(atoi(argv[3]), atoi(argv[4]));
        int last = open(in("last"), O_RDWR);
        TELL(lock(last, F_SETLK, F_WRLCK, 0, 10));
        execl(argv[0], argv[0], base, "third", argv[3], argv[4], argv[5], (char *)NULL);
        return 1;
    }
    begin(argc, argv, "locks");
    across_fork();
    put("waited", "0123456789");
    int fd = open(in("waited"), O_RDWR);
    interrupted("fcntl", fd, wait_for_bytes);
    interrupted("fcntl of the description", fd, wait_for_bytes_of_description);
    interrupted("flock", fd, wait_for_file);
    close(fd);
    across_exec(argv[0]);
    return 1;
}
