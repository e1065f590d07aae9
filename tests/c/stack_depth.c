/* How many bytes of stack calls take in a signal handler on a stack of its own, one line for each. Built with `-z now`, so
 * that the loader's work does not count. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { SIZE = 1 << 16 };
static unsigned char stack[SIZE];
static char buffer[4096];
static int file, end[2];
static struct stat stat_buffer;
static struct statx statx_buffer;
static struct statfs statfs_buffer;

static void nothing(void) {}
static void do_read(void) { read(file, buffer, 1); }
static void do_pread(void) { pread(file, buffer, 1, 0); }
static void do_readv(void) { readv(file, &(struct iovec){buffer, 1}, 1); }
static void do_write(void) { write(end[1], buffer, 1); }
static void do_lseek(void) { lseek(file, 0, SEEK_SET); }
static void do_fsync(void) { fsync(file); }
static void do_fcntl(void) { fcntl(file, F_GETFL); }
static void do_fcntl_lock(void) { fcntl(file, F_SETLK, &(struct flock){.l_type = F_RDLCK}); }
static void do_ftruncate(void) { ftruncate(file, 5); }
static void do_dup(void) { close(dup(file)); }
static void do_dup2(void) { dup2(file, 200); }
static void do_open(void) { close(open("file", O_RDONLY)); }
static void do_open_absolute(void) { close(open("/dev/null", O_RDONLY)); }
static void do_open_missing(void) { open("missing", O_RDONLY); }
static void do_open_absolute_missing(void) { open("/nonexistent/directory/file", O_RDONLY); }
static void do_open_link(void) { open("loop/file", O_RDONLY); }
static void do_open_descriptor(void) { close(open("/dev/fd/0", O_RDONLY)); }
static void do_chdir(void) { chdir("."); open("missing", O_RDONLY); }
static void do_stat(void) { stat("file", &stat_buffer); }
static void do_stat_missing(void) { stat("missing", &stat_buffer); }
static void do_lstat(void) { lstat("loop", &stat_buffer); }
static void do_fstat(void) { fstat(file, &stat_buffer); }
static void do_fstatat(void) { fstatat(AT_FDCWD, "file", &stat_buffer, 0); }
static void do_statx(void) { statx(AT_FDCWD, "file", 0, STATX_ALL, &statx_buffer); }
static void do_statfs(void) { statfs(".", &statfs_buffer); }
static void do_access(void) { access("file", R_OK); }
static void do_access_missing(void) { access("missing", R_OK); }
static void do_readlink(void) { readlink("loop", buffer, sizeof buffer); }
static void do_readlink_program(void) { readlink("/proc/self/exe", buffer, sizeof buffer); }
static void do_chmod(void) { chmod("file", 0600); }
static void do_chown(void) { chown("file", -1, -1); }
static void do_utimensat(void) { utimensat(AT_FDCWD, "file", NULL, 0); }
static void do_mkdir(void) { mkdir("directory", 0700); rmdir("directory"); }
static void do_rename(void) { rename("file", "other"); rename("other", "file"); }
static void do_rename_missing(void) { rename("missing", "other"); }
static void do_link(void) { link("file", "other"); unlink("other"); }
static void do_symlink(void) { symlink("x", "other"); unlink("other"); }
static void do_unlink_missing(void) { unlink("missing"); }

#define CALL(name) {#name, do_##name}
static const struct { const char *name; void (*run)(void); } calls[] = {
    CALL(read), CALL(pread), CALL(readv), CALL(write), CALL(lseek), CALL(fsync), CALL(fcntl), CALL(fcntl_lock),
    CALL(ftruncate), CALL(dup), CALL(dup2), CALL(open), CALL(open_absolute), CALL(open_missing),
    CALL(open_absolute_missing), CALL(open_link), CALL(open_descriptor), CALL(chdir), CALL(stat), CALL(stat_missing),
    CALL(lstat), CALL(fstat), CALL(fstatat), CALL(statx), CALL(statfs), CALL(access), CALL(access_missing),
    CALL(readlink), CALL(readlink_program), CALL(chmod), CALL(chown), CALL(utimensat), CALL(mkdir), CALL(rename),
    CALL(rename_missing), CALL(link), CALL(symlink), CALL(unlink_missing),
};

static void (*volatile run)(void);
static void handler(int signal) { (void)signal; run(); }

static int depth(void (*what)(void)) {
    run = what;
    memset(stack, 0xA5, SIZE);
    raise(SIGUSR1);
    int untouched = 0;
    while (stack[untouched] == 0xA5) untouched++;
    return SIZE - untouched;
}

int main(int argc, char **argv) {
    (void)argc;
    if (chdir(argv[1])) return 1;
    stack_t own = {.ss_sp = stack, .ss_size = SIZE};
    sigaltstack(&own, NULL);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handler, .sa_flags = SA_ONSTACK}, NULL);
    file = open("file", O_RDWR | O_CREAT, 0600);
    symlink("loop", "loop");
    pipe(end);
    int base = depth(nothing);
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        printf("%s %d\n", calls[i].name, depth(calls[i].run) - base);
    return 0;
}
