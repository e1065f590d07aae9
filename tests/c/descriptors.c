/* Descriptors: numbers and open file descriptions through dup, fork and exec; flags; locks between processes. */
#include "transcript.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <signal.h>

static void text_at(const char *what, int fd)
{
    char text[64];
    ssize_t count = read(fd, text, sizeof text - 1);
    text[count < 0 ? 0 : count] = 0;
    say("%s reads %s \"%s\" then at %lld", what, result(count), text, (long long)lseek(fd, 0, SEEK_CUR));
}

static void duplicates(void)
{
    put("digits", "0123456789");
    int fd = open(in("digits"), O_RDWR), other = open(in("digits"), O_RDWR);
    int second = dup(fd);
    char byte[3] = "";
    read(fd, byte, 2);
    say("dup shares the offset: %lld, another open does not: %lld", (long long)lseek(second, 0, SEEK_CUR),
        (long long)lseek(other, 0, SEEK_CUR));
    say("lowest number free %d", dup(0) == second + 1 && close(second + 1) == 0);
    TELL(dup2(fd, 40));
    TELL(dup2(40, 40));
    TELL(dup3(40, 40, 0));
    TELL(dup3(fd, 41, O_CLOEXEC));
    say("close on exec %d %d", fcntl(40, F_GETFD), fcntl(41, F_GETFD));
    TELL(fcntl(fd, F_DUPFD, 45));
    TELL(fcntl(fd, F_DUPFD_CLOEXEC, 45));
    say("close on exec %d %d", fcntl(45, F_GETFD), fcntl(46, F_GETFD));
    TELL(fcntl(45, F_SETFD, FD_CLOEXEC));
    say("close on exec %d, of the original %d", fcntl(45, F_GETFD), fcntl(fd, F_GETFD));
    TELL(fcntl(45, F_SETFL, O_APPEND));
    say("status flags are shared: %o", fcntl(fd, F_GETFL) & O_APPEND);
    say("access mode stays %o", fcntl(fd, F_GETFL) & O_ACCMODE);
    TELL(fcntl(fd, F_SETFL, 0));
    TELL(ioctl(45, FIOCLEX));
    TELL(ioctl(45, FIONCLEX));
    say("close on exec %d", fcntl(45, F_GETFD));
    int waiting = -1;
    TELL(ioctl(fd, FIONREAD, &waiting));
    say("waiting %d", waiting);
    TELL(isatty(fd));
    TELL(close(fd));
    TELL(close(fd));
    text_at("after closing the first, the dup", second);
    TELL(dup2(99, 40));
    TELL(dup(99));
    TELL(dup2(second, -1));
    TELL(fcntl(99, F_GETFD));
    struct pollfd polled = { second, POLLIN | POLLOUT, 0 };
    TELL(poll(&polled, 1, 0));
    say("ready %x", polled.revents);
    close(second);
    close(other);
    for (fd = 40; fd < 48; fd++)
        close(fd);
}

static void forking(void)
{
    int fd = open(in("digits"), O_RDWR);
    char text[8] = "";
    pid_t child = fork();
    if (child == 0) {
        read(fd, text, 4);
        _exit(text[0] == '0' ? 4 : 1);
    }
    ended("child reads four", child);
    text_at("parent after it", fd);
    lseek(fd, 0, SEEK_SET);
    /* Who opened the file may go first. */
    int ends[2];
    pipe(ends);
    child = fork();
    if (child == 0) {
        int own = open(in("orphan"), O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (fork() == 0) {
            char go;
            close(ends[1]);
            read(ends[0], &go, 1);
            write(own, "written after the opener has gone", 33);
            _exit(0);
        }
        _exit(0);
    }
    ended("opener", child);
    usleep(20000);
    close(ends[1]);
    for (int i = 0; i < 200; i++) {
        struct stat st;
        if (stat(in("orphan"), &st) == 0 && st.st_size == 33)
            break;
        usleep(10000);
    }
    show("orphan");
    /* Each child appends to the same description. */
    int out = open(in("shared"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 8; i++)
        if (fork() == 0) {
            for (int j = 0; j < 50; j++)
                write(out, "0123456789abcde\n", 16);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    struct stat st;
    fstat(out, &st);
    say("eight children wrote %lld, offset %lld", (long long)st.st_size, (long long)lseek(out, 0, SEEK_CUR));
    close(out);
    close(fd);
    close(ends[0]);
}

static void over_exec(void)
{
    int kept = open(in("digits"), O_RDONLY), closed = open(in("digits"), O_RDONLY | O_CLOEXEC);
    dup2(kept, 60);
    dup2(closed, 61);
    fcntl(61, F_SETFD, FD_CLOEXEC);
    lseek(60, 3, SEEK_SET);
    pid_t child = fork();
    if (child == 0) {
        int out = open(in("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(out, 1);
        dup2(60, 0);
        execl("/bin/sh", "sh", "-c", "head -c 3; echo; if ( : <&61 ) 2>/dev/null; then echo open; else echo closed; fi; cat",
              (char *)NULL);
        _exit(9);
    }
    ended("shell", child);
    show("out");
    say("offset moved to %lld", (long long)lseek(60, 0, SEEK_CUR));
    close(60);
    close(61);
    close(kept);
    close(closed);
}

static void over_sockets(void)
{
    int pair[2], fd = open(in("digits"), O_RDONLY);
    lseek(fd, 5, SEEK_SET);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    char byte = 'x', control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec iov = { &byte, 1 };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    pid_t child = fork();
    if (child == 0) {
        close(fd);
        int got = -1;
        char text[8] = "";
        if (recvmsg(pair[1], &message, 0) != 1)
            _exit(1);
        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
        _exit(read(got, text, 2) == 2 && strcmp(text, "56") == 0 ? 0 : 2);
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    TELL(sendmsg(pair[0], &message, 0));
    ended("receiver", child);
    say("offset moved to %lld", (long long)lseek(fd, 0, SEEK_CUR));
    close(fd);
    close(pair[0]);
    close(pair[1]);
}

static void appending(void)
{
    int one = open(in("append"), O_WRONLY | O_CREAT | O_APPEND, 0644), two = open(in("append"), O_RDWR | O_APPEND);
    TELL(write(one, "one ", 4));
    TELL(write(two, "two ", 4));
    TELL(lseek(one, 0, SEEK_SET));
    TELL(write(one, "three ", 6));
    TELL(lseek(one, 0, SEEK_CUR));
    TELL(pwrite(one, "four", 4, 0));
    text_at("at the end", two);
    show("append");
    for (int i = 0; i < 4; i++)
        if (fork() == 0) {
            int own = open(in("append"), O_WRONLY | O_APPEND);
            for (int j = 0; j < 100; j++)
                write(own, "0123456789", 10);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    TELL(lseek(one, 0, SEEK_END));
    close(one);
    close(two);
}

static void modes(void)
{
    char byte;
    int read_only = open(in("digits"), O_RDONLY), write_only = open(in("digits"), O_WRONLY);
    TELL(write(read_only, "x", 1));
    TELL(ftruncate(read_only, 0));
    TELL(read(write_only, &byte, 1));
    TELL(pread(write_only, &byte, 1, 0));
    int path = open(in("digits"), O_PATH);
    TELL(read(path, &byte, 1));
    TELL(write(path, &byte, 1));
    struct stat st;
    TELL(fstat(path, &st));
    say("through the path descriptor: %lld bytes", (long long)st.st_size);
    TELL(fchmod(path, 0600));
    TELL(read(-1, &byte, 1));
    TELL(close(-1));
    TELL(lseek(read_only, -1, SEEK_SET));
    TELL(lseek(read_only, 0, 77));
    TELL(lseek(read_only, 1000, SEEK_END));
    TELL(read(read_only, &byte, 1));
    TELL(lseek(read_only, 1LL << 40, SEEK_SET));
    TELL(lseek(read_only, -(1LL << 41), SEEK_CUR));
    close(read_only);
    close(write_only);
    close(path);
}

/* What was opened with O_PATH names something, and refuses everything else. */
static void names_only(const char *what, int path, int file)
{
    struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
    off_t from = 0, to = 0;
    int number = 0;
    say("%s", what);
    TELL(lseek(path, 0, SEEK_SET));
    TELL(fsync(path));
    TELL(fallocate(path, 0, 0, 10));
    TELL(fallocate(path, 0, 0, -1));
    TELL(ftruncate(path, 0));
    TELL(ftruncate(path, -1));
    TELL(posix_fadvise(path, 0, 0, POSIX_FADV_NORMAL));
    TELL(copy_file_range(path, &from, file, &to, 1, 0));
    TELL(copy_file_range(file, &from, path, &to, 1, 0));
    TELL(flock(path, LOCK_SH | LOCK_NB));
    TELL(fcntl(path, F_SETLK, &lock));
    TELL(fcntl(path, F_GETLK, &lock));
    TELL(fcntl(path, F_SETFL, O_APPEND));
    TELL(fcntl(path, F_SETFD, FD_CLOEXEC));
    TELL(ioctl(path, FIONREAD, &number));
    say("flags %o %d", fcntl(path, F_GETFL) & (O_PATH | O_APPEND | O_DIRECTORY | O_ACCMODE), fcntl(path, F_GETFD));
    close(path);
}

/* Asks in a child whether a lock can be had: 0 yes, 1 no. */
static int flock_free(int how)
{
    pid_t child = fork();
    if (child == 0) {
        int fd = open(in("lock"), O_RDWR);
        _exit(flock(fd, how | LOCK_NB) == 0 ? 0 : errno == EWOULDBLOCK ? 1 : 2);
    }
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static int range_free_in(const char *name, short type, off_t start, off_t length)
{
    pid_t child = fork();
    if (child == 0) {
        int fd = open(in(name), O_RDWR);
        struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
        _exit(fcntl(fd, F_SETLK, &lock) == 0 ? 0 : errno == EAGAIN || errno == EACCES ? 1 : 2);
    }
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static int range_free(short type, off_t start, off_t length)
{
    return range_free_in("lock", type, start, length);
}

static int set_range(int fd, int command, short type, off_t start, off_t length)
{
    struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
    return fcntl(fd, command, &lock);
}

static void paths_only(void)
{
    int file = open(in("digits"), O_RDWR);
    names_only("a file", open(in("digits"), O_PATH), file);
    names_only("a directory", open(in("."), O_PATH | O_DIRECTORY), file);
    say("locked %d", set_range(file, F_SETLK, F_WRLCK, 0, 5));
    close(open(in("digits"), O_PATH));
    say("locks outlive its descriptors %d", range_free_in("digits", F_WRLCK, 0, 5));
    close(file);
}

static void whole_locks(void)
{
    put("lock", "0123456789");
    int fd = open(in("lock"), O_RDWR), copy = dup(fd), other = open(in("lock"), O_RDWR);
    TELL(flock(fd, LOCK_SH));
    say("shared beside shared %d, exclusive %d", flock_free(LOCK_SH), flock_free(LOCK_EX));
    TELL(flock(other, LOCK_SH | LOCK_NB));
    TELL(flock(fd, LOCK_EX | LOCK_NB));
    TELL(flock(other, LOCK_UN));
    TELL(flock(fd, LOCK_EX | LOCK_NB));
    TELL(flock(copy, LOCK_EX | LOCK_NB));
    TELL(flock(other, LOCK_EX | LOCK_NB));
    close(fd);
    say("held by the dup %d", flock_free(LOCK_EX));
    close(copy);
    say("free after the last close %d", flock_free(LOCK_EX));
    TELL(flock(other, LOCK_EX));
    pid_t child = fork();
    if (child == 0) {
        flock(other, LOCK_UN);
        _exit(0);
    }
    ended("child that unlocks", child);
    say("unlocked by the child %d", flock_free(LOCK_EX));
    /* Waiting for a lock. */
    TELL(flock(other, LOCK_EX));
    int ends[2];
    pipe(ends);
    child = fork();
    if (child == 0) {
        close(other);
        int own = open(in("lock"), O_RDWR);
        write(ends[1], "r", 1);
        _exit(flock(own, LOCK_EX) == 0 ? 0 : 1);
    }
    char go;
    read(ends[0], &go, 1);
    usleep(50000);
    flock(other, LOCK_UN);
    ended("waiter", child);
    /* Death releases. */
    child = fork();
    if (child == 0) {
        int own = open(in("lock"), O_RDWR);
        flock(own, LOCK_EX);
        write(ends[1], "r", 1);
        pause();
    }
    read(ends[0], &go, 1);
    say("held by another %d", flock(other, LOCK_EX | LOCK_NB) != 0);
    kill(child, SIGKILL);
    ended("holder", child);
    TELL(flock(other, LOCK_EX));
    close(other);
    close(ends[0]);
    close(ends[1]);
}

static void range_locks(void)
{
    int fd = open(in("lock"), O_RDWR), other = open(in("lock"), O_RDWR);
    TELL(set_range(fd, F_SETLK, F_WRLCK, 2, 4));
    say("write lock: read inside %d, write inside %d, before %d, behind %d", range_free(F_RDLCK, 3, 1),
        range_free(F_WRLCK, 5, 1), range_free(F_WRLCK, 0, 2), range_free(F_WRLCK, 6, 0));
    TELL(set_range(other, F_SETLK, F_WRLCK, 0, 10));
    say("own locks do not conflict, they merge: %d", range_free(F_WRLCK, 8, 1));
    TELL(set_range(fd, F_SETLK, F_UNLCK, 3, 2));
    say("a hole in the lock: %d, around it %d %d", range_free(F_WRLCK, 3, 2), range_free(F_WRLCK, 2, 1),
        range_free(F_WRLCK, 5, 1));
    TELL(set_range(fd, F_SETLK, F_RDLCK, 0, 0));
    say("read lock to the end: read %d, write %d", range_free(F_RDLCK, 100, 1), range_free(F_WRLCK, 100, 1));
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 10 };
        fcntl(fd, F_GETLK, &lock);
        _exit(lock.l_type == F_RDLCK && lock.l_start == 0 && lock.l_len == 0 && lock.l_pid == getppid() ? 0 : 1);
    }
    ended("child asks who holds", child);
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 10 };
    TELL(fcntl(fd, F_GETLK, &lock));
    say("for the holder it is free %d", lock.l_type == F_UNLCK);
    close(other);
    say("any close releases: %d", range_free(F_WRLCK, 0, 0));
    TELL(lockf(fd, F_LOCK, 5));
    say("lockf: %d %d", range_free(F_WRLCK, 0, 1), range_free(F_WRLCK, 5, 1));
    TELL(lockf(fd, F_ULOCK, 0));
    int read_only = open(in("lock"), O_RDONLY);
    TELL(set_range(read_only, F_SETLK, F_WRLCK, 0, 1));
    TELL(set_range(fd, F_SETLK, 77, 0, 1));
    TELL(set_range(fd, F_SETLK, F_WRLCK, -5, 2));
    /* Waiting, and a circle. */
    int ends[2];
    pipe(ends);
    set_range(fd, F_SETLK, F_WRLCK, 0, 1);
    child = fork();
    if (child == 0) {
        int own = open(in("lock"), O_RDWR);
        set_range(own, F_SETLK, F_WRLCK, 1, 1);
        write(ends[1], "r", 1);
        _exit(set_range(own, F_SETLKW, F_WRLCK, 0, 1) == 0 ? 0 : 1);
    }
    char go;
    read(ends[0], &go, 1);
    usleep(100000);
    TELL(set_range(fd, F_SETLKW, F_WRLCK, 1, 1));
    set_range(fd, F_SETLK, F_UNLCK, 0, 0);
    ended("waiter", child);
    /* Locks of the open file description. */
    struct flock description = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 5 };
    TELL(fcntl(fd, F_OFD_SETLK, &description));
    int third = open(in("lock"), O_RDWR);
    TELL(fcntl(third, F_OFD_SETLK, &description));
    close(dup(fd));
    close(open(in("lock"), O_RDONLY));
    say("survives other closes: %d", range_free(F_WRLCK, 0, 1));
    close(fd);
    TELL(fcntl(third, F_OFD_SETLK, &description));
    close(third);
    close(read_only);
    close(ends[0]);
    close(ends[1]);
}

static void closing_all(void)
{
    pid_t child = fork();
    if (child == 0) {
        int fd = open(in("digits"), O_RDONLY);
        dup2(fd, 70);
        close_range(3, 40, 0);
        transcript_fd = 50;
        say("below is closed %d, above is open %d", fcntl(fd, F_GETFD) < 0, fcntl(70, F_GETFD));
        close_range(51, ~0U, 0);
        say("all is closed %d", fcntl(70, F_GETFD) < 0);
        fd = open(in("digits"), O_RDWR);
        text_at("afterwards", fd);
        say("number %d", fd);
        dup2(50, 2);
        for (int i = 3; i < 1024; i++)
            close(i);
        transcript_fd = 2;
        put("made", "after closing everything");
        show("made");
        _exit(0);
    }
    ended("closes everything", child);
    int many[3000], opened = 0;
    while (opened < 900 && (many[opened] = open(in("digits"), O_RDONLY)) >= 0)
        opened++;
    say("opened %d at once", opened);
    int good = 0;
    for (int i = 0; i < opened; i++) {
        char byte;
        good += pread(many[i], &byte, 1, i % 10) == 1 && byte == '0' + i % 10;
        close(many[i]);
    }
    say("all of them read right %d", good == opened);
}

int main(int argc, char **argv)
{
    begin(argc, argv, "descriptors");
    /* The first part counts numbers, so it starts from the same. */
    duplicates();
    forking();
    over_exec();
    over_sockets();
    appending();
    modes();
    paths_only();
    whole_locks();
    range_locks();
    closing_all();
    return 0;
}
