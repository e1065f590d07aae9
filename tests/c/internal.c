// What libc does with files inside itself, where no symbol is gone through: each line is escaped by a library that replaces
// symbols only. Arguments: a directory to work in, and one with libraries made for this (see internal_library.c).
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <iconv.h>
#include <langinfo.h>
#include <libintl.h>
#include <limits.h>
#include <locale.h>
#include <mntent.h>
#include <nl_types.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utmpx.h>
#include <wordexp.h>

static char in_directory[8][PATH_MAX];

// The path of a name in the directory; the last eight stay valid.
static const char *at(const char *directory, const char *name) {
    static unsigned next;
    char *path = in_directory[next++ % 8];
    snprintf(path, PATH_MAX, "%s/%s", directory, name);
    return path;
}

static void put(const char *path, const void *bytes, size_t count) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, bytes, count) != (ssize_t)count || close(fd) != 0)
        printf("cannot write: %s\n", strerror(errno));
}

static void copy(const char *from, const char *to) {
    static char bytes[4 << 20];
    int fd = open(from, O_RDONLY);
    ssize_t count = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
    if (count > 0)
        put(to, bytes, (size_t)count);
    if (fd >= 0)
        close(fd);
}

static void message_catalogue(const char *directory) {
    char source[60], made[60];
    snprintf(source, sizeof source, "/tmp/bivouac-internal-%d.msg", getpid());
    snprintf(made, sizeof made, "/tmp/bivouac-internal-%d.cat", getpid());
    put(source, "$set 1\n7 a message\n", 18);
    char command[200];
    snprintf(command, sizeof command, "gencat %s %s", made, source);
    if (system(command) != 0)
        printf("no gencat\n");
    copy(made, at(directory, "messages.cat"));
    unlink(source);
    unlink(made);
    nl_catd catalogue = catopen(at(directory, "messages.cat"), 0);
    printf("catgets: %s\n", catalogue == (nl_catd)-1 ? "not found" : catgets(catalogue, 1, 7, "no message"));
}

static void translation(const char *directory) {
    struct {
        uint32_t head[7], original[2][2], translated[2][2];
        char text[64];
    } file = {{0x950412de, 0, 2, 28, 44, 0, 60}, {{0, 60}, {5, 61}}, {{29, 67}, {5, 97}}, {0}};
    memcpy(file.text + 1, "hello", 5);
    memcpy(file.text + 7, "Content-Type: text/plain; ch\n", 29);
    memcpy(file.text + 37, "salut", 5);
    mkdir(at(directory, "xx"), 0755);
    mkdir(at(directory, "xx/LC_MESSAGES"), 0755);
    put(at(directory, "xx/LC_MESSAGES/words.mo"), &file, sizeof file);
    setenv("LANGUAGE", "xx", 1);
    setlocale(LC_MESSAGES, "C.UTF-8");
    bindtextdomain("words", directory);
    printf("gettext: %s\n", dgettext("words", "hello"));
}

static void own_locale(const char *directory) {
    const char *name[] = {"LC_CTYPE", "LC_NUMERIC", "LC_TIME", "LC_IDENTIFICATION"};
    mkdir(at(directory, "loc"), 0755);
    mkdir(at(directory, "loc/xx_XX.utf8"), 0755);
    for (int i = 0; i < 4; i++) {
        char to[100];
        snprintf(to, sizeof to, "loc/xx_XX.utf8/%s", name[i]);
        copy(at("/usr/lib/locale/C.utf8", name[i]), at(directory, to));
    }
    setenv("LOCPATH", at(directory, "loc"), 1);
    const char *known = setlocale(LC_CTYPE, "xx_XX.utf8");
    printf("setlocale: %s %s\n", known ? known : "not found", nl_langinfo(CODESET));
    setlocale(LC_CTYPE, "C");
    unsetenv("LOCPATH");
}

static void time_zone(const char *directory) {
    unsigned char file[44 + 6 + 4] = "TZif";
    file[39] = 1, file[43] = 4;
    file[46] = 0x1c, file[47] = 0x20;
    memcpy(file + 50, "BIV", 4);
    put(at(directory, "zone"), file, sizeof file);
    char variable[PATH_MAX + 1];
    snprintf(variable, sizeof variable, ":%s", at(directory, "zone"));
    setenv("TZ", variable, 1);
    time_t begin = 0;
    char text[40];
    strftime(text, sizeof text, "%H:%M %Z", localtime(&begin));
    printf("localtime: %s\n", text);
    unsetenv("TZ");
}

static void tables(const char *directory) {
    put(at(directory, "mtab"), "dev /place type opts 1 2\n", 25);
    FILE *stream = setmntent(at(directory, "mtab"), "r");
    struct mntent *entry = stream ? getmntent(stream) : NULL;
    printf("getmntent: %s\n", entry ? entry->mnt_dir : "not found");
    if (stream)
        endmntent(stream);
    put(at(directory, "masks"), "%Y on %d of %m\n", 15);
    setenv("DATEMSK", at(directory, "masks"), 1);
    struct tm *day = getdate("1999 on 23 of 5");
    printf("getdate: %d, %d\n", day ? day->tm_year : -1, day ? 0 : getdate_err);
    put(at(directory, "logins"), "", 0);
    utmpxname(at(directory, "logins"));
    struct utmpx login = {.ut_type = USER_PROCESS, .ut_pid = 77, .ut_id = "ab", .ut_line = "tty9", .ut_user = "me"};
    setutxent();
    struct utmpx *put_there = pututxline(&login);
    setutxent();
    struct utmpx *read_back = getutxent();
    printf("utmpx: %s %s\n", put_there ? "written" : "not written", read_back ? read_back->ut_user : "not found");
    endutxent();
    struct stat about = {0};
    stat(at(directory, "logins"), &about);
    printf("its size: %ld\n", (long)about.st_size / (long)sizeof login);
    printf("ftok: %s\n", ftok(at(directory, "logins"), 5) == -1 ? strerror(errno) : "a key");
}

static void expansion(const char *directory) {
    put(at(directory, "one.txt"), "1", 1);
    put(at(directory, "two.txt"), "2", 1);
    wordexp_t words;
    int code = wordexp(at(directory, "*.txt"), &words, 0);
    printf("wordexp: %d", code);
    for (size_t i = 0; code == 0 && i < words.we_wordc; i++)
        printf(" %s", strrchr(words.we_wordv[i], '/'));
    printf("\n");
}

static void libraries(const char *directory, const char *made) {
    iconv_t converter = iconv_open("UTF-8", "BIVOUAC");
    printf("iconv_open: %s\n", converter == (iconv_t)-1 ? strerror(errno) : "found");
    // Its library lies in the directory "needed", which it knows from when it was linked.
    mkdir(at(directory, "needed"), 0755);
    copy(at(made, "libneeded.so"), at(directory, "needed/libneeded.so"));
    void *library = dlopen(at(made, "libneeding.so"), RTLD_NOW);
    int (*answer)(void) = library ? (int (*)(void))dlsym(library, "answer") : NULL;
    printf("a library that needs another: %d\n", answer ? answer() : -1);
}

// Functions taken from libc itself, past whatever was loaded before it: so do Python's ctypes and its like.
static void by_handle(const char *directory) {
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
#define TAKE(name) __typeof__(name) *my_##name = (__typeof__(name) *)dlsym(libc, #name)
    TAKE(open);
    TAKE(read);
    TAKE(write);
    TAKE(lseek);
    TAKE(close);
    TAKE(stat);
    TAKE(rename);
    TAKE(unlink);
    TAKE(opendir);
    TAKE(readdir);
    TAKE(closedir);
    TAKE(fopen);
    TAKE(fprintf);
    TAKE(fgets);
    TAKE(fclose);
    TAKE(dup2);
    TAKE(ftruncate);
    TAKE(realpath);
    TAKE(chdir);
    TAKE(getcwd);
    char text[PATH_MAX] = "";
    int fd = my_open(at(directory, "raw"), O_RDWR | O_CREAT, 0600);
    ssize_t wrote = my_write(fd, "some bytes", 10);
    off_t place = my_lseek(fd, -5, SEEK_CUR);
    ssize_t count = my_read(fd, text, sizeof text);
    printf("raw: %d, %zd %ld %zd %s\n", fd >= 0, wrote, (long)place, count, text);
    int copied = my_dup2(fd, 77);
    printf("cut through a duplicate: %d %d", copied, my_ftruncate(77, 4));
    my_close(fd);
    memset(text, 0, sizeof text);
    printf(" %zd %s", pread(77, text, sizeof text, 0), text);
    int closed = my_close(77), again = my_close(77);
    printf(" %d %d\n", closed, again);
    struct stat about = {0};
    int found = my_stat(at(directory, "raw"), &about);
    printf("stat: %d %ld %o\n", found, (long)about.st_size, about.st_mode);
    printf("rename: %d\n", my_rename(at(directory, "raw"), at(directory, "needed/moved")));
    FILE *stream = my_fopen(at(directory, "stream"), "w+");
    printf("stream: %d", stream != NULL);
    if (stream) {
        my_fprintf(stream, "line %d\nline %d\n", 1, 2);
        rewind(stream);
        printf(" %s", my_fgets(text, sizeof text, stream) ? text : "nothing\n");
        printf("closed: %d\n", my_fclose(stream));
    }
    DIR *listing = my_opendir(at(directory, "needed"));
    int entries = 0;
    for (struct dirent *entry; listing && (entry = my_readdir(listing));)
        entries += entry->d_name[0] != '.';
    printf("\nentries: %d\n", entries);
    if (listing)
        my_closedir(listing);
    printf("realpath: %d\n", my_realpath(at(directory, "needed/../needed/moved"), NULL) != NULL);
    printf("unlink: %d\n", my_unlink(at(directory, "needed/moved")));
    printf("chdir: %d", my_chdir(at(directory, "needed")));
    printf(" %s", my_getcwd(text, sizeof text) ? strrchr(text, '/') : "nowhere");
    printf(" %d\n", access("libneeded.so", R_OK));
    // A link from elsewhere.
    char link[60];
    snprintf(link, sizeof link, "/tmp/bivouac-internal-%d", getpid());
    symlink(at(directory, "stream"), link);
    fd = my_open(link, O_RDONLY);
    printf("through a link: %zd\n", my_read(fd, text, 6));
    my_close(fd);
    unlink(link);
    fd = my_open("/dev/null", O_RDONLY);
    printf("elsewhere: %d %zd %d\n", fd >= 0, my_read(fd, text, 5), my_close(fd));
}

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *directory = arguments[1];
    // Looked at once, by what comes first.
    mkdir(at(directory, "gconv"), 0755);
    copy(at(arguments[2], "converter.so"), at(directory, "gconv/converter.so"));
    put(at(directory, "gconv/gconv-modules"), "module BIVOUAC// INTERNAL converter 1\n", 38);
    setenv("GCONV_PATH", at(directory, "gconv"), 1);
    message_catalogue(directory);
    translation(directory);
    own_locale(directory);
    time_zone(directory);
    tables(directory);
    expansion(directory);
    libraries(directory, arguments[2]);
    by_handle(directory);
    return 0;
}
