/* Files and names: opening, reading and writing at offsets, holes, sizes, attributes, links, extended attributes,
 * mappings, copies within the kernel. */
#include "transcript.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <utime.h>

#define KIB 1024L
#define MIB (1024L * KIB)

static long long size_of(const char *name)
{
    struct stat st;
    return stat(in(name), &st) == 0 ? (long long)st.st_size : -1;
}

static int open_close(const char *name, int flags, mode_t mode)
{
    int fd = open(in(name), flags, mode);
    if (fd >= 0)
        close(fd);
    return fd >= 0 ? 0 : -1;
}

static void opening(void)
{
    put("plain", "text");
    mkdir(in("dir"), 0755);
    symlink("plain", in("link"));
    symlink("absent", in("dangling"));
    TELL(open_close("plain", O_RDONLY, 0));
    TELL(open_close("absent2", O_RDONLY, 0));
    TELL(open_close("plain", O_RDWR | O_CREAT | O_EXCL, 0644));
    TELL(open_close("fresh", O_RDWR | O_CREAT | O_EXCL, 0666));
    TELL(open_close("link", O_RDWR | O_CREAT | O_EXCL, 0644));
    TELL(open_close("dangling", O_RDWR | O_CREAT | O_EXCL, 0644));
    TELL(open_close("dangling", O_RDWR, 0));
    TELL(open_close("dangling", O_RDWR | O_CREAT, 0644));
    TELL(access(in("absent"), F_OK));
    TELL(open_close("link", O_RDONLY | O_NOFOLLOW, 0));
    TELL(open_close("link", O_PATH | O_NOFOLLOW, 0));
    TELL(open_close("dir", O_RDONLY, 0));
    TELL(open_close("dir", O_RDWR, 0));
    TELL(open_close("dir", O_RDONLY | O_CREAT, 0644));
    TELL(open_close("plain", O_RDONLY | O_DIRECTORY, 0));
    TELL(open_close("plain/", O_RDONLY, 0));
    TELL(open_close("absent3/", O_RDWR | O_CREAT, 0644));
    TELL(open_close("plain/below", O_RDONLY, 0));
    TELL(open_close("absent2/below", O_RDWR | O_CREAT, 0644));
    TELL(open_close("dir/../plain", O_RDONLY, 0));
    TELL(open_close("dir//..//./plain", O_RDONLY, 0));
    TELL(open_close("absent2/../plain", O_RDONLY, 0));
    TELL(open_close("plain/../plain", O_RDONLY, 0));
    TELL(open_close("", O_RDONLY, 0));
    TELL(open("", O_RDONLY));
    TELL(open(NULL, O_RDONLY));
    TELL(open_close("plain", O_WRONLY | O_TRUNC, 0));
    say("truncated to %lld", size_of("plain"));
    TELL(creat(in("plain"), 0600) >= 0 ? 0 : -1);
    struct stat st;
    stat(in("plain"), &st);
    say("creat leaves the mode %o", st.st_mode);
    umask(077);
    TELL(open_close("masked", O_RDWR | O_CREAT, 0666));
    umask(022);
    stat(in("masked"), &st);
    say("mode under umask %o", st.st_mode);
    int fd = open(in("no-write"), O_RDWR | O_CREAT, 0444);
    TELL(write(fd, "works all the same", 18));
    close(fd);
    int dir = open(base, O_RDONLY | O_DIRECTORY);
    fd = openat(dir, "dir/at", O_RDWR | O_CREAT, 0644);
    WORKS(fd);
    close(fd);
    fd = open(in("plain"), O_RDONLY);
    WORKS(openat(fd, "x", O_RDONLY));
    TELL(faccessat(dir, "dir/at", W_OK, 0));
    TELL(access(in("dir"), X_OK));
    TELL(access(in("masked"), 77));
    close(fd);
    close(dir);
}

static void reading_and_writing(void)
{
    int fd = open(in("data"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    char buffer[64] = "";
    TELL(write(fd, "0123456789", 10));
    TELL(pwrite(fd, "ab", 2, 3));
    TELL(pread(fd, buffer, 10, 2));
    say("pread \"%s\" offset %lld", buffer, (long long)lseek(fd, 0, SEEK_CUR));
    TELL(pread(fd, buffer, 10, 100));
    TELL(pread(fd, buffer, 10, -1));
    TELL(pwrite(fd, buffer, 10, -1));
    TELL(read(fd, buffer, 0));
    TELL(write(fd, buffer, 0));
    lseek(fd, 0, SEEK_SET);
    char one[4] = "", two[8] = "";
    struct iovec parts[3] = { { one, 3 }, { NULL, 0 }, { two, 5 } };
    TELL(readv(fd, parts, 3));
    say("readv \"%s\" \"%s\"", one, two);
    struct iovec out[2] = { { "XY", 2 }, { "Z", 1 } };
    TELL(writev(fd, out, 2));
    TELL(pwritev(fd, out, 2, 20));
    memset(buffer, '.', sizeof buffer);
    TELL(preadv(fd, (struct iovec[]) { { buffer, 30 } }, 1, 0));
    for (int i = 0; i < 30; i++)
        if (buffer[i] == 0)
            buffer[i] = '0';
    say("all \"%.30s\"", buffer);
    TELL(preadv2(fd, parts, 1, 1, 0));
    TELL(preadv2(fd, parts, 1, -1, 0));
    TELL(pwritev2(fd, out, 2, 0, 0));
    TELL(pwritev2(fd, out, 2, 0, RWF_APPEND));
    TELL(readv(fd, parts, -1));
    TELL(readv(fd, parts, 0));
    say("size %lld", size_of("data"));
    /* A pattern over many blocks, in odd pieces. */
    unsigned char *big = malloc(3 * MIB + 123), *back = malloc(3 * MIB + 123);
    for (long i = 0; i < 3 * MIB + 123; i++)
        big[i] = (unsigned char)((i * 2654435761u) >> 13);
    int other = open(in("big"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    long at = 0, total = 3 * MIB + 123, step = 1;
    while (at < total) {
        long count = step < total - at ? step : total - at;
        if (write(other, big + at, count) != count)
            break;
        at += count;
        step = step * 3 + 7;
    }
    say("wrote %ld", at);
    lseek(other, 0, SEEK_SET);
    long have = 0;
    ssize_t count;
    while ((count = read(other, back + have, 65521)) > 0)
        have += count;
    say("read %ld, the same %d", have, memcmp(big, back, total) == 0);
    int wrong = 0;
    for (int i = 0; i < 200; i++) {
        long offset = (i * 7919L * 613) % (total - 5000);
        if (pread(other, back, 5000, offset) != 5000 || memcmp(back, big + offset, 5000) != 0)
            wrong++;
    }
    say("random pieces wrong %d", wrong);
    close(other);
    close(fd);
    free(big);
    free(back);
}

static void holes(void)
{
    int fd = open(in("holes"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    char *room = calloc(1, 4 * MIB);
    TELL(pwrite(fd, "begin", 5, 0));
    TELL(pwrite(fd, "end", 3, 2 * MIB));
    say("size %lld", size_of("holes"));
    TELL(pread(fd, room, 4 * MIB, 0));
    int zeros = 1;
    for (long i = 5; i < 2 * MIB; i++)
        zeros &= room[i] == 0;
    say("hole reads zeros %d, behind it \"%.3s\"", zeros, room + 2 * MIB);
    TELL(lseek(fd, 0, SEEK_DATA));
    TELL(lseek(fd, 3 * MIB, SEEK_DATA));
    TELL(lseek(fd, 3 * MIB, SEEK_HOLE));
    off_t hole = lseek(fd, 0, SEEK_HOLE), data = lseek(fd, 2 * MIB, SEEK_DATA);
    say("hole in the file %d, data at its end %d", hole >= 5 && hole <= 2 * MIB + 3, data == 2 * MIB);
    TELL(ftruncate(fd, 3));
    TELL(ftruncate(fd, 10));
    memset(room, 'x', 16);
    TELL(pread(fd, room, 16, 0));
    say("grown with zeros %d", memcmp(room, "beg\0\0\0\0\0\0\0xxxxxx", 16) == 0);
    TELL(truncate(in("holes"), 5 * MIB + 1));
    say("size %lld", size_of("holes"));
    TELL(ftruncate(fd, MIB - 1));
    TELL(ftruncate(fd, 2 * MIB));
    TELL(pread(fd, room, 10, MIB + 100));
    say("nothing comes back %d", memcmp(room, "\0\0\0\0\0\0\0\0\0\0", 10) == 0);
    TELL(ftruncate(fd, -1));
    TELL(truncate(in("holes"), -1));
    TELL(truncate(in("no-such-file"), 1));
    TELL(truncate(base, 1));
    TELL(fallocate(fd, 0, 0, 3 * MIB));
    say("size %lld", size_of("holes"));
    TELL(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 4 * MIB));
    say("size %lld", size_of("holes"));
    memset(room, 'p', MIB);
    TELL(pwrite(fd, room, MIB, 0));
    TELL(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1000, 500000));
    TELL(pread(fd, room, MIB, 0));
    zeros = 1;
    for (long i = 1000; i < 501000; i++)
        zeros &= room[i] == 0;
    say("punched %d, edges %c %c", zeros, room[999], room[501000]);
    TELL(posix_fallocate(fd, 0, 3 * MIB + 5));
    say("size %lld", size_of("holes"));
    TELL(fallocate(fd, 0, -1, 5));
    TELL(fallocate(fd, 0, 0, 0));
    TELL(pwrite(fd, "far", 3, 5 * 1024 * MIB));
    say("size %lld", size_of("holes"));
    TELL(pread(fd, room, 10, 5 * 1024 * MIB));
    say("far \"%.3s\"", room);
    TELL(fsync(fd));
    TELL(fdatasync(fd));
    TELL(syncfs(fd));
    TELL(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    close(fd);
    TELL(fsync(fd));
    unlink(in("holes"));
    free(room);
}

static void tell_stat(const char *what, const struct stat *st)
{
    say("%s: mode %o links %d size %lld own %d", what, st->st_mode, S_ISDIR(st->st_mode) ? 0 : (int)st->st_nlink,
        S_ISDIR(st->st_mode) ? 0 : (long long)st->st_size, st->st_uid == geteuid() && st->st_gid == getegid());
}

static void attributes(void)
{
    struct stat st, other;
    put("attributes", "12345");
    TELL(stat(in("attributes"), &st));
    tell_stat("file", &st);
    TELL(lstat(in("link"), &st));
    tell_stat("link", &st);
    TELL(stat(base, &st));
    tell_stat("directory", &st);
    TELL(chmod(in("attributes"), 04751));
    stat(in("attributes"), &st);
    say("mode %o", st.st_mode);
    int fd = open(in("attributes"), O_RDWR);
    TELL(fchmod(fd, 0640));
    TELL(fchmodat(AT_FDCWD, in("attributes"), 0600, 0));
    fstat(fd, &st);
    stat(in("attributes"), &other);
    say("mode %o, the same file %d", st.st_mode, st.st_ino == other.st_ino && st.st_dev == other.st_dev);
    TELL(chown(in("attributes"), -1, -1));
    TELL(lchown(in("link"), getuid(), -1));
    TELL(fchown(fd, geteuid(), getegid()));
    struct timespec times[2] = { { 1000000000, 123456789 }, { 1234567890, 987654321 } };
    TELL(futimens(fd, times));
    fstat(fd, &st);
    say("times %lld.%09ld %lld.%09ld", (long long)st.st_atim.tv_sec, st.st_atim.tv_nsec, (long long)st.st_mtim.tv_sec,
        st.st_mtim.tv_nsec);
    times[0].tv_nsec = UTIME_OMIT;
    times[1].tv_sec = -5;
    TELL(utimensat(AT_FDCWD, in("attributes"), times, 0));
    stat(in("attributes"), &st);
    say("times %lld.%09ld %lld.%09ld", (long long)st.st_atim.tv_sec, st.st_atim.tv_nsec, (long long)st.st_mtim.tv_sec,
        st.st_mtim.tv_nsec);
    TELL(write(fd, "x", 1));
    fstat(fd, &st);
    say("a write is later %d", st.st_mtim.tv_sec > 1500000000);
    TELL(futimens(fd, (struct timespec[]) { { 7, 0 }, { 8, 0 } }));
    close(fd);
    stat(in("attributes"), &st);
    say("set times outlive the close %lld %lld", (long long)st.st_atim.tv_sec, (long long)st.st_mtim.tv_sec);
    TELL(utimensat(AT_FDCWD, in("link"), (struct timespec[]) { { 11, 0 }, { 12, 0 } }, AT_SYMLINK_NOFOLLOW));
    lstat(in("link"), &st);
    say("times of the link itself %lld", (long long)st.st_mtim.tv_sec);
    TELL(utimes(in("attributes"), (struct timeval[]) { { 21, 500000 }, { 22, 250000 } }));
    stat(in("attributes"), &st);
    say("times %lld.%09ld", (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    TELL(utime(in("attributes"), NULL));
    stat(in("attributes"), &st);
    say("now %d", st.st_mtim.tv_sec > 1500000000);
    TELL(utime(in("no-such-file"), NULL));
    struct statx x;
    TELL(statx(AT_FDCWD, in("attributes"), 0, STATX_BASIC_STATS, &x));
    say("statx size %llu mode %o mask %d", (unsigned long long)x.stx_size, x.stx_mode,
        (x.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
    TELL(fstatat(AT_FDCWD, in("attributes"), &st, 0x40000000));
    TELL(stat(in("no-such-file"), &st));
    TELL(stat(in("plain/below"), &st));
    stat(in("dir"), &st);
    int before = st.st_nlink;
    mkdir(in("dir/sub"), 0755);
    stat(in("dir"), &st);
    say("a subdirectory counts as link %d", st.st_nlink - before);
    struct statvfs vfs;
    TELL(statvfs(base, &vfs));
    say("name limit %lu, room %d", vfs.f_namemax, vfs.f_blocks > 0 && vfs.f_bavail <= vfs.f_blocks && vfs.f_bsize > 0);
}

static void names(void)
{
    put("old", "old");
    put("target", "target");
    TELL(rename(in("old"), in("new")));
    TELL(access(in("old"), F_OK));
    int fd = open(in("target"), O_RDONLY);
    TELL(rename(in("new"), in("target")));
    show("target");
    char text[16] = "";
    TELL(read(fd, text, 15));
    say("the replaced file is still there for its reader: \"%s\"", text);
    struct stat st;
    fstat(fd, &st);
    say("its links %d", (int)st.st_nlink);
    close(fd);
    TELL(rename(in("missing"), in("new")));
    TELL(rename(in("target"), in("dir")));
    TELL(rename(in("dir"), in("target")));
    TELL(rename(in("dir"), in("dir/sub/inside")));
    mkdir(in("empty"), 0755);
    mkdir(in("full"), 0755);
    put("full/x", "");
    TELL(rename(in("empty"), in("full")));
    TELL(rename(in("full"), in("empty")));
    show("empty/x");
    TELL(rename(in("target"), in("target")));
    put("other", "other");
    TELL(renameat2(AT_FDCWD, in("target"), AT_FDCWD, in("other"), RENAME_NOREPLACE));
    TELL(renameat2(AT_FDCWD, in("target"), AT_FDCWD, in("other"), RENAME_EXCHANGE));
    show("target");
    TELL(rename(in("target/"), in("x")));
    TELL(rename(in("."), in("x")));

    TELL(link(in("target"), in("hard")));
    TELL(rename(in("target"), in("hard")));
    TELL(access(in("target"), F_OK));
    stat(in("hard"), &st);
    say("links %d", (int)st.st_nlink);
    TELL(unlink(in("hard")));
    show("target");
    TELL(link(in("dir"), in("hard")));
    TELL(link(in("target"), in("other")));
    TELL(link(in("missing"), in("hard")));
    TELL(link(in("link"), in("hard")));
    lstat(in("hard"), &st);
    say("a link to the link itself %d", S_ISLNK(st.st_mode));
    TELL(unlink(in("hard")));
    TELL(linkat(AT_FDCWD, in("dangling"), AT_FDCWD, in("hard"), AT_SYMLINK_FOLLOW));
    unlink(in("hard"));

    TELL(symlink("", in("s")));
    TELL(symlink("x", in("plain")));
    TELL(symlink("circle", in("circle")));
    TELL(open("circle", O_RDONLY));
    TELL(open_close("circle", O_RDONLY, 0));
    TELL(stat(in("circle"), &st));
    TELL(readlink(in("circle"), text, sizeof text));
    TELL(readlink(in("circle"), text, 3));
    say("cut to \"%.3s\"", text);
    TELL(readlink(in("circle"), text, 0));
    TELL(readlink(in("plain"), text, sizeof text));
    TELL(readlink(in("missing"), text, sizeof text));
    char deep[64];
    for (int i = 0; i < 45; i++) {
        char to[64];
        snprintf(deep, sizeof deep, "chain%d", i + 1);
        snprintf(to, sizeof to, "chain%d", i);
        symlink(i ? to : "plain", in(deep));
    }
    TELL(open_close("chain40", O_RDONLY, 0));
    TELL(open_close("chain41", O_RDONLY, 0));

    TELL(mkdir(in("dir"), 0755));
    TELL(mkdir(in("plain"), 0755));
    TELL(mkdir(in("missing/x"), 0755));
    TELL(mkdir(in("made/"), 01777));
    stat(in("made"), &st);
    say("mode %o", st.st_mode);
    TELL(rmdir(in("made")));
    TELL(rmdir(in("made")));
    TELL(rmdir(in("dir")));
    TELL(rmdir(in("plain")));
    TELL(rmdir(in("dir/.")));
    TELL(rmdir(in("dir/sub/..")));
    TELL(unlink(in("dir")));
    TELL(unlink(in("missing")));
    TELL(unlink(in("plain/x")));
    TELL(unlinkat(AT_FDCWD, in("dir/sub"), AT_REMOVEDIR));
    TELL(remove(in("empty/x")));
    TELL(remove(in("empty")));
    TELL(mkfifo(in("fifo"), 0600));
    TELL(mknod(in("node"), S_IFREG | 0640, 0));
    TELL(mknod(in("node"), S_IFREG | 0640, 0));
    stat(in("fifo"), &st);
    say("fifo %o", st.st_mode);

    char name[300], path[PATH_MAX + 100];
    memset(name, 'n', sizeof name);
    name[255] = 0;
    TELL(open_close(name, O_RDWR | O_CREAT, 0644));
    TELL(unlink(in(name)));
    name[255] = 'n';
    name[256] = 0;
    TELL(open_close(name, O_RDWR | O_CREAT, 0644));
    TELL(mkdir(in(name), 0755));
    TELL(stat(in(name), &st));
    TELL(rename(in("plain"), in(name)));
    int length = snprintf(path, sizeof path, "%s", base);
    while (length < 4090)
        length += snprintf(path + length, sizeof path - length, "/.");
    while (length < 4095)
        path[length++] = '/';
    path[length] = 0;
    TELL(stat(path, &st));
    path[length++] = '/';
    path[length] = 0;
    TELL(stat(path, &st));
    TELL(open(path, O_RDONLY));
    const char *odd[] = { "a b", "\"q\"", "new\nline", "\xff\xfe", "caf\xc3\xa9", "-rf", "*", "\\", "...", " " };
    int made = 0;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        made += open_close(odd[i], O_RDWR | O_CREAT | O_EXCL, 0644) == 0 && unlink(in(odd[i])) == 0;
    say("odd names %d", made);
    TELL(chdir(in("dir")));
    TELL(access("at", F_OK));
    TELL(access("../plain", F_OK));
    char cwd[PATH_MAX];
    say("cwd %s", getcwd(cwd, sizeof cwd));
    TELL(chdir(in("plain")));
    TELL(chdir(in("missing")));
    TELL(getcwd(cwd, 3) == NULL ? -1 : 0);
    TELL(rename(in("dir"), in("moved")));
    say("cwd %s", getcwd(cwd, sizeof cwd));
    TELL(access("at", F_OK));
    TELL(rename(in("moved"), in("dir")));
    fd = open("..", O_RDONLY | O_DIRECTORY);
    TELL(fchdir(fd));
    close(fd);
    say("cwd %s", getcwd(cwd, sizeof cwd));
    TELL(chdir("/"));
    say("cwd %s", getcwd(cwd, sizeof cwd));
}

static void unlinked(void)
{
    put("gone", "still here");
    int fd = open(in("gone"), O_RDWR);
    struct stat st;
    char text[32] = "";
    TELL(unlink(in("gone")));
    fstat(fd, &st);
    say("links %d size %lld", (int)st.st_nlink, (long long)st.st_size);
    TELL(pwrite(fd, "STILL", 5, 0));
    TELL(pread(fd, text, 31, 0));
    say("reads \"%s\"", text);
    put("gone", "another");
    TELL(pread(fd, text, 31, 0));
    say("reads \"%s\"", text);
    TELL(ftruncate(fd, 2));
    TELL(pread(fd, text, 31, 0));
    close(fd);
    show("gone");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void extended(void)
{
    put("x", "");
    char value[300] = "", list[400];
    TELL(setxattr(in("x"), "user.one", "value", 5, 0));
    TELL(getxattr(in("x"), "user.one", value, sizeof value));
    say("value \"%s\"", value);
    TELL(getxattr(in("x"), "user.one", NULL, 0));
    TELL(getxattr(in("x"), "user.one", value, 2));
    TELL(getxattr(in("x"), "user.none", value, sizeof value));
    TELL(setxattr(in("x"), "user.one", "v", 1, XATTR_CREATE));
    TELL(setxattr(in("x"), "user.two", "v", 1, XATTR_REPLACE));
    TELL(setxattr(in("x"), "user.two", "", 0, XATTR_CREATE));
    int fd = open(in("x"), O_RDWR);
    TELL(fsetxattr(fd, "user.three", "\0binary\0", 8, 0));
    TELL(fgetxattr(fd, "user.three", value, sizeof value));
    ssize_t length = listxattr(in("x"), list, sizeof list);
    char *entries[8];
    int count = 0;
    for (char *at = list; at < list + length && count < 8; at += strlen(at) + 1)
        if (strncmp(at, "user.", 5) == 0)
            entries[count++] = at;
    qsort(entries, count, sizeof *entries, by_name);
    for (int i = 0; i < count; i++)
        say("  %s", entries[i]);
    TELL(listxattr(in("x"), list, 1));
    TELL(removexattr(in("x"), "user.two"));
    TELL(fremovexattr(fd, "user.two"));
    TELL(setxattr(in("x"), "nonsense", "v", 1, 0));
    TELL(setxattr(in("missing"), "user.one", "v", 1, 0));
    TELL(lsetxattr(in("link"), "user.one", "v", 1, 0));
    close(fd);
}

static void mappings(void)
{
    put("map", "mapped text, some bytes of it");
    int fd = open(in("map"), O_RDWR);
    char *shared = mmap(NULL, 100, PROT_READ, MAP_SHARED, fd, 0);
    POINTER(shared == MAP_FAILED ? NULL : shared);
    if (shared != MAP_FAILED)
        say("shared \"%.29s\" zeros behind %d", shared, shared[29] == 0 && shared[99] == 0);
    char *own = mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    POINTER(own == MAP_FAILED ? NULL : own);
    if (own != MAP_FAILED) {
        memcpy(own, "MAPPED", 6);
        say("private \"%.29s\"", own);
        show("map");
        TELL(munmap(own, 100));
    }
    int big = open(in("big"), O_RDONLY);
    long size = 3 * MIB + 123, wrong = 0;
    unsigned char *all = mmap(NULL, size, PROT_READ, MAP_PRIVATE, big, 0);
    if (all != MAP_FAILED) {
        for (long i = 0; i < size; i++)
            wrong += all[i] != (unsigned char)((i * 2654435761u) >> 13);
        say("mapping over many blocks, wrong bytes %ld", wrong);
        munmap(all, size);
    } else {
        say("mapping over many blocks: %s", result(-1));
    }
    all = mmap(NULL, 8192, PROT_READ, MAP_SHARED, big, MIB);
    wrong = 0;
    for (long i = 0; all != MAP_FAILED && i < 8192; i++)
        wrong += all[i] != (unsigned char)(((i + MIB) * 2654435761u) >> 13);
    say("mapping from the middle, wrong bytes %ld", all == MAP_FAILED ? -1 : wrong);
    TELL(close(big));
    TELL(mmap(NULL, 100, PROT_READ, MAP_SHARED, fd, 5) == MAP_FAILED ? -1 : 0);
    TELL(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    int read_only = open(in("map"), O_RDONLY), write_only = open(in("map"), O_WRONLY);
    TELL(mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, read_only, 0) == MAP_FAILED ? -1 : 0);
    TELL(mmap(NULL, 100, PROT_READ, MAP_PRIVATE, write_only, 0) == MAP_FAILED ? -1 : 0);
    close(read_only);
    close(write_only);
    close(fd);
    if (shared != MAP_FAILED)
        say("after close \"%.6s\"", shared);
}

static void copies(void)
{
    int from = open(in("big"), O_RDONLY), to = open(in("copy"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    long total = 0;
    ssize_t count;
    while ((count = copy_file_range(from, NULL, to, NULL, MIB, 0)) > 0)
        total += count;
    if (count < 0) {
        /* Programs go on by hand. */
        say("copy_file_range refused with a known error %d",
            errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS);
    } else {
        say("copied %ld, offsets %lld %lld", total, (long long)lseek(from, 0, SEEK_CUR), (long long)lseek(to, 0, SEEK_CUR));
    }
    off_t offset = 5;
    lseek(to, 0, SEEK_SET);
    ftruncate(to, 0);
    total = 0;
    while ((count = sendfile(to, from, &offset, MIB)) > 0)
        total += count;
    say("sendfile %s, %ld bytes, offset %lld", result(count), total, (long long)offset);
    int null = open("/dev/null", O_WRONLY), ends[2];
    offset = 0;
    TELL(sendfile(null, from, &offset, 1000));
    pipe(ends);
    lseek(to, 0, SEEK_SET);
    count = splice(to, NULL, ends[1], NULL, 1000, 0);
    say("splice works or says EINVAL %d", count == 1000 || (count < 0 && errno == EINVAL));
    unsigned char one[100], two[100];
    pread(from, one, 100, 105);
    pread(to, two, 100, 100);
    say("the same bytes %d", memcmp(one, two, 100) == 0);
    close(from);
    close(to);
    close(null);
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char **argv)
{
    begin(argc, argv, "files");
    opening();
    reading_and_writing();
    holes();
    attributes();
    names();
    unlinked();
    extended();
    mappings();
    copies();
    return 0;
}
