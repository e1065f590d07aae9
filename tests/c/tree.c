/* Many names in one call: glob, ftw, nftw, realpath; temporary files. */
#include "transcript.h"
#include <dirent.h>
#include <ftw.h>
#include <glob.h>

static const char *const kinds[] = { "F", "D", "DNR", "NS", "SL", "DP", "SLN" };

static char lines[256][1024];
static int count;

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The order within a directory is the file system's own, so what a walk reports is sorted before it is told. */
static void flush_lines(const char *what, int result)
{
    say("%s: %d calls, result %d", what, count, result);
    qsort(lines, count, sizeof *lines, by_text);
    for (int i = 0; i < count; i++)
        say("  %s", lines[i]);
    count = 0;
}

static int note(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    snprintf(lines[count++], sizeof *lines, "%s %s base %s level %d size %lld", path, kinds[flag], path + ftw->base,
             ftw->level, S_ISREG(st->st_mode) && flag == FTW_F ? (long long)st->st_size : -1);
    return 0;
}

static int note_old(const char *path, const struct stat *st, int flag)
{
    (void)st;
    snprintf(lines[count++], sizeof *lines, "%s %s", path, kinds[flag]);
    return 0;
}

static int after_children(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if (flag == FTW_DP) {
        /* Everything below has been reported. */
        int seen = 0, length = strlen(path);
        for (int i = 0; i < count; i++)
            seen += strncmp(lines[i], path, length) == 0 && lines[i][length] == '/';
        snprintf(lines[count++], sizeof *lines, "%s after %d", path, seen);
    } else {
        snprintf(lines[count++], sizeof *lines, "%s %s", path, kinds[flag]);
    }
    return 0;
}

static int reachable(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    struct stat now;
    snprintf(lines[count++], sizeof *lines, "%s %s reachable %d", path, kinds[flag],
             lstat(ftw->level == 0 && flag != FTW_DP ? path + ftw->base : path + ftw->base, &now));
    return 0;
}

static int skip(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    note(path, st, flag, ftw);
    return strcmp(path + ftw->base, "deep") == 0 ? FTW_SKIP_SUBTREE : FTW_CONTINUE;
}

static int stop(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    return strcmp(path + ftw->base, "leaf") == 0 ? 42 : 0;
}

static int removing(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void globbing(const char *pattern, int flags)
{
    glob_t found;
    memset(&found, 0, sizeof found);
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s%s", pattern[0] == '/' || flags & GLOB_TILDE ? "" : base, pattern);
    if (pattern[0] == '/')
        snprintf(full, sizeof full, "%.2000s%.2000s", base, pattern);
    else
        snprintf(full, sizeof full, "%s", pattern);
    int code = glob(full, flags, NULL, &found);
    say("glob %s flags %x: %d, %zu paths, flags back %x", full, flags, code, code == 0 ? found.gl_pathc : 0,
        code == 0 ? found.gl_flags : 0);
    if (code == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            say("  %s", found.gl_pathv[i]);
    globfree(&found);
}

static void canonical(const char *path)
{
    char room[PATH_MAX];
    errno = 0;
    char *found = realpath(path, room);
    say("realpath %s: %s", path, found ? found : strerrorname_np(errno));
    found = canonicalize_file_name(path);
    say("  the same in fresh memory %d", found != NULL && strcmp(found, room) == 0);
    free(found);
}

static void temporary(void)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%.4000s/tempXXXXXX", base);
    int fd = mkstemp(path);
    say("mkstemp %d, name changed %d", fd >= 0, strcmp(path + strlen(path) - 6, "XXXXXX") != 0);
    fstat(fd, &st);
    say("mode %o flags %o", st.st_mode, fcntl(fd, F_GETFL) & O_ACCMODE);
    TELL(write(fd, "x", 1));
    close(fd);
    TELL(unlink(path));
    snprintf(path, sizeof path, "%.4000s/tempXXXXXX.c", base);
    fd = mkostemps(path, 2, O_APPEND | O_CLOEXEC);
    say("mkostemps %d, suffix %s, append %d, close on exec %d", fd >= 0, path + strlen(path) - 2,
        (fcntl(fd, F_GETFL) & O_APPEND) != 0, fcntl(fd, F_GETFD));
    close(fd);
    unlink(path);
    snprintf(path, sizeof path, "%.4000s/tempXXXXX", base);
    TELL(mkstemp(path));
    snprintf(path, sizeof path, "%.4000s/missing/tempXXXXXX", base);
    TELL(mkstemp(path));
    snprintf(path, sizeof path, "%.4000s/dirXXXXXX", base);
    POINTER(mkdtemp(path));
    stat(path, &st);
    say("mode %o", st.st_mode);
    TELL(rmdir(path));
    strcpy(path, "relativeXXXXXX");
    fd = mkstemp(path);
    say("relative %d, there %d", fd >= 0, access(path, F_OK));
    close(fd);
    unlink(path);
    setenv("TMPDIR", base, 1);
    char *name = tempnam(NULL, "prefix");
    say("tempnam in the directory %d", name != NULL && strncmp(name, base, strlen(base)) == 0);
    free(name);
}

int main(int argc, char **argv)
{
    begin(argc, argv, "tree");
    mkdir(in("a"), 0755);
    mkdir(in("a/deep"), 0755);
    mkdir(in("a/deep/deeper"), 0755);
    mkdir(in("b"), 0700);
    put("a/one", "1");
    put("a/two.c", "22");
    put("a/deep/leaf", "333");
    put("a/deep/deeper/leaf2", "4444");
    put("b/.hidden", "");
    put("b/three.c", "");
    symlink("../a/one", in("b/to-file"));
    symlink("../a", in("b/to-dir"));
    symlink("nowhere", in("b/dangling"));
    symlink("..", in("a/deep/up"));
    symlink("loop2", in("b/loop1"));
    symlink("loop1", in("b/loop2"));

    flush_lines("nftw physical", nftw(base, note, 8, FTW_PHYS));
    flush_lines("nftw with slashes", nftw(in("a///"), note, 8, FTW_PHYS));
    flush_lines("nftw depth first", nftw(in("a"), after_children, 8, FTW_PHYS | FTW_DEPTH));
    flush_lines("nftw changing directory", nftw(in("a"), reachable, 8, FTW_PHYS | FTW_CHDIR));
    flush_lines("nftw skipping", nftw(in("a"), skip, 8, FTW_PHYS | FTW_ACTIONRETVAL));
    flush_lines("nftw of a file", nftw(in("a/one"), note, 8, 0));
    flush_lines("nftw of a link", nftw(in("b/to-file"), note, 8, FTW_PHYS));
    flush_lines("nftw of a dangling link", nftw(in("b/dangling"), note, 8, 0));
    flush_lines("nftw stopping", nftw(base, stop, 8, FTW_PHYS));
    flush_lines("nftw following", nftw(in("a/deep/deeper"), note, 8, 0));
    flush_lines("ftw", ftw(in("a/deep/deeper"), note_old, 8));
    TELL(nftw(in("missing"), note, 8, FTW_PHYS));
    TELL(nftw("", note, 8, FTW_PHYS));
    /* Following links meets each directory once, by whichever name comes first. */
    int code = nftw(in("a"), note, 8, 0);
    say("nftw following a circle: %d calls, result %d", count, code);
    count = 0;

    globbing("/a/*", 0);
    globbing("/*/*.c", 0);
    globbing("/*/.h*", 0);
    globbing("/a/*/", GLOB_MARK);
    globbing("/{a,b}/*e*", GLOB_BRACE);
    globbing("/none*", 0);
    globbing("/none*", GLOB_NOCHECK);
    globbing("/a/one", 0);
    globbing("/b/dangling", 0);
    globbing("/b/*", GLOB_ONLYDIR);
    chdir(in("a"));
    globbing("*", GLOB_MARK);
    globbing("../b/t*", 0);
    globbing("deep/*/l*", GLOB_NOSORT);

    canonical(in("b/to-dir/deep/../one"));
    canonical(in("b/to-file"));
    canonical("deep/up/../b/./three.c");
    canonical("..");
    canonical(".");
    canonical(in("b/loop1"));
    canonical(in("b/dangling"));
    canonical(in("missing"));
    canonical(in("a/one/below"));
    canonical("/usr/../usr/bin/../include");
    canonical("");
    canonical(in("//a///deep//"));

    temporary();
    chdir("/");
    flush_lines("nftw removing", nftw(in("a"), removing, 8, FTW_PHYS | FTW_DEPTH));
    TELL(access(in("a"), F_OK));
    return 0;
}
