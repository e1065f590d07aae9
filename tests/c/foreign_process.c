/* What signals, threads and the loader see of the library while a program does not touch the mount. Each case runs in a
 * process of its own, which has ten seconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What dlopen has to say is still there after calls that the library takes part in. */
static void loader_errors(void) {
    dlopen("/nonexistent.so", RTLD_NOW);
    struct statvfs figures;
    statvfs(".", &figures);
    pathconf(".", _PC_NAME_MAX);
    FILE *file = fopen("file", "w");
    fclose(file);
    char *said = dlerror();
    printf("dlerror: %s\n", said && strstr(said, "nonexistent") ? "kept" : "lost");
}

/* ---- cancelling a thread that blocks ---- */

static int pipe_ends[2], full[2], sockets[2], file;
static char room[1 << 17];
static struct iovec part = {room, 1};

static void by_read(void) { read(pipe_ends[0], room, 1); }
static void by_readv(void) { readv(pipe_ends[0], &part, 1); }
static void by_write(void) { write(full[1], room, sizeof room); }
static void by_writev(void) { writev(full[1], &(struct iovec){room, sizeof room}, 1); }
static void by_open(void) { open("fifo", O_RDONLY); }
static void by_openat(void) { openat(AT_FDCWD, "fifo", O_RDONLY); }
static void by_creat(void) { creat("fifo", 0600); }
static void by_fopen(void) { fopen("fifo", "r"); }
static void by_splice(void) { splice(pipe_ends[0], NULL, full[1], NULL, 1, 0); }
static void by_tee(void) { tee(pipe_ends[0], full[1], 1, 0); }
static void by_recvmsg(void) {
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    recvmsg(sockets[0], &message, 0);
}
static void by_recvmmsg(void) {
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    recvmmsg(sockets[0], &message, 1, 0, NULL);
}
static void by_fcntl(void) {
    struct flock lock = {.l_type = F_WRLCK};
    fcntl(file, F_SETLKW, &lock);
}
static void by_lockf(void) { lockf(file, F_LOCK, 0); }
/* These do not block: a request that waits already is what they see. */
static void wait_for_request(void) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    usleep(60000);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
}
static void by_close(void) { wait_for_request(); close(dup(file)); }
static void by_fsync(void) { wait_for_request(); fsync(file); }
static void by_fdatasync(void) { wait_for_request(); fdatasync(file); }
static void by_pread(void) { wait_for_request(); pread(file, room, 1, 0); }
static void by_pwrite(void) { wait_for_request(); pwrite(file, room, 1, 0); }

static const struct { const char *name; void (*run)(void); } blocking[] = {
    {"read", by_read}, {"readv", by_readv}, {"write", by_write}, {"writev", by_writev}, {"open", by_open},
    {"openat", by_openat}, {"creat", by_creat}, {"fopen", by_fopen}, {"splice", by_splice}, {"tee", by_tee},
    {"recvmsg", by_recvmsg}, {"recvmmsg", by_recvmmsg}, {"fcntl", by_fcntl}, {"lockf", by_lockf},
    {"close", by_close}, {"fsync", by_fsync}, {"fdatasync", by_fdatasync}, {"pread", by_pread},
    {"pwrite", by_pwrite},
};

static int cleaned;
static void clean(void *unused) { (void)unused; cleaned = 1; }
static void *thread(void *run) {
    pthread_cleanup_push(clean, NULL);
    ((void (*)(void))run)();
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelling(void) {
    pipe(pipe_ends);
    pipe(full);
    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
    mkfifo("fifo", 0600);
    file = open("locked", O_RDWR | O_CREAT, 0600);
    int ready[2];
    pipe(ready);
    pid_t holder = fork();
    if (!holder) {
        struct flock lock = {.l_type = F_WRLCK};
        fcntl(file, F_SETLK, &lock);
        write(ready[1], "", 1);
        pause();
    }
    read(ready[0], room, 1);
    fcntl(full[1], F_SETFL, O_NONBLOCK);
    while (write(full[1], room, sizeof room) > 0);
    fcntl(full[1], F_SETFL, 0);
    for (unsigned i = 0; i < sizeof blocking / sizeof *blocking; i++) {
        cleaned = 0;
        pthread_t it;
        pthread_create(&it, NULL, thread, blocking[i].run);
        usleep(30000);
        pthread_cancel(it);
        struct timespec end;
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += 2;
        void *result = NULL;
        int late = pthread_timedjoin_np(it, &result, &end);
        printf("%s: %s, %s\n", blocking[i].name, late ? "goes on" : result == PTHREAD_CANCELED ? "cancelled" : "returned",
               cleaned ? "cleaned up" : "not cleaned up");
    }
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    struct stat stat;
    int found = fstat(file, &stat);
    ssize_t written = pwrite(file, "x", 1, 0);
    printf("afterwards: %d %zd %d\n", found, written, close(file));
}

/* ---- signal handlers ---- */

static volatile long handled;
static void handler(int signal) {
    (void)signal;
    int saved = errno;
    char target[64];
    int fd = open("no-such-file", O_RDONLY);
    if (fd >= 0) close(fd);
    fd = open("/nonexistent/directory/file", O_RDONLY);
    if (fd >= 0) close(fd);
    readlink("/proc/self/exe", target, sizeof target);
    readlink("loop", target, sizeof target);
    access("loop/x", F_OK);
    rename("no-such-file", "nor-this");
    struct stat stat_buffer;
    stat("nothing", &stat_buffer);
    handled++;
    errno = saved;
}

/* What may be called in handlers does not wait for what was interrupted, as memory allocation would. */
static void allocating_and_interrupted(void) {
    symlink("loop", "loop");
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    /* With a second thread malloc takes its locks. */
    pthread_t other;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    pthread_create(&other, NULL, (void *(*)(void *))pause, NULL);
    sigprocmask(SIG_UNBLOCK, &all, NULL);
    struct itimerval often = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &often, NULL);
    void *blocks[64] = {0};
    time_t end = time(NULL) + 2;
    for (long i = 0; time(NULL) < end; chdir("."))
        for (int j = 0; j < 300; j++, i++) {
            free(blocks[i & 63]);
            blocks[i & 63] = malloc(2000 + i % 50 * 300);
        }
    printf("handlers: %s\n", handled > 100 ? "many" : "few");
}

/* ---- the working directory ---- */

static void deep_and_gone(void) {
    char name[201];
    memset(name, 'd', 200);
    name[200] = 0;
    char top[PATH_MAX];
    getcwd(top, sizeof top);
    for (int i = 0; i < 30; i++) {
        mkdir(name, 0700);
        chdir(name);
    }
    char *path = getcwd(NULL, 0);
    printf("deep: %zd %s\n", path ? strlen(path) - strlen(top) : -1, path ? "" : strerror(errno));
    char small[100];
    path = getcwd(small, sizeof small);
    printf("too small: %s\n", path ? path : strerror(errno));
    path = get_current_dir_name();
    printf("by name: %zd\n", path ? strlen(path) - strlen(top) : -1);
    for (int i = 0; i < 30; i++) {
        chdir("..");
        rmdir(name);
    }
    mkdir("gone", 0700);
    chdir("gone");
    rmdir("../gone");
    path = getcwd(NULL, 0);
    printf("gone: %s\n", path ? path : strerror(errno));
    int fd = open("x", O_RDONLY);
    printf("in it: %d %s\n", fd, strerror(errno));
    chdir(top);
}

/* ---- descriptors ---- */

/* A file may stand at any offset, also where the library's own descriptors do. */
static void unlucky_offset(void) {
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    int fd = open("sparse", O_RDWR | O_CREAT, 0600);
    ftruncate(fd, 0xB1B10000);
    lseek(fd, 0xB1B00007, SEEK_SET);
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec byte = {room, 1};
    struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    sendmsg(pair[0], &message, 0);
    recvmsg(pair[1], &message, 0);
    int received;
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    ssize_t count = read(received, room, 3);
    printf("unlucky: %zd %s\n", count, count < 0 ? strerror(errno) : "");
}

static volatile int stop;
static void *opens(void *name) {
    long wrong = 0;
    while (!stop) {
        int fd = open(name, O_RDWR | O_CREAT, 0600);
        int end[2];
        pipe(end);
        char byte = 0;
        wrong += pwrite(fd, name, 1, 0) != 1;
        wrong += pread(fd, &byte, 1, 0) != 1 || byte != *(char *)name;
        wrong += write(end[1], name, 1) != 1 || read(end[0], &byte, 1) != 1 || byte != *(char *)name;
        wrong += close(fd) != 0 || close(end[0]) != 0 || close(end[1]) != 0;
    }
    return (void *)wrong;
}

/* Numbers that one thread closes are at once another one's. */
static void numbers_used_again(void) {
    pthread_t threads[3];
    char *names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, opens, names[i]);
    usleep(500000);
    stop = 1;
    long wrong = 0;
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (long)result;
    }
    printf("numbers: %ld wrong\n", wrong);
}

static const struct { const char *name; void (*run)(void); } cases[] = {
    {"loader_errors", loader_errors},
    {"cancelling", cancelling},
    {"allocating_and_interrupted", allocating_and_interrupted},
    {"deep_and_gone", deep_and_gone},
    {"unlucky_offset", unlucky_offset},
    {"numbers_used_again", numbers_used_again},
};

int main(int argc, char **argv) {
    (void)argc;
    if (chdir(argv[1])) return 1;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            cases[i].run();
            fflush(stdout);
            _exit(0);
        }
        int status = 0;
        for (int waited = 0; !waitpid(child, &status, WNOHANG); waited++) {
            if (waited == 1000) kill(child, SIGKILL);
            usleep(10000);
        }
        printf("%s ended with %x\n", cases[i].name, status);
    }
    return 0;
}
