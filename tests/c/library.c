/* Every function of bivouac.h, as a program uses it; in two deployments at once, of which the second may be the first. Ends
 * with a status that is not 0, and says where, if anything is not as the header promises.
 * Usage: suite DEPLOYMENT [DEPLOYMENT] */
#include <bivouac.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                  \
    do {                                                                                             \
        if (!(what)) {                                                                               \
            fprintf(stderr, "%s:%d: not so: %s (last: %s)\n", __FILE__, __LINE__, #what, bivouac_error()); \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)
#define DONE(call) CHECK((call) == 0)
#define FAILS(call, number) CHECK((call) == -(number))

#define LARGE (3 << 20)

static char *pattern(size_t length, unsigned seed)
{
    char *bytes = malloc(length);
    for (size_t i = 0; i < length; i++)
        bytes[i] = (char)(i * 31 + i / 251 + seed);
    return bytes;
}

static void put(bivouac_t *d, const char *path, const char *bytes, size_t length)
{
    bivouac_file_t *file;
    DONE(bivouac_open(d, path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &file));
    CHECK(bivouac_write(file, bytes, length) == (ssize_t)length);
    DONE(bivouac_close(file));
}

static void data(bivouac_t *d)
{
    bivouac_file_t *file;
    char *bytes = pattern(LARGE, 1), *read = malloc(LARGE + 10);
    int64_t end = 0;

    DONE(bivouac_open(d, "data", O_RDWR | O_CREAT | O_EXCL, 0640, &file));
    CHECK(bivouac_pread(file, read, 10, 0) == 0);
    CHECK(bivouac_pwrite(file, bytes, LARGE, 0) == LARGE);
    CHECK(bivouac_pread(file, read, LARGE + 10, 0) == LARGE);
    CHECK(memcmp(bytes, read, LARGE) == 0);
    CHECK(bivouac_pread(file, read, 10, LARGE - 4) == 4);
    CHECK(bivouac_pread(file, read, 10, LARGE) == 0);

    struct iovec out[] = {{bytes, 1000}, {bytes + 1000, 0}, {bytes + 1000, 70000}};
    CHECK(bivouac_pwritev(file, out, 3, 100) == 71000);
    struct iovec in[] = {{read, 70000}, {read + 70000, 1000}};
    CHECK(bivouac_preadv(file, in, 2, 100) == 71000);
    CHECK(memcmp(bytes, read, 71000) == 0);
    FAILS(bivouac_preadv(file, in, -1, 0), EINVAL);

    CHECK(bivouac_append(file, "end", 3, &end) == 3);
    CHECK(end == LARGE + 3);
    CHECK(bivouac_seek(file, -3, SEEK_END) == LARGE);
    CHECK(bivouac_read(file, read, 10) == 3 && memcmp(read, "end", 3) == 0);
    CHECK(bivouac_seek(file, 0, SEEK_SET) == 0);
    CHECK(bivouac_write(file, "X", 1) == 1);
    CHECK(bivouac_seek(file, 0, SEEK_CUR) == 1);
    FAILS(bivouac_seek(file, -1, SEEK_SET), EINVAL);
    FAILS(bivouac_pread(file, read, 1, -1), EINVAL);
    FAILS(bivouac_pread(file, NULL, 1, 0), EFAULT);
    FAILS(bivouac_pread(NULL, read, 1, 0), EBADF);

    struct bivouac_stat st;
    DONE(bivouac_fstat(file, &st));
    CHECK(st.size == LARGE + 3 && S_ISREG(st.mode) && (st.mode & 07777) == 0640 && st.links == 1 && st.copies >= 1);
    DONE(bivouac_ftruncate(file, 5));
    DONE(bivouac_fallocate(file, 0, 0, 9));
    DONE(bivouac_fstat(file, &st));
    CHECK(st.size == 9);
    DONE(bivouac_sync(file));
    DONE(bivouac_close(file));

    DONE(bivouac_open(d, "/data", O_RDONLY, 0, &file));
    FAILS(bivouac_write(file, "no", 2), EBADF);
    CHECK(bivouac_pread(file, read, 20, 0) == 9 && read[0] == 'X' && read[8] == 0);
    DONE(bivouac_close(file));
    DONE(bivouac_close(NULL));
    FAILS(bivouac_open(d, "data", O_RDWR | O_CREAT | O_EXCL, 0640, &file), EEXIST);
    FAILS(bivouac_open(d, "missing", O_RDONLY, 0, &file), ENOENT);
    CHECK(strstr(bivouac_error(), "o such file") != NULL);
    FAILS(bivouac_open(d, NULL, O_RDONLY, 0, &file), EINVAL);
    FAILS(bivouac_open(NULL, "data", O_RDONLY, 0, &file), EINVAL);

    /* By its number, under any name, until it is gone. */
    DONE(bivouac_rename(d, "data", "moved", 0));
    DONE(bivouac_open_inode(d, st.inode, O_RDWR, &file));
    CHECK(bivouac_pread(file, read, 20, 0) == 9 && read[0] == 'X');
    DONE(bivouac_close(file));
    FAILS(bivouac_open_inode(d, st.inode, O_RDWR | O_CREAT, &file), EINVAL);
    FAILS(bivouac_open_inode(NULL, st.inode, O_RDONLY, &file), EINVAL);
    FAILS(bivouac_open_inode(d, st.inode, O_RDONLY, NULL), EINVAL);
    DONE(bivouac_unlink(d, "moved"));
    FAILS(bivouac_open_inode(d, st.inode, O_RDONLY, &file), ENOENT);
    FAILS(bivouac_open_inode(d, st.inode | (uint64_t)1 << 51, O_RDONLY, &file), ENOENT);
    DONE(bivouac_mkdir(d, "data", 0700));
    DONE(bivouac_stat(d, "data", 0, &st));
    FAILS(bivouac_open_inode(d, st.inode, O_RDONLY, &file), EISDIR);
    DONE(bivouac_rmdir(d, "data"));
    free(bytes);
    free(read);
}

static void attributes(bivouac_t *d)
{
    struct bivouac_stat st;
    char value[100];

    put(d, "a", "0123456789", 10);
    DONE(bivouac_stat(d, "/a", 1, &st));
    CHECK(st.size == 10 && st.inode != 0 && st.user == geteuid() && st.modified > 1000000000000000000);
    DONE(bivouac_chmod(d, "a", 0600));
    DONE(bivouac_utimes(d, "a", 5000000001, 7000000002, 1));
    DONE(bivouac_utimes(d, "a", BIVOUAC_AS_IT_IS, 9000000003, 1));
    DONE(bivouac_chown(d, "a", (uid_t)-1, getegid(), 1));
    DONE(bivouac_stat(d, "a", 1, &st));
    CHECK((st.mode & 07777) == 0600 && st.accessed == 5000000001 && st.modified == 9000000003 && st.group == getegid());
    DONE(bivouac_utimes(d, "a", BIVOUAC_NOW, BIVOUAC_NOW, 1));
    DONE(bivouac_truncate(d, "a", 4));
    DONE(bivouac_stat(d, "a", 1, &st));
    CHECK(st.size == 4 && st.accessed > 1000000000000000000);
    FAILS(bivouac_truncate(d, "a", -1), EINVAL);
    DONE(bivouac_access(d, "a", R_OK | W_OK));
    FAILS(bivouac_access(d, "a", X_OK), EACCES);

    DONE(bivouac_setxattr(d, "a", "user.one", "first", 5, 0));
    FAILS(bivouac_setxattr(d, "a", "user.one", "first", 5, 1), EEXIST);
    CHECK(bivouac_getxattr(d, "a", "user.one", NULL, 0) == 5);
    CHECK(bivouac_getxattr(d, "a", "user.one", value, sizeof value) == 5 && memcmp(value, "first", 5) == 0);
    FAILS(bivouac_getxattr(d, "a", "user.one", value, 4), ERANGE);
    FAILS(bivouac_getxattr(d, "a", "user.two", value, 4), ENODATA);
    CHECK(bivouac_listxattr(d, "a", value, sizeof value) >= 9 && strcmp(value, "user.one") == 0);
    DONE(bivouac_removexattr(d, "a", "user.one"));
    FAILS(bivouac_removexattr(d, "a", "user.one"), ENODATA);
    DONE(bivouac_unlink(d, "a"));

    struct bivouac_space space;
    DONE(bivouac_statfs(d, &space));
    CHECK(space.total >= space.available && space.available > 0 && space.servers > 0 && space.block_size >= 4096);
}

static void names(bivouac_t *d)
{
    char target[100];
    struct bivouac_stat st;
    bivouac_dir_t *dir;

    DONE(bivouac_mkdir(d, "/dir", 0755));
    FAILS(bivouac_mkdir(d, "dir", 0755), EEXIST);
    DONE(bivouac_mkdir(d, "dir/inner", 0700));
    put(d, "dir/file", "x", 1);
    DONE(bivouac_link(d, "dir/file", "dir/other"));
    DONE(bivouac_symlink(d, "file", "dir/link"));
    CHECK(bivouac_readlink(d, "dir/link", target, sizeof target) == 4 && memcmp(target, "file", 4) == 0);
    DONE(bivouac_stat(d, "dir/link", 0, &st));
    CHECK(S_ISLNK(st.mode));
    DONE(bivouac_stat(d, "dir/link", 1, &st));
    CHECK(S_ISREG(st.mode) && st.links == 2);
    DONE(bivouac_symlink(d, "/etc/passwd", "dir/out"));
    FAILS(bivouac_stat(d, "dir/out", 1, &st), EXDEV);
    CHECK(strstr(bivouac_error(), "/etc/passwd") != NULL);

    int seen = 0;
    DONE(bivouac_opendir(d, "/dir", &dir));
    struct bivouac_entry *entries = calloc(3, sizeof *entries);
    for (ssize_t count; (count = bivouac_readdir(dir, entries, 3)) != 0;) {
        CHECK(count > 0);
        for (ssize_t i = 0; i < count; i++) {
            const char *all[] = {"file", "inner", "link", "other", "out"};
            for (int k = 0; k < 5; k++)
                if (strcmp(entries[i].name, all[k]) == 0)
                    seen |= 1 << k;
            CHECK(strcmp(entries[i].name, "file") != 0 || entries[i].attributes.size == 1);
            CHECK(strcmp(entries[i].name, "inner") != 0 || S_ISDIR(entries[i].attributes.mode));
        }
    }
    CHECK(seen == 31);
    bivouac_closedir(dir);
    bivouac_closedir(NULL);
    DONE(bivouac_opendir(d, "/", &dir));
    CHECK(bivouac_readdir(dir, entries, 3) >= 1);
    bivouac_closedir(dir);
    FAILS(bivouac_opendir(d, "dir/file", &dir), ENOTDIR);
    free(entries);

    DONE(bivouac_rename(d, "dir/other", "dir/moved", 0));
    FAILS(bivouac_rename(d, "dir/moved", "dir/file", RENAME_NOREPLACE), EEXIST);
    FAILS(bivouac_rmdir(d, "dir"), ENOTEMPTY);
    FAILS(bivouac_unlink(d, "dir/inner"), EISDIR);
    DONE(bivouac_rmdir(d, "dir/inner"));
    const char *rest[] = {"dir/file", "dir/moved", "dir/link", "dir/out"};
    for (int i = 0; i < 4; i++)
        DONE(bivouac_unlink(d, rest[i]));
    DONE(bivouac_rmdir(d, "dir"));
    FAILS(bivouac_stat(d, "dir", 1, &st), ENOENT);
}

static void locks(bivouac_t *d)
{
    bivouac_file_t *one, *two;
    DONE(bivouac_open(d, "locked", O_RDWR | O_CREAT, 0600, &one));
    DONE(bivouac_open(d, "locked", O_RDWR, 0, &two));
    DONE(bivouac_lock(one, BIVOUAC_EXCLUSIVE, 0, 10, 0));
    FAILS(bivouac_lock(two, BIVOUAC_SHARED, 5, 10, 0), EAGAIN);
    CHECK(bivouac_can_lock(two, BIVOUAC_SHARED, 5, 10) == 0);
    CHECK(bivouac_can_lock(two, BIVOUAC_SHARED, 10, 0) == 1);
    DONE(bivouac_lock(two, BIVOUAC_EXCLUSIVE, 10, 0, 1));
    DONE(bivouac_lock(one, BIVOUAC_UNLOCK, 0, 10, 0));
    DONE(bivouac_lock(two, BIVOUAC_SHARED, 0, 10, 1));
    FAILS(bivouac_lock(two, 77, 0, 10, 1), EINVAL);
    DONE(bivouac_close(two));
    DONE(bivouac_lock(one, BIVOUAC_EXCLUSIVE, 0, 0, 1));
    DONE(bivouac_close(one));
    DONE(bivouac_unlink(d, "locked"));
}

static void places(bivouac_t *d)
{
    struct bivouac_location *found;
    size_t count;
    char layout[200];
    char *bytes = pattern(LARGE, 2);

    DONE(bivouac_mkdir(d, "local", 0755));
    CHECK(bivouac_get_layout(d, "local", NULL, 0) == 0);
    DONE(bivouac_set_layout(d, "local", "width=1 first=local"));
    ssize_t length = bivouac_get_layout(d, "local", layout, sizeof layout - 1);
    CHECK(length > 0);
    layout[length] = 0;
    CHECK(strstr(layout, "width=1") != NULL);
    FAILS(bivouac_set_layout(d, "local", "width=nonsense"), EINVAL);
    put(d, "local/file", bytes, LARGE);
    DONE(bivouac_locate(d, "local/file", 0, INT64_MAX, &found, &count));
    CHECK(count >= 1 && found[0].offset == 0);
    for (size_t i = 0; i < count; i++)
        CHECK(found[i].hosts >= 1 && found[i].local == 1 && strcmp(found[i].host[0], bivouac_host(d)) == 0);
    CHECK(found[count - 1].offset + found[count - 1].length == LARGE);
    bivouac_free(found);

    put(d, "spread", bytes, LARGE);
    DONE(bivouac_locate(d, "spread", 100, LARGE, &found, &count));
    uint64_t at = 100;
    for (size_t i = 0; i < count; i++) {
        CHECK(found[i].offset == at && found[i].hosts >= 1 && found[i].host[0][0] != 0);
        at += found[i].length;
    }
    CHECK(at == LARGE);
    bivouac_free(found);
    DONE(bivouac_locate(d, "spread", LARGE, 10, &found, &count));
    CHECK(count == 0);
    bivouac_free(found);
    FAILS(bivouac_set_layout(d, "spread", "width=1"), ENOTEMPTY);
    DONE(bivouac_unlink(d, "spread"));
    DONE(bivouac_unlink(d, "local/file"));
    DONE(bivouac_rmdir(d, "local"));
    free(bytes);
}

#define MANY 300

static void many(bivouac_t *d)
{
    struct bivouac_piece pieces[MANY + 4] = {0};
    char paths[MANY][32];
    size_t sizes[] = {0, 10, 4096, 10000, 200000};

    DONE(bivouac_mkdir(d, "many", 0755));
    for (int i = 0; i < MANY; i++) {
        snprintf(paths[i], sizeof paths[i], "many/%d", i);
        char *bytes = pattern(sizes[i % 5], i);
        put(d, paths[i], bytes, sizes[i % 5]);
        free(bytes);
        pieces[i].path = paths[i];
        pieces[i].offset = i % 3;
        pieces[i].length = 150000;
        pieces[i].buffer = malloc(pieces[i].length);
    }
    char buffer[16], other[16], third[16];
    DONE(bivouac_symlink(d, "many/1", "through"));
    pieces[MANY] = (struct bivouac_piece){.path = "missing", .buffer = buffer, .length = 16};
    pieces[MANY + 1] = (struct bivouac_piece){.path = "many", .buffer = other, .length = 16};
    pieces[MANY + 2] = (struct bivouac_piece){.path = "through", .buffer = third, .length = 16};
    pieces[MANY + 3] = (struct bivouac_piece){.path = NULL, .buffer = third, .length = 0};
    DONE(bivouac_read_many(d, pieces, MANY + 4));
    for (int i = 0; i < MANY; i++) {
        size_t size = sizes[i % 5], offset = i % 3;
        size_t rest = size > offset ? size - offset : 0;
        if (rest > 150000)
            rest = 150000;
        CHECK(pieces[i].result == (ssize_t)rest);
        char *bytes = pattern(size, i);
        CHECK(rest == 0 || memcmp(pieces[i].buffer, bytes + offset, rest) == 0);
        free(bytes);
        free(pieces[i].buffer);
        DONE(bivouac_unlink(d, paths[i]));
    }
    CHECK(pieces[MANY].result == -ENOENT && pieces[MANY + 1].result == -EISDIR && pieces[MANY + 2].result == 10);
    CHECK(pieces[MANY + 3].result == -EINVAL);
    DONE(bivouac_read_many(d, NULL, 0));
    DONE(bivouac_unlink(d, "through"));
    DONE(bivouac_rmdir(d, "many"));
}

struct work {
    bivouac_t *d;
    int number;
};

static void *busy(void *given)
{
    struct work *work = given;
    char path[32];
    for (int i = 0; i < 50; i++) {
        snprintf(path, sizeof path, "thread-%d-%d", work->number, i);
        char *bytes = pattern(20000, i), *read = malloc(20000);
        put(work->d, path, bytes, 20000);
        bivouac_file_t *file;
        DONE(bivouac_open(work->d, path, O_RDONLY, 0, &file));
        CHECK(bivouac_pread(file, read, 20000, 0) == 20000 && memcmp(bytes, read, 20000) == 0);
        DONE(bivouac_close(file));
        DONE(bivouac_unlink(work->d, path));
        free(bytes);
        free(read);
    }
    return NULL;
}

static void threads(bivouac_t *d)
{
    pthread_t all[4];
    struct work work[4];
    for (int i = 0; i < 4; i++) {
        work[i] = (struct work){d, i};
        CHECK(pthread_create(&all[i], NULL, busy, &work[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
}

static void forks(bivouac_t *d)
{
    bivouac_file_t *file;
    char read[10];
    DONE(bivouac_open(d, "of-parent", O_RDWR | O_CREAT, 0600, &file));
    CHECK(bivouac_pwrite(file, "parent", 6, 0) == 6);
    pid_t child = fork();
    if (child == 0) {
        FAILS(bivouac_pread(file, read, 6, 0), EBADF);
        CHECK(strstr(bivouac_error(), "fork") != NULL);
        DONE(bivouac_close(file));
        bivouac_file_t *own;
        DONE(bivouac_open(d, "of-parent", O_RDWR, 0, &own));
        CHECK(bivouac_pread(own, read, 10, 0) == 6 && memcmp(read, "parent", 6) == 0);
        CHECK(bivouac_pwrite(own, "child!", 6, 0) == 6);
        /* Left open: it goes with the deployment. */
        bivouac_detach(d);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(bivouac_pread(file, read, 10, 0) == 6 && memcmp(read, "child!", 6) == 0);
    DONE(bivouac_close(file));
    DONE(bivouac_unlink(d, "of-parent"));
}

static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

int main(int argc, char **argv)
{
    bivouac_t *d, *second, *third;
    CHECK(argc >= 2);
    CHECK(bivouac_api() >= BIVOUAC_API && bivouac_version()[0] != 0);
    int before = descriptors();

    FAILS(bivouac_attach("no-such-deployment", &d), ENOENT);
    CHECK(strstr(bivouac_error(), "no-such-deployment") != NULL);
    FAILS(bivouac_attach("not a name", &d), EINVAL);
    FAILS(bivouac_attach_with_key(argv[1], "abc", &d), EINVAL);
    FAILS(bivouac_attach(argv[1], NULL), EINVAL);
    if (getenv("BIVOUAC_DEPLOYMENT") == NULL)
        FAILS(bivouac_attach(NULL, &d), ENOENT);

    DONE(bivouac_attach(argv[1], &d));
    DONE(bivouac_attach(argv[argc > 2 ? 2 : 1], &second));
    CHECK(bivouac_mount_path(d)[0] == '/' && bivouac_host(d)[0] != 0);
    put(d, "which", "first", 5);
    struct bivouac_stat st;
    CHECK(bivouac_stat(second, "which", 1, &st) == (argc > 2 ? -ENOENT : 0));
    DONE(bivouac_unlink(d, "which"));

    bivouac_t *both[] = {d, second};
    for (int i = 0; i < 2; i++) {
        data(both[i]);
        attributes(both[i]);
        names(both[i]);
        locks(both[i]);
        places(both[i]);
        many(both[i]);
        threads(both[i]);
        forks(both[i]);
    }
    /* What is left open goes with the deployment. */
    bivouac_file_t *file;
    bivouac_dir_t *dir;
    DONE(bivouac_open(second, "left-open", O_RDWR | O_CREAT, 0600, &file));
    DONE(bivouac_lock(file, BIVOUAC_EXCLUSIVE, 0, 0, 0));
    DONE(bivouac_opendir(second, "/", &dir));
    bivouac_detach(second);
    DONE(bivouac_attach(argv[argc > 2 ? 2 : 1], &third));
    DONE(bivouac_open(third, "left-open", O_RDWR, 0, &file));
    DONE(bivouac_lock(file, BIVOUAC_EXCLUSIVE, 0, 0, 1));
    DONE(bivouac_close(file));
    DONE(bivouac_unlink(third, "left-open"));
    bivouac_detach(third);
    bivouac_detach(d);
    bivouac_detach(NULL);
    if (getenv("LD_PRELOAD") == NULL)
        CHECK(descriptors() == before);
    puts("all as promised");
    return 0;
}
