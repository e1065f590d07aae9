/* Directory streams: reading, places, rewinding, scandir; what changes while a directory is read. */
#include "transcript.h"
#include <dirent.h>
#include <sys/syscall.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Says what a stream lists from here on, sorted. */
static void list(const char *what, DIR *dir)
{
    char *names[64];
    int count = 0;
    struct dirent *entry;
    errno = 0;
    while ((entry = readdir(dir)) != NULL && count < 64) {
        char text[300];
        snprintf(text, sizeof text, "%s/%d", entry->d_name, entry->d_type);
        names[count++] = strdup(text);
    }
    say("%s: %d entries, errno %d", what, count, errno);
    qsort(names, count, sizeof *names, by_name);
    for (int i = 0; i < count; i++) {
        say("  %s", names[i]);
        free(names[i]);
    }
}

static int no_dots(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void inode_numbers(void)
{
    DIR *dir = opendir(base);
    struct dirent *entry;
    int agree = 0, differ = 0;
    while ((entry = readdir(dir)) != NULL) {
        struct stat st;
        if (strcmp(entry->d_name, "..") != 0 && fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            if (st.st_ino == entry->d_ino)
                agree++;
            else
                differ++;
        }
    }
    say("inode numbers: %d agree, %d differ", agree, differ);
    closedir(dir);
}

static void places(void)
{
    mkdir(in("many"), 0755);
    for (int i = 0; i < 3000; i++) {
        char name[64];
        snprintf(name, sizeof name, "many/entry-%04d", i);
        close(open(in(name), O_WRONLY | O_CREAT, 0600));
    }
    DIR *dir = opendir(in("many"));
    char (*names)[64] = calloc(4000, 64);
    long *places = calloc(4000, sizeof *places);
    int count = 0, wrong = 0;
    struct dirent *entry;
    for (;;) {
        places[count] = telldir(dir);
        if ((entry = readdir(dir)) == NULL)
            break;
        snprintf(names[count++], 64, "%.63s", entry->d_name);
    }
    say("many: %d entries", count);
    for (int i = 0; i < count; i += 97) {
        seekdir(dir, places[i]);
        entry = readdir(dir);
        if (entry == NULL || strcmp(entry->d_name, names[i]) != 0)
            wrong++;
    }
    say("seekdir: %d wrong", wrong);
    rewinddir(dir);
    int again = 0;
    while (readdir(dir) != NULL)
        again++;
    say("rewinddir: %d entries", again);
    rewinddir(dir);
    int removed = 0;
    while ((entry = readdir(dir)) != NULL)
        if (no_dots(entry) && unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            removed++;
    say("removed while reading: %d", removed);
    closedir(dir);
    TELL(rmdir(in("many")));
    free(names);
    free(places);
}

static void descriptors(void)
{
    int fd = open(in("sub"), O_RDONLY | O_DIRECTORY);
    DIR *dir = fdopendir(fd);
    say("same descriptor %d, close on exec %d", dirfd(dir) == fd, fcntl(fd, F_GETFD));
    list("fdopendir", dir);
    TELL(closedir(dir));
    TELL(fcntl(fd, F_GETFD));
    dir = opendir(in("sub"));
    say("close on exec %d", fcntl(dirfd(dir), F_GETFD));
    closedir(dir);
    fd = open(in("file"), O_RDONLY);
    POINTER(fdopendir(fd));
    close(fd);
    POINTER(fdopendir(fd));
    POINTER(opendir(in("missing")));
    POINTER(opendir(in("file")));
    POINTER(opendir(in("file/below")));
    POINTER(opendir(""));
    POINTER(opendir(in("loop")));
    TELL(open(in("sub"), O_WRONLY));
    fd = open(in("sub"), O_RDONLY);
    char buffer[1024];
    TELL(read(fd, buffer, sizeof buffer));
    long bytes = syscall(SYS_getdents64, fd, buffer, sizeof buffer);
    say("getdents64 gives entries %d", bytes > 0);
    while ((bytes = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
        ;
    say("getdents64 comes to the end %ld", bytes);
    TELL(lseek(fd, 0, SEEK_SET));
    off64_t offset = -1;
    say("getdirentries gives entries %d", getdirentries64(fd, buffer, sizeof buffer, &offset) > 0);
    say("offset before %lld", (long long)offset);
    close(fd);
}

static void changes(void)
{
    DIR *dir = opendir(in("sub"));
    list("before", dir);
    put("sub/new", "");
    rename(in("sub/one"), in("sub/uno"));
    rewinddir(dir);
    list("after", dir);
    struct dirent *entry, room, *out;
    rewinddir(dir);
    int count = 0;
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    while (readdir_r(dir, &room, &out) == 0 && out != NULL)
        count++;
    say("readdir_r: %d", count);
    rewinddir(dir);
    int seen = 0;
    while ((entry = readdir(dir)) != NULL)
        seen += strcmp(entry->d_name, "uno") == 0;
    say("renamed entry seen %d", seen);
    closedir(dir);
    dir = opendir(in("gone"));
    rmdir(in("gone"));
    errno = 0;
    int left = 0;
    while (readdir(dir) != NULL)
        left++;
    say("removed directory lists %d, errno %s", left, errno ? strerrorname_np(errno) : "0");
    closedir(dir);
}

int main(int argc, char **argv)
{
    begin(argc, argv, "dirs");
    put("file", "text");
    mkdir(in("sub"), 0755);
    mkdir(in("gone"), 0755);
    put("sub/one", "1");
    put("sub/.hidden", "2");
    mkdir(in("sub/deep"), 0700);
    symlink("file", in("link"));
    symlink("loop", in("loop"));
    mkfifo(in("pipe"), 0600);
    char longest[256];
    memset(longest, 'n', 255);
    longest[255] = 0;
    put(longest, "");
    DIR *dir = opendir(base);
    list("directory", dir);
    TELL(closedir(dir));
    inode_numbers();
    descriptors();
    changes();
    places();
    struct dirent **entries;
    int count = scandir(in("sub"), &entries, no_dots, alphasort);
    say("scandir %d", count);
    for (int i = 0; i < count; i++) {
        say("  %s", entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    int fd = open(base, O_RDONLY | O_DIRECTORY);
    count = scandirat(fd, "sub", &entries, NULL, versionsort);
    say("scandirat %d, first %s", count, entries[0]->d_name);
    TELL(scandir(in("missing"), &entries, NULL, NULL));
    TELL(scandir(in("file"), &entries, NULL, NULL));
    TELL(chdir(in("sub")));
    dir = opendir(".");
    list("working directory", dir);
    closedir(dir);
    dir = opendir("../sub/deep/..");
    list("roundabout", dir);
    closedir(dir);
    dir = opendir("/usr/include/linux/..");
    say("outside opens %d", dir != NULL);
    closedir(dir);
    return 0;
}
