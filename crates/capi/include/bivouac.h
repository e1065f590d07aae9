/* Bivouac: a parallel file system for the length of a job. Licence: Apache-2.0.
 *
 * The C interface, for programs that would rather be linked with the file system than run with its preload library or in a
 * mount. docs/c-api.md begins with an example.
 *
 * Rules that hold for all functions:
 * - A path is one inside the deployment: "/a/b" and "a/b" are the same, and "/" is its root. Symbolic links are followed as
 *   open(2) and its relatives follow them; one that leads out of the deployment gives EXDEV.
 * - A function that returns a number returns less than 0 when it fails: the negative value of an errno. bivouac_error() says
 *   in words what happened.
 * - Everything may be called by any thread, at the same time. Only what is being closed, detached or freed must not be in
 *   use.
 * - After a fork, the child can go on with a deployment that its parent has attached to: it gets a session of its own. What
 *   the parent has opened is the parent's: in the child it gives EBADF, and is to be closed there (which frees memory, and
 *   leaves the parent's open). Directories that are being read, too, are to be opened anew.
 * - The library has descriptors of its own, numbers from 3 on: a program that closes descriptors which it has not opened must
 *   do that before it attaches, or in a child that does not use the library.
 * - Modes of new files and directories are set as they are given: the process's umask does not count.
 */
#ifndef BIVOUAC_H
#define BIVOUAC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows by one with every function that is added. None is ever removed or changed. */
#define BIVOUAC_API 1

typedef struct bivouac bivouac_t;           /* a deployment that this process is attached to */
typedef struct bivouac_file bivouac_file_t; /* an open file */
typedef struct bivouac_dir bivouac_dir_t;   /* a directory that is being read */

/* ---- The library ---- */

/* The version of the library, for example "0.1.0". */
const char *bivouac_version(void);

/* BIVOUAC_API of the library that is loaded. */
int bivouac_api(void);

/* What this thread's last failed call failed with, in words. Valid until this thread's next call. */
const char *bivouac_error(void);

/* ---- Deployments ---- */

/* Attaches to a deployment of this user that is on this node. name: what `bivouac up` was given; NULL: the one that the
 * environment names (`bivouac run`, `bivouac exec`, `bivouac env`). A process can be attached to several, and to one several
 * times. */
int bivouac_attach(const char *name, bivouac_t **deployment);

/* The same with the deployment's key, of 64 hexadecimal digits, which this node is then not asked for: for programs that get
 * it from elsewhere. */
int bivouac_attach_with_key(const char *name, const char *key, bivouac_t **deployment);

/* Detaches: what is open is closed, what is locked is unlocked, and everything is freed. Pointers to files and directories of
 * this deployment must not be used any more. NULL is fine. */
void bivouac_detach(bivouac_t *deployment);

/* Where programs in a mount or with the preload library see it, for example "/bivouac". Valid until it is detached. */
const char *bivouac_mount_path(bivouac_t *deployment);

/* The name of the node that this process runs on, as the deployment knows it. Valid until it is detached. */
const char *bivouac_host(bivouac_t *deployment);

struct bivouac_space {
    uint64_t total;      /* storage of all servers that are up, bytes (of files with the deployment's number of copies) */
    uint64_t available;  /* still free, bytes */
    uint64_t files;      /* inodes that there are */
    uint32_t block_size; /* of new files, bytes */
    uint32_t servers;    /* that are up */
    uint64_t reserved[4];
};

int bivouac_statfs(bivouac_t *deployment, struct bivouac_space *space);

/* ---- Open files ---- */

/* flags, mode: as for open(2). Directories are read with bivouac_opendir. */
int bivouac_open(bivouac_t *deployment, const char *path, int flags, mode_t mode, bivouac_file_t **file);

/* Opens a file by its inode number (bivouac_stat.inode), whatever its name is by now: numbers are never used again. ENOENT if it is gone. It needs
 * the file's permissions, and not those of directories. flags: as for open(2), without O_CREAT. */
int bivouac_open_inode(bivouac_t *deployment, uint64_t inode, int flags, bivouac_file_t **file);

/* Closes. What was written is in the deployment already, and stays if the process dies; after bivouac_sync it stays if the
 * node dies (docs/semantics.md). NULL is fine. */
int bivouac_close(bivouac_file_t *file);

/* Reads at an offset. Less than was asked for only at the end of the file (or, with several buffers, behind 2 GiB). */
ssize_t bivouac_pread(bivouac_file_t *file, void *buffer, size_t length, int64_t offset);
ssize_t bivouac_preadv(bivouac_file_t *file, const struct iovec *buffers, int count, int64_t offset);

/* Writes at an offset; less than was given only when the storage is full (or, with several buffers, behind 2 GiB). */
ssize_t bivouac_pwrite(bivouac_file_t *file, const void *buffer, size_t length, int64_t offset);
ssize_t bivouac_pwritev(bivouac_file_t *file, const struct iovec *buffers, int count, int64_t offset);

/* Reads and writes at the file's own position, and moves it. A file that was opened with O_APPEND is written at its end. */
ssize_t bivouac_read(bivouac_file_t *file, void *buffer, size_t length);
ssize_t bivouac_write(bivouac_file_t *file, const void *buffer, size_t length);

/* Moves the position; whence: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE. The new position. */
int64_t bivouac_seek(bivouac_file_t *file, int64_t offset, int whence);

/* Writes at the end of the file, wherever that is by then, in one piece up to 4 MiB. *end (may be NULL): where the file ends
 * behind it. */
ssize_t bivouac_append(bivouac_file_t *file, const void *buffer, size_t length, int64_t *end);

/* Sets the length of the file, bytes. */
int bivouac_ftruncate(bivouac_file_t *file, int64_t length);

/* mode: 0 or the flags of fallocate(2). */
int bivouac_fallocate(bivouac_file_t *file, int mode, int64_t offset, int64_t length);

/* Puts data and attributes on stable storage. */
int bivouac_sync(bivouac_file_t *file);

/* ---- Attributes ---- */

struct bivouac_stat {
    uint64_t inode;
    uint64_t size;      /* bytes */
    uint64_t allocated; /* storage that it takes, bytes */
    int64_t accessed;   /* nanoseconds since 1970 */
    int64_t modified;   /* its data */
    int64_t changed;    /* its attributes */
    int64_t created;
    uint32_t mode; /* as st_mode of stat(2): the kind and the permissions */
    uint32_t links;
    uint32_t user;
    uint32_t group;
    uint32_t block_size; /* of its layout, bytes; of a small file or a directory, that of new files */
    uint32_t copies;     /* how often its data is kept */
    uint64_t reserved[4];
};

/* follow: whether a symbolic link at the end of the path is followed. */
int bivouac_stat(bivouac_t *deployment, const char *path, int follow, struct bivouac_stat *attributes);
int bivouac_fstat(bivouac_file_t *file, struct bivouac_stat *attributes);

/* Whether this process may; mask: as for access(2). */
int bivouac_access(bivouac_t *deployment, const char *path, int mask);

int bivouac_truncate(bivouac_t *deployment, const char *path, int64_t length);
int bivouac_chmod(bivouac_t *deployment, const char *path, mode_t mode);
/* (uid_t)-1 or (gid_t)-1: as it is. */
int bivouac_chown(bivouac_t *deployment, const char *path, uid_t user, gid_t group, int follow);

/* Nanoseconds since 1970. */
#define BIVOUAC_NOW INT64_MAX
#define BIVOUAC_AS_IT_IS INT64_MIN
int bivouac_utimes(bivouac_t *deployment, const char *path, int64_t accessed, int64_t modified, int follow);

/* Extended attributes: the value's length. length 0: only the length is wanted. ERANGE: the buffer is too small.
 * bivouac_listxattr gives names, each ended by NUL. flags: as for setxattr(2). */
ssize_t bivouac_getxattr(bivouac_t *deployment, const char *path, const char *name, void *value, size_t length);
ssize_t bivouac_listxattr(bivouac_t *deployment, const char *path, char *names, size_t length);
int bivouac_setxattr(bivouac_t *deployment, const char *path, const char *name, const void *value, size_t length, int flags);
int bivouac_removexattr(bivouac_t *deployment, const char *path, const char *name);

/* ---- Names ---- */

int bivouac_mkdir(bivouac_t *deployment, const char *path, mode_t mode);
int bivouac_rmdir(bivouac_t *deployment, const char *path);
int bivouac_unlink(bivouac_t *deployment, const char *path);
/* flags: 0 or those of renameat2(2): RENAME_NOREPLACE, RENAME_EXCHANGE. */
int bivouac_rename(bivouac_t *deployment, const char *from, const char *to, unsigned flags);
/* Another name for a file. */
int bivouac_link(bivouac_t *deployment, const char *path, const char *name);
int bivouac_symlink(bivouac_t *deployment, const char *target, const char *path);
/* The target's length; as much of it as there is room for is written, without a NUL. */
ssize_t bivouac_readlink(bivouac_t *deployment, const char *path, char *target, size_t length);

struct bivouac_entry {
    struct bivouac_stat attributes;
    char name[256];
    uint64_t reserved[4];
};

/* Reads a directory. bivouac_readdir fills in up to `most` entries with their attributes, without "." and "..": how many, 0 at
 * the end. What others remove meanwhile is left out. */
int bivouac_opendir(bivouac_t *deployment, const char *path, bivouac_dir_t **directory);
ssize_t bivouac_readdir(bivouac_dir_t *directory, struct bivouac_entry *entries, size_t most);
void bivouac_closedir(bivouac_dir_t *directory);

/* ---- Locks ---- */

#define BIVOUAC_UNLOCK 0
#define BIVOUAC_SHARED 1
#define BIVOUAC_EXCLUSIVE 2

/* Locks a range of a file, or unlocks it, for this open file, as fcntl(2) does with F_OFD_SETLK; length 0: to the end of the
 * file wherever it is. wait: whether to wait until it is free; otherwise EAGAIN. Closing the file unlocks all of it. */
int bivouac_lock(bivouac_file_t *file, int kind, int64_t offset, int64_t length, int wait);

/* Whether such a lock could be had now: 1, or 0. */
int bivouac_can_lock(bivouac_file_t *file, int kind, int64_t offset, int64_t length);

/* ---- Where data is ---- */

#define BIVOUAC_COPIES_MAX 8

struct bivouac_location {
    uint64_t offset; /* bytes */
    uint64_t length;
    uint32_t hosts; /* how many have all of it; 0: no copy is left */
    uint32_t local; /* 1: the first of them is this node */
    const char *host[BIVOUAC_COPIES_MAX];
    uint64_t reserved[2];
};

/* Which nodes have a range of a file, as far as the file reaches. *locations is to be freed with bivouac_free, and *count is
 * how many there are. */
int bivouac_locate(bivouac_t *deployment, const char *path, int64_t offset, int64_t length, struct bivouac_location **locations,
                   size_t *count);
void bivouac_free(void *pointer);

/* The layout of a file, or of new files in a directory, as a text (`bivouac layout`, docs/layout.md): its length, as
 * bivouac_getxattr. A directory without one of its own gives "". */
ssize_t bivouac_get_layout(bivouac_t *deployment, const char *path, char *layout, size_t length);

/* Sets it, for example "width=1 first=local"; "" takes a directory's away. A file's is fixed once it has data (ENOTEMPTY). */
int bivouac_set_layout(bivouac_t *deployment, const char *path, const char *layout);

/* ---- Many at once ---- */

struct bivouac_piece {
    const char *path;
    int64_t offset;
    void *buffer;
    size_t length;
    ssize_t result; /* bytes that were read, or less than 0 */
    uint64_t reserved;
};

/* Reads pieces of many files without opening them: all servers are asked at the same time.
 * Returns 0 if all that was asked for was tried; each piece has its own result. */
int bivouac_read_many(bivouac_t *deployment, struct bivouac_piece *pieces, size_t count);

#ifdef __cplusplus
}
#endif

#endif
