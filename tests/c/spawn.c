/* Starting programs: exec in all its forms, scripts, posix_spawn with file actions, system and popen; with programs,
 * interpreters, input and output in the directory. Started as `... --child WORDS`, it is the program being started. */
#include "transcript.h"
#include <spawn.h>

extern char **environ;
extern int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t *, const char *);
extern int posix_spawn_file_actions_addfchdir_np(posix_spawn_file_actions_t *, int);
extern int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *, int);

/* The program that is started: says what it was given, and copies its input to its output. */
static int child(int argc, char **argv)
{
    char line[4096];
    /* The name of the program and its directory are the parent's affair. */
    for (int i = 2; i < argc; i++)
        printf("[%s]", argv[i]);
    const char *value = getenv("SPAWN_TEST");
    printf(" env %s", value ? value : "none");
    int input = open("relative", O_RDONLY);
    printf(" relative %s", input >= 0 ? "there" : "missing");
    if (input >= 0)
        close(input);
    if (argc > 2 && strcmp(argv[2], "cat") == 0)
        while (fgets(line, sizeof line, stdin) != NULL)
            printf(" <%s>", strtok(line, "\n"));
    if (argc > 2 && strcmp(argv[2], "open") == 0)
        for (int fd = 3; fd < 30; fd++)
            if (fcntl(fd, F_GETFD) >= 0)
                printf(" %d", fd);
    printf("\n");
    return argc > 3 ? atoi(argv[3]) : 0;
}

static void copy_program(const char *name, mode_t mode)
{
    char buffer[65536];
    int from = open("/proc/self/exe", O_RDONLY), to = open(in(name), O_WRONLY | O_CREAT | O_TRUNC, mode);
    ssize_t count;
    while ((count = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, count) != count)
            say("cannot copy the program");
    close(from);
    close(to);
    chmod(in(name), mode);
}

static void script(const char *name, const char *text, mode_t mode)
{
    put(name, text);
    chmod(in(name), mode);
}

/* Runs a body in a child with its output in DIR/out; the body returns only if exec failed. */
static void run(const char *what, void (*body)(void))
{
    unlink(in("out"));
    pid_t pid = fork();
    if (pid == 0) {
        int out = open(in("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(out, 1);
        close(out);
        body();
        dprintf(1, "failed: %s", strerrorname_np(errno));
        _exit(77);
    }
    ended(what, pid);
    show("out");
}

static char program[PATH_MAX];
static char *arguments[] = { (char *)"name", (char *)"--child", (char *)"say", (char *)"3", NULL };
static char *environment[] = { (char *)"SPAWN_TEST=given", [31] = NULL };

/* What the library below needs to be there in the child, where there is one. */
static void fill_environment(void)
{
    int next = 1;
    for (char **entry = environ; *entry != NULL && next < 31; entry++)
        if (strncmp(*entry, "LD_PRELOAD=", 11) == 0 || strncmp(*entry, "BIVOUAC_", 8) == 0 || strncmp(*entry, "SCRATCH_", 8) == 0)
            environment[next++] = *entry;
}

static void by_execve(void) { execve(program, arguments, environment); }
static void by_execv(void) { execv(program, arguments); }
static void by_execl(void) { execl(program, "name", "--child", "one", "2", "3", "four", "five", "six", "seven", (char *)NULL); }
static void by_execle(void) { execle(program, "name", "--child", "one", "4", (char *)NULL, environment); }
static void by_execlp(void) { execlp("program", "name", "--child", "one", "5", (char *)NULL); }
static void by_execvp(void) { execvp("program", arguments); }
static void by_execvpe(void) { execvpe("program", arguments, environment); }
static void by_fexecve(void) { fexecve(open(program, O_RDONLY | O_CLOEXEC), arguments, environ); }
static void by_execveat(void) { execveat(open(base, O_RDONLY | O_DIRECTORY), "program", arguments, environ, 0); }
static void by_relative(void) { if (chdir(in("work")) == 0) execv("../program", arguments); }
static void by_symlink(void) { execv(in("link"), arguments); }
static void missing(void) { execv(in("missing"), arguments); }
static void not_executable(void) { execv(in("data"), arguments); }
static void directory(void) { execv(base, arguments); }
static void below_file(void) { execv(in("data/x"), arguments); }
static void no_format(void) { execv(in("text"), arguments); }
static void no_format_searched(void) { execlp("text", "text", "a", "b", (char *)NULL); }
static void shell_script(void) { execl(in("script"), "script", "a", "b c", (char *)NULL); }
static void own_interpreter(void) { execl(in("interpreted"), "interpreted", "4", "b", (char *)NULL); }
static void env_interpreter(void) { execl(in("by-env"), "by-env", "5", (char *)NULL); }
static void nested(void) { execl(in("nested"), "nested", "x", (char *)NULL); }
static void endless(void) { execl(in("endless"), "endless", "x", (char *)NULL); }
static void no_interpreter(void) { execl(in("empty-line"), "empty-line", (char *)NULL); }
static void missing_interpreter(void) { execl(in("missing-line"), "missing-line", (char *)NULL); }
static void input(void)
{
    int fd = open(in("data"), O_RDONLY);
    dup2(fd, 0);
    execl(program, "name", "--child", "cat", (char *)NULL);
}
static void vforked(void)
{
    static int out;
    out = open(in("out"), O_WRONLY | O_APPEND);
    pid_t pid = vfork();
    if (pid == 0) {
        dup2(out, 1);
        close(out);
        execv(program, arguments);
        _exit(78);
    }
    int status;
    waitpid(pid, &status, 0);
    /* The parent's own descriptors are as they were. */
    dprintf(out, "vfork child %d\n", WEXITSTATUS(status));
    _exit(0);
}
static void shell(void)
{
    char command[3 * PATH_MAX];
    snprintf(command, sizeof command, "cd '%s' && ./program --child from system <data && cat < data | wc -l", base);
    int status = system(command);
    fflush(stdout);
    dprintf(1, "status %d\n", WEXITSTATUS(status));
    snprintf(command, sizeof command, "cat '%s/data'", base);
    FILE *pipe = popen(command, "r");
    char line[100];
    while (fgets(line, sizeof line, pipe) != NULL)
        dprintf(1, "popen: %s", line);
    dprintf(1, "pclose %d\n", pclose(pipe));
    _exit(0);
}

static void spawn(const char *what, const char *path, posix_spawn_file_actions_t *actions, int search, char **argv)
{
    pid_t pid;
    int code = (search ? posix_spawnp : posix_spawn)(&pid, path, actions, NULL, argv, environ);
    if (code != 0) {
        say("%s: %s", what, strerrorname_np(code));
        return;
    }
    ended(what, pid);
    show("spawned");
}

static void spawning(void)
{
    char *cat[] = { (char *)"name", (char *)"--child", (char *)"cat", NULL };
    char *list[] = { (char *)"name", (char *)"--child", (char *)"open", NULL };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, in("data"), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, in("spawned"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    spawn("spawn", program, &actions, 0, cat);
    spawn("spawn of /bin/cat", "/bin/cat", &actions, 0, (char *[]) { (char *)"cat", NULL });
    spawn("spawnp", "program", &actions, 1, cat);
    spawn("spawnp of cat", "cat", &actions, 1, (char *[]) { (char *)"cat", NULL });
    spawn("spawn of a script", in("script"), &actions, 0, arguments);
    spawn("spawn of an interpreted one", in("interpreted"), &actions, 0, arguments);
    spawn("spawn of nothing", in("missing"), &actions, 0, cat);
    spawn("spawn of a text", in("data"), &actions, 0, cat);
    spawn("spawnp of nothing", "no-such-program-here", &actions, 1, cat);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    int extra = dup2(1, 20);
    spawn("spawn, closing the rest", program, &actions, 0, list);
    close(extra);
    posix_spawn_file_actions_destroy(&actions);

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, in("work"));
    posix_spawn_file_actions_addopen(&actions, 1, "../spawned", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 7, "relative", O_RDONLY, 0);
    posix_spawn_file_actions_addclose(&actions, 0);
    spawn("spawn elsewhere", program, &actions, 0, list);
    spawn("spawn by a relative path", "../program", &actions, 0, list);
    spawn("spawn of a shell elsewhere", "/bin/sh", &actions, 0,
          (char *[]) { (char *)"sh", (char *)"-c", (char *)"cat relative; pwd | sed 's,.*/,,'", NULL });
    posix_spawn_file_actions_destroy(&actions);

    posix_spawn_file_actions_init(&actions);
    int fd = open(in("work"), O_RDONLY | O_DIRECTORY);
    posix_spawn_file_actions_addfchdir_np(&actions, fd);
    posix_spawn_file_actions_addopen(&actions, 1, in("spawned"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    spawn("spawn by descriptor", program, &actions, 0, arguments);
    posix_spawn_file_actions_addopen(&actions, 5, in("missing"), O_RDONLY, 0);
    spawn("spawn with a missing file", program, &actions, 0, arguments);
    posix_spawn_file_actions_destroy(&actions);
    close(fd);
    say("descriptors left: %d", fcntl(3, F_GETFD) < 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--child") == 0)
        return child(argc, argv);
    if (argc > 3 && strcmp(argv[1], "-u") == 0 && strcmp(argv[2], "--child") == 0)
        return child(argc - 1, argv + 1);
    /* As an interpreter: `#!.../program --child` passes the script's path and the arguments behind it. */
    begin(argc, argv, "spawn");
    unsetenv("SPAWN_TEST");
    fill_environment();
    snprintf(program, sizeof program, "%.4000s/program", base);
    copy_program("program", 0755);
    put("data", "line one\nline two\n");
    mkdir(in("work"), 0755);
    put("work/relative", "here\n");
    symlink("program", in("link"));
    script("script", "#!/bin/sh\necho \"script $# $1 $2\"; cat \"$0\" | head -1\n", 0755);
    script("text", "echo \"text $# $1 $2\"\n", 0755);
    char line[3 * PATH_MAX];
    snprintf(line, sizeof line, "#! %s --child \n", program);
    script("interpreted", line, 0755);
    script("by-env", "#!/usr/bin/env -S program --child\n", 0755);
    snprintf(line, sizeof line, "#!%s/interpreted\n", base);
    script("nested", line, 0755);
    snprintf(line, sizeof line, "#!%s/endless\n", base);
    script("endless", line, 0755);
    script("empty-line", "#!  \necho\n", 0755);
    script("missing-line", "#!/no/such/interpreter\n", 0755);
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "/nowhere:%s:%s", base, getenv("PATH"));
    setenv("PATH", path, 1);

    run("execve", by_execve);
    run("execv", by_execv);
    run("execl", by_execl);
    run("execle", by_execle);
    run("execlp", by_execlp);
    run("execvp", by_execvp);
    run("execvpe", by_execvpe);
    run("fexecve", by_fexecve);
    run("execveat", by_execveat);
    run("relative path", by_relative);
    run("symbolic link", by_symlink);
    run("missing", missing);
    run("not executable", not_executable);
    run("directory", directory);
    run("below a file", below_file);
    run("no format", no_format);
    run("no format, searched", no_format_searched);
    run("script", shell_script);
    run("own interpreter", own_interpreter);
    run("interpreter by env", env_interpreter);
    run("nested interpreters", nested);
    run("endless interpreters", endless);
    run("no interpreter", no_interpreter);
    run("missing interpreter", missing_interpreter);
    run("input", input);
    run("vfork", vforked);
    run("system and popen", shell);
    spawning();
    return 0;
}
