/* A signal handler that uses the mount (argument) while the first use of the mount waits for a daemon that says nothing. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static const char *path;
static volatile int handled, said;

static void handler(int signal) {
    (void)signal;
    errno = 0;
    open(path, O_RDONLY);
    said = errno;
    handled = 1;
}

int main(int argc, char **argv) {
    (void)argc;
    path = argv[1];
    signal(SIGALRM, handler);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 200000}}, NULL);
    int fd = open(path, O_RDONLY);
    printf("%d %s; handler: %d %s\n", fd, strerror(errno), handled, strerror(said));
    return 0;
}
