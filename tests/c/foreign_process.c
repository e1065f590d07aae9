/* What signals, threads and the loader see of the library while a program does not touch the mount. Each case prints
 * one line; `all` runs them all, each in a process of its own that has ten seconds. */
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

static const struct { const char *name; void (*run)(void); } cases[] = {
    {"loader_errors", loader_errors},
};

int main(int argc, char **argv) {
    (void)argc;
    if (chdir(argv[1])) return 1;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            alarm(10);
            cases[i].run();
            fflush(stdout);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("%s ended with %x\n", cases[i].name, status);
    }
    return 0;
}
