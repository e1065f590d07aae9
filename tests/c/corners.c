/* Rarely used forms of calls: without a path, through libc's syscall(), through names of descriptors, in a directory that
 * is gone. */
#include "transcript.h"
#include <dirent.h>
#include <linux/close_range.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <utime.h>

/* Hidden from the compiler, which knows that it is not allowed. */
static const char *volatile NULL_PATH;

static void attributes(const char *what, int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        say("%s: %s", what, result(-1));
    else
        say("%s: mode %o size %lld owner %d links %d mtime %lld", what, st.st_mode, (long long)st.st_size, (int)st.st_uid,
            (int)st.st_nlink, st.st_mtime < 10000 ? (long long)st.st_mtime : -1);
}

static void without_a_path(void)
{
    struct stat st;
    struct statx stx;
    char text[64] = "";
    put("file", "hello");
    symlink("file", in("link"));
    mkdir(in("dir"), 0755);
    int fd = open(in("file"), O_RDWR), dir = open(in("dir"), O_RDONLY | O_DIRECTORY);
    int link = open(in("link"), O_PATH | O_NOFOLLOW), path = open(in("file"), O_PATH);
    TELL(readlinkat(fd, "", text, sizeof text));
    TELL(readlinkat(dir, "", text, sizeof text));
    TELL(readlinkat(link, "", text, sizeof text));
    say("target %s", text);
    TELL(readlinkat(path, "", text, sizeof text));
    TELL(fstatat(fd, "", &st, AT_EMPTY_PATH));
    say("size %lld mode %o", (long long)st.st_size, st.st_mode);
    TELL(fstatat(link, "", &st, AT_EMPTY_PATH));
    say("mode %o", st.st_mode & S_IFMT);
    TELL(fstatat(fd, "", &st, 0));
    TELL(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx));
    say("size %llu mode %o", (unsigned long long)stx.stx_size, stx.stx_mode);
    TELL(fchownat(fd, "", 12, 13, AT_EMPTY_PATH));
    TELL(fchownat(fd, "", 12, 13, 0));
    attributes("fchownat", fd);
    struct timespec times[2] = { { 100, 0 }, { 200, 0 } };
    TELL(syscall(SYS_utimensat, fd, NULL, times, 0));
    TELL(syscall(SYS_utimensat, fd, NULL, times, AT_SYMLINK_NOFOLLOW));
    TELL(syscall(SYS_utimensat, AT_FDCWD, NULL, times, 0));
    attributes("utimensat", fd);
    times[1].tv_sec = 300;
    TELL(utimensat(fd, "", times, AT_EMPTY_PATH));
    TELL(utimensat(fd, NULL_PATH, times, 0));
    attributes("utimensat", fd);
    TELL(linkat(fd, "", AT_FDCWD, in("again"), AT_EMPTY_PATH));
    TELL(linkat(fd, "", AT_FDCWD, in("again2"), 0));
    TELL(linkat(dir, "", AT_FDCWD, in("again3"), AT_EMPTY_PATH));
    TELL(linkat(fd, "", AT_FDCWD, in("again"), AT_EMPTY_PATH));
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    TELL(linkat(AT_FDCWD, name, AT_FDCWD, in("through proc"), AT_SYMLINK_FOLLOW));
    attributes("linkat", fd);
    TELL(truncate(name, 3));
    TELL(setxattr(name, "user.through", "x", 1, 0));
    TELL(fgetxattr(fd, "user.through", text, sizeof text));
    TELL(getxattr(name, "user.through", text, sizeof text));
    TELL(listxattr(name, NULL, 0) > 0);
    TELL(fgetxattr(path, "user.through", text, sizeof text));
    attributes("through proc", fd);
    TELL(faccessat(fd, "", R_OK, AT_EMPTY_PATH));
    TELL(faccessat(fd, "", X_OK, AT_EMPTY_PATH));
    TELL(access(name, X_OK));
    TELL(access(name, R_OK));
    TELL(openat(fd, "", O_RDONLY));
    TELL(unlinkat(fd, "", 0));
    TELL(unlinkat(dir, "", AT_REMOVEDIR));
    unlink(in("file"));
    unlink(in("again"));
    unlink(in("through proc"));
    TELL(linkat(fd, "", AT_FDCWD, in("back"), AT_EMPTY_PATH));
    attributes("unlinked", fd);
    close(fd);
    close(dir);
    close(link);
    close(path);
}

/* What the link of a descriptor in /proc says. */
static void says(const char *what, int fd)
{
    char name[64], target[PATH_MAX];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    say("%s: %zd %s", what, length < 0 ? length : 0, target);
}

static void names_of_descriptors(void)
{
    char command[3 * PATH_MAX];
    put("named", "text");
    mkdir(in("above"), 0755);
    mkdir(in("above/below"), 0755);
    symlink("named", in("by link"));
    int file = open(in("named"), O_RDONLY), dir = open(in("above/below"), O_RDONLY), link = open(in("by link"), O_RDONLY);
    int fresh = open(in("above/fresh"), O_WRONLY | O_CREAT, 0644), top = open(base, O_RDONLY | O_DIRECTORY);
    int path = open(in("named"), O_PATH), own = open(in("by link"), O_PATH | O_NOFOLLOW);
    says("file", file);
    says("by a link", link);
    says("directory", dir);
    says("fresh", fresh);
    says("top", top);
    says("O_PATH", path);
    says("link itself", own);
    says("dup", dup(file));
    snprintf(command, sizeof command, "readlink /proc/self/fd/0 < '%s' | sed 's|.*/||'", in("named"));
    fflush(stdout);
    TELL(system(command));
    rename(in("above"), in("moved"));
    says("directory above moved", dir);
    says("directory above moved", fresh);
    unlink(in("named"));
    rmdir(in("moved/below"));
    unlink(in("moved/fresh"));
    says("unlinked", file);
    says("removed", dir);
    says("unlinked in what moved", fresh);
    close(file);
}

static void through_syscall(void)
{
    char text[64] = "";
    struct stat st;
    struct statfs fs;
    TELL(close(syscall(SYS_creat, in("made"), 0640)));
    TELL(syscall(SYS_renameat, AT_FDCWD, in("made"), AT_FDCWD, in("b")));
    TELL(syscall(SYS_renameat2, AT_FDCWD, in("b"), AT_FDCWD, in("c"), 0));
    TELL(syscall(SYS_link, in("c"), in("d")));
    TELL(syscall(SYS_symlink, "c", in("s")));
    TELL(syscall(SYS_chmod, in("c"), 0604));
    TELL(syscall(SYS_chown, in("c"), 3, 4));
    TELL(syscall(SYS_lchown, in("s"), 5, 6));
    TELL(lstat(in("s"), &st));
    say("link's owner %d", (int)st.st_uid);
    TELL(syscall(SYS_mknod, in("pipe"), S_IFIFO | 0600, 0));
    TELL(syscall(SYS_mknodat, AT_FDCWD, in("file"), S_IFREG | 0600, 0));
    TELL(syscall(SYS_setxattr, in("c"), "user.a", "value", 5, 0));
    TELL(syscall(SYS_getxattr, in("c"), "user.a", text, sizeof text));
    TELL(syscall(SYS_lgetxattr, in("s"), "user.a", text, sizeof text));
    TELL(syscall(SYS_listxattr, in("d"), text, sizeof text) >= 7);
    TELL(syscall(SYS_removexattr, in("d"), "user.a"));
    TELL(syscall(SYS_statfs, in("c"), &fs));
    struct utimbuf when = { 1000, 2000 };
    TELL(syscall(SYS_utime, in("c"), &when));
    int fd = syscall(SYS_open, in("c"), O_RDWR);
    attributes("c", fd);
    TELL(syscall(SYS_fstatfs, fd, &fs));
    TELL(syscall(SYS_fsetxattr, fd, "user.b", "value", 5, 0));
    TELL(syscall(SYS_fgetxattr, fd, "user.b", text, sizeof text));
    TELL(syscall(SYS_flistxattr, fd, text, sizeof text) >= 7);
    TELL(syscall(SYS_fremovexattr, fd, "user.b"));
    struct iovec parts[2] = { { "abc", 3 }, { "def", 3 } };
    TELL(syscall(SYS_pwritev2, fd, parts, 2, 0L, 0L, 0));
    TELL(syscall(SYS_pwritev2, fd, parts, 1, -1L, -1L, 0));
    TELL(syscall(SYS_pwritev2, fd, parts, 2, 0L, 0L, RWF_APPEND));
    struct iovec into[1] = { { text, 20 } };
    TELL(syscall(SYS_preadv2, fd, into, 1, 0L, 0L, 0));
    say("text \"%.12s\"", text);
    TELL(syscall(SYS_fadvise64, fd, 0L, 0L, POSIX_FADV_SEQUENTIAL));
    TELL(syscall(SYS_fadvise64, fd, 0L, 0L, 77));
    TELL(syscall(SYS_readahead, fd, 0L, 4096L));
    TELL(syscall(SYS_sync_file_range, fd, 0L, 0L, 0));
    TELL(syscall(SYS_syncfs, fd));
    char *map = (char *)syscall(SYS_mmap, NULL, 4096L, PROT_READ, MAP_PRIVATE, fd, 0L);
    say("mapped \"%.12s\"", map);
    munmap(map, 4096);
    TELL(syscall(SYS_faccessat2, AT_FDCWD, in("c"), R_OK, AT_EACCESS));
    TELL(syscall(SYS_faccessat2, AT_FDCWD, in("nothing"), R_OK, 0));
    TELL(syscall(SYS_faccessat2, fd, "", X_OK, AT_EMPTY_PATH));
    int other = dup(fd);
    TELL(syscall(SYS_close_range, other, other, 0));
    TELL(fcntl(other, F_GETFD));
    other = dup(fd);
    TELL(syscall(SYS_close_range, other, other, CLOSE_RANGE_CLOEXEC));
    TELL(fcntl(other, F_GETFD));
    TELL(syscall(SYS_splice, fd, NULL, other, NULL, 5L, 0));
    close(other);
    close(fd);
    TELL(syscall(SYS_unlink, in("d")));
    syscall(SYS_exit_group, 0);
}

/* Closes a descriptor in a way that no library sees. */
static void close_unseen(int fd)
{
#ifdef __x86_64__
    long number = SYS_close;
    __asm__ volatile("syscall" : "+a"(number) : "D"((long)fd) : "rcx", "r11", "memory");
#else
    close(fd);
#endif
}

/* Two descriptors in two messages of one call. */
static void messages(void)
{
    int pair[2], received[2] = { -1, -1 };
    put("sent", "0123456789");
    int fd = open(in("sent"), O_RDONLY);
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    for (int i = 0; i < 2; i++) {
        char control[CMSG_SPACE(sizeof(int))] = "", byte = 'x';
        struct iovec part = { &byte, 1 };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
        TELL(sendmsg(pair[0], &message, 0));
    }
    /* Their numbers meant something else before. */
    int was[2] = { open("/dev/null", O_RDONLY), open("/dev/null", O_RDONLY) };
    char one[1];
    read(was[0], one, 1);
    read(was[1], one, 1);
    close_unseen(was[0]);
    close_unseen(was[1]);
    char controls[2][CMSG_SPACE(sizeof(int))], bytes[2];
    struct iovec parts[2] = { { &bytes[0], 1 }, { &bytes[1], 1 } };
    struct mmsghdr all[2] = { 0 };
    for (int i = 0; i < 2; i++)
        all[i].msg_hdr = (struct msghdr) { .msg_iov = &parts[i], .msg_iovlen = 1, .msg_control = controls[i], .msg_controllen = sizeof controls[i] };
    TELL(recvmmsg(pair[1], all, 2, 0, NULL));
    for (int i = 0; i < 2; i++) {
        char text[16] = "";
        memcpy(&received[i], CMSG_DATA(CMSG_FIRSTHDR(&all[i].msg_hdr)), sizeof(int));
        TELL(read(received[i], text, 4));
        say("read \"%s\"", text);
        close(received[i]);
    }
    close(pair[0]);
    close(pair[1]);
    close(fd);
}

static void in_a_directory_that_is_gone(void)
{
    struct stat st;
    mkdir(in("gone"), 0755);
    int dir = open(in("gone"), O_RDONLY | O_DIRECTORY);
    TELL(chdir(in("gone")));
    TELL(rmdir(in("gone")));
    TELL(access(".", F_OK));
    TELL(stat(".", &st));
    say("links %d, a directory %d", (int)st.st_nlink, S_ISDIR(st.st_mode));
    TELL(fstat(dir, &st));
    say("links %d, a directory %d", (int)st.st_nlink, S_ISDIR(st.st_mode));
    DIR *list = opendir(".");
    POINTER(list);
    errno = 0;
    say("entry %s", list != NULL && readdir(list) != NULL ? "there" : result(-errno));
    if (list != NULL)
        closedir(list);
    int again = openat(dir, ".", O_RDONLY | O_DIRECTORY);
    WORKS(again);
    close(again);
    char text[PATH_MAX];
    POINTER(getcwd(text, sizeof text));
    TELL(open("file", O_WRONLY | O_CREAT, 0644));
    TELL(open("file", O_RDONLY));
    TELL(mkdir("dir", 0755));
    TELL(openat(dir, "file", O_WRONLY | O_CREAT, 0644));
    TELL(stat("x/y", &st));
    TELL(chdir("."));
    TELL(system("ls; echo $?"));
    TELL(chdir(base));
    close(dir);
}

static void offsets(void)
{
    put("offsets", "0123456789");
    int fd = open(in("offsets"), O_RDWR);
    TELL(lseek(fd, INT64_MAX, SEEK_SET));
    TELL(lseek(fd, 1, SEEK_CUR));
    TELL(lseek(fd, INT64_MAX, SEEK_CUR));
    TELL(lseek(fd, INT64_MIN, SEEK_CUR));
    TELL(lseek(fd, INT64_MAX, SEEK_END));
    TELL(lseek(fd, -11, SEEK_END));
    TELL(lseek(fd, -1, SEEK_SET));
    TELL(lseek(fd, 0, SEEK_CUR));
    char byte = 'x';
    TELL(read(fd, &byte, 1));
    TELL(write(fd, &byte, 1));
    TELL(pread(fd, &byte, 1, INT64_MAX));
    TELL(pwrite(fd, &byte, 1, INT64_MAX));
    TELL(pread(fd, &byte, 1, INT64_MAX - 1));
    close(fd);
}

static void through_what_is_not_there(void)
{
    char path[2 * PATH_MAX];
    struct stat st;
    put("there", "x");
    snprintf(path, sizeof path, "/nonexistent-for-sure/..%s/there", base);
    TELL(stat(path, &st));
    snprintf(path, sizeof path, "/etc/passwd/..%s/there", base);
    TELL(stat(path, &st));
    snprintf(path, sizeof path, "/usr/lib/../..%s/there", base);
    TELL(stat(path, &st));
}

int main(int argc, char **argv)
{
    begin(argc, argv, "corners");
    without_a_path();
    messages();
    names_of_descriptors();
    in_a_directory_that_is_gone();
    offsets();
    through_what_is_not_there();
    through_syscall();
    return 0;
}
