/* POSIX asynchronous I/O: each call, both kinds of notification, what is refused, and lists that mix files of the
 * directory given with others.
 *
 *     gcc -O1 aio.c -o aio && ./aio DIR
 *
 * The transcript does not depend on when an operation completes: every one is waited for before it is looked at.
 */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t signals, signal_value, signal_code;
static sem_t ran;
static int thread_value, thread_differs;
static pthread_t main_thread;

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    signal_value = info->si_value.sival_int;
    signal_code = info->si_code;
    signals++;
}

static void on_thread(union sigval value)
{
    thread_value = value.sival_int;
    thread_differs = !pthread_equal(pthread_self(), main_thread);
    sem_post(&ran);
}

static struct aiocb block(int fd, void *data, size_t length, off_t offset)
{
    struct aiocb made;
    memset(&made, 0, sizeof made);
    made.aio_fildes = fd;
    made.aio_buf = data;
    made.aio_nbytes = length;
    made.aio_offset = offset;
    made.aio_sigevent.sigev_notify = SIGEV_NONE;
    return made;
}

/* Waits for an operation and prints what became of it. */
static void finish(const char *what, struct aiocb *which)
{
    const struct aiocb *list[2] = { NULL, which };
    while (aio_error(which) == EINPROGRESS)
        aio_suspend(list, 2, NULL);
    int error = aio_error(which), cancelled = aio_cancel(which->aio_fildes, which);
    printf("%s: error %s, returned %zd", what, error == 0 ? "none" : strerrorname_np(error), aio_return(which));
    if (error != EBADF)
        printf(", cancel says %s", cancelled == AIO_ALLDONE ? "all done" : "another");
    printf("\n");
}

static void started(const char *what, int answer)
{
    printf("%s: %s\n", what, answer == 0 ? "started" : strerrorname_np(errno));
}

static void show(const char *name)
{
    char data[200];
    int fd = open(name, O_RDONLY);
    ssize_t count = read(fd, data, sizeof data);
    printf("%s: ", name);
    for (ssize_t i = 0; i < count; i++)
        putchar(data[i] == 0 ? '.' : data[i]);
    printf("\n");
    close(fd);
}

static void one_by_one(void)
{
    char data[64] = "";
    int fd = open("plain", O_CREAT | O_RDWR, 0600), appending = open("plain", O_WRONLY | O_APPEND);
    int reading = open("plain", O_RDONLY), writing = open("plain", O_WRONLY);
    struct aiocb b = block(fd, "first", 5, 3);
    errno = 7;
    started("write", aio_write(&b));
    printf("errno still %d\n", errno);
    finish("write", &b);
    b = block(appending, "+appended", 9, 0);
    started("append", aio_write(&b));
    finish("append", &b);
    printf("position %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    struct aiocb64 large = { .aio_fildes = fd, .aio_buf = data, .aio_nbytes = 20, .aio_offset = 2 };
    large.aio_sigevent.sigev_notify = SIGEV_NONE;
    started("read", aio_read64(&large));
    finish("read", (struct aiocb *)&large);
    printf("read %s\n", data + 1);
    b = block(fd, data, 20, 1000);
    started("read behind the end", aio_read(&b));
    finish("read behind the end", &b);
    b = block(reading, "x", 1, 0);
    started("write to a file open for reading", aio_write(&b));
    finish("write to a file open for reading", &b);
    b = block(writing, data, 1, 0);
    started("read of a file open for writing", aio_read(&b));
    finish("read of a file open for writing", &b);
    b = block(fd, data, 5, -1);
    started("negative offset", aio_read(&b));
    finish("negative offset", &b);
    b = block(fd, NULL, 5, 0);
    started("no buffer", aio_write(&b));
    finish("no buffer", &b);
    b = block(fd, data, 5, 0);
    b.aio_reqprio = 1000;
    started("priority", aio_read(&b));
    b = block(fd, NULL, 0, 0);
    started("sync", aio_fsync(O_SYNC, &b));
    finish("sync", &b);
    started("data sync", aio_fsync(O_DSYNC, &b));
    finish("data sync", &b);
    started("sync of a kind that is none", aio_fsync(O_APPEND, &b));
    b.aio_fildes = reading;
    started("sync of a file open for reading", aio_fsync(O_SYNC, &b));
    printf("cancel all: %d\n", aio_cancel(fd, NULL) == AIO_ALLDONE);
    // A number that nothing inside of libc takes meanwhile.
    int high = fcntl(fd, F_DUPFD, 500);
    close(fd), close(high), close(appending), close(reading), close(writing);
    b = block(high, "x", 1, 0);
    started("closed", aio_write(&b));
    finish("closed", &b);
    show("plain");
}

static void notifications(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGUSR1, &action, NULL);
    sem_init(&ran, 0, 0);
    main_thread = pthread_self();
    int fd = open("notified", O_CREAT | O_RDWR, 0600);

    struct aiocb b = block(fd, "signal", 6, 0);
    b.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
    b.aio_sigevent.sigev_signo = SIGUSR1;
    b.aio_sigevent.sigev_value.sival_int = 41;
    started("with a signal", aio_write(&b));
    while (signals < 1)
        usleep(1000);
    finish("with a signal", &b);
    printf("signals %d, value %d, code %d\n", (int)signals, (int)signal_value, signal_code == SI_ASYNCIO);

    b = block(fd, "thread", 6, 6);
    b.aio_sigevent.sigev_notify = SIGEV_THREAD;
    b.aio_sigevent.sigev_notify_function = on_thread;
    b.aio_sigevent.sigev_value.sival_int = 42;
    started("with a thread", aio_write(&b));
    sem_wait(&ran);
    finish("with a thread", &b);
    printf("value %d, in another thread %d\n", thread_value, thread_differs);

    b = block(fd, NULL, 0, 0);
    b.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
    b.aio_sigevent.sigev_signo = SIGUSR1;
    b.aio_sigevent.sigev_value.sival_int = 43;
    started("sync with a signal", aio_fsync(O_SYNC, &b));
    while (signals < 2)
        usleep(1000);
    finish("sync with a signal", &b);
    printf("value %d\n", (int)signal_value);
    close(fd);
    show("notified");
}

static void lists(void)
{
    char data[8] = "", other_data[8] = "";
    char name[] = "/tmp/aio-XXXXXX";
    int other = mkstemp(name), fd = open("list", O_CREAT | O_RDWR, 0600);
    unlink(name);
    for (int mixed = 0; mixed < 2; mixed++) {
        struct aiocb a = block(fd, "aaaa", 4, 0), b = block(mixed ? other : fd, "bbbb", 4, 4);
        struct aiocb c = block(fd, "cccc", 4, 8), none = block(fd, "none", 4, 0);
        a.aio_lio_opcode = b.aio_lio_opcode = c.aio_lio_opcode = LIO_WRITE;
        none.aio_lio_opcode = LIO_NOP;
        struct aiocb *list[] = { &a, NULL, &b, &none, &c };
        started("list and wait", lio_listio(LIO_WAIT, list, 5, NULL));
        finish("a", &a), finish("b", &b), finish("c", &c);

        struct aiocb r = block(fd, data, 4, 8), s = block(mixed ? other : fd, other_data, 4, 4);
        r.aio_lio_opcode = s.aio_lio_opcode = LIO_READ;
        struct aiocb *reads[] = { &r, &s };
        struct sigevent event;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGUSR1;
        event.sigev_value.sival_int = 50 + mixed;
        int before = signals;
        started("list", lio_listio64(LIO_NOWAIT, (struct aiocb64 **)reads, 2, &event));
        while (signals == before)
            usleep(1000);
        finish("r", &r), finish("s", &s);
        printf("read %.4s %.4s, signals %d, value %d\n", data, other_data, signals - before, (int)signal_value);

        struct aiocb good = block(mixed ? other : fd, "good", 4, 12), bad = block(fd, "bad", 3, -5);
        good.aio_lio_opcode = bad.aio_lio_opcode = LIO_WRITE;
        struct aiocb *failing[] = { &bad, &good };
        started("list with a failure", lio_listio(LIO_WAIT, failing, 2, NULL));
        finish("good", &good), finish("bad", &bad);
        started("list with a failure, no wait", lio_listio(LIO_NOWAIT, failing, 2, NULL));
        finish("good", &good), finish("bad", &bad);
        bad.aio_offset = 0;
        bad.aio_reqprio = -1;
        started("list with a priority", lio_listio(LIO_NOWAIT, failing, 2, NULL));
        finish("good", &good), finish("bad", &bad);
        bad.aio_reqprio = 0;
        bad.aio_lio_opcode = 99;
        started("list with an operation that is none", lio_listio(LIO_WAIT, failing, 2, NULL));
        finish("good", &good), finish("bad", &bad);
        started("list of an unknown mode", lio_listio(17, failing, 2, NULL));
    }
    struct aiocb *nothing[] = { NULL };
    started("empty list", lio_listio(LIO_WAIT, nothing, 1, NULL));

    /* Waiting for a pipe that says nothing is over at once when a file's operation is complete. */
    int ends[2];
    if (pipe(ends) != 0)
        exit(1);
    struct aiocb pending = block(ends[0], other_data, 4, 0), done = block(fd, data, 4, 0);
    started("pipe", aio_read(&pending));
    started("file", aio_read(&done));
    const struct aiocb *either[] = { &pending, &done };
    started("wait for either", aio_suspend(either, 2, NULL));
    finish("file", &done);
    printf("pipe in progress %d\n", aio_error(&pending) == EINPROGRESS);
    if (write(ends[1], "pipe", 4) != 4)
        exit(1);
    finish("pipe", &pending);
    close(fd), close(other), close(ends[0]), close(ends[1]);
    show("list");
}

int main(int count, char **arguments)
{
    if (count != 2 || chdir(arguments[1]) != 0) {
        fprintf(stderr, "usage: aio DIR\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    one_by_one();
    notifications();
    lists();
    return 0;
}
