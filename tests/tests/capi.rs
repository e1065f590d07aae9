//! The C library: everything that its header promises, with real programs.

use bivouac_testing::eventually;
use bivouac_tests::library::{library, linked, snippets};
use bivouac_tests::{Site, finish};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name)
}

/// Two deployments: of one server, and of four with two copies.
fn two(site: &Site) -> (String, String) {
    (site.up(1), site.up_with(4, &["--replicas", "2"]))
}

#[test]
fn the_library_does_what_its_header_promises_and_leaves_nothing_in_memory() {
    let site = Site::new("capi");
    let (one, other) = two(&site);
    for (compiler, name) in
        [("cc -std=c99 -pedantic", "plain"), ("cc -fsanitize=address,undefined", "checked")]
    {
        let program = site.path(name);
        linked(compiler, &source("library.c"), &program);
        for deployments in [&[&one, &one][..], &[&one, &other], &[&other, &other]] {
            let mut command = Command::new(&program);
            let given = if deployments[0] == deployments[1] { &deployments[..1] } else { deployments };
            assert_eq!(
                finish({
                    command.args(given);
                    command
                })
                .ok(),
                "all as promised\n",
                "{name}, {given:?}"
            );
        }
    }
    // The check itself: what is not given back is found.
    let forgetful = site.path("forgetful.c");
    let text = "#include <bivouac.h>\nstatic bivouac_t *d;\n\
        int main(int c, char **v) { int bad = c < 2 || bivouac_attach(v[1], &d); d = 0; return bad; }\n";
    std::fs::write(&forgetful, text).expect("written");
    linked("cc -fsanitize=address", &forgetful, &site.path("forgetful"));
    let mut command = Command::new(site.path("forgetful"));
    command.arg(&one);
    assert!(finish(command).err.contains("LeakSanitizer"));
}

#[test]
fn a_program_with_the_preload_library_has_one_client_for_both() {
    let site = Site::new("capi-both");
    let (one, other) = two(&site);
    let program = site.path("program");
    linked("cc", &source("library.c"), &program);
    let program = program.display().to_string();
    site.bivouac(["exec", &one, "--", &program, &one]).ok();
    site.bivouac(["exec", &one, "--", &program, &one, &other]).ok();
    let both = site.path("both.c");
    let text = r#"
#include <bivouac.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int tables(void) {
    char line[4096];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        count += strstr(line, "bivouac-opens") != NULL;
    fclose(maps);
    return count;
}
int main(int argc, char **argv) {
    bivouac_t *first, *second;
    bivouac_file_t *file;
    char text[8] = "";
    int fd = open("/bivouac/seen", O_RDWR | O_CREAT, 0644);
    if (argc < 2 || fd < 0 || write(fd, "by both", 7) != 7)
        return 1;
    if (bivouac_attach(argv[1], &first) || bivouac_attach(NULL, &second))
        return 2;
    if (bivouac_open(second, "seen", O_RDONLY, 0, &file) || bivouac_pread(file, text, 7, 0) != 7 || strcmp(text, "by both"))
        return 3;
    if (tables() != 1)
        return 4;
    bivouac_detach(first);
    bivouac_detach(second);
    return pread(fd, text, 7, 0) == 7 && unlink("/bivouac/seen") == 0 ? 0 : 5;
}
"#;
    std::fs::write(&both, text).expect("written");
    linked("cc", &both, &site.path("both"));
    let both = site.path("both").display().to_string();
    site.bivouac(["exec", &one, "--", &both, &one]).ok();
}

#[test]
fn what_is_shown_in_the_manual_works() {
    let site = Site::new("capi-manual");
    let pieces = [("c", "cc", "hello.c", "5 bytes: hello\n"), ("cpp", "c++", "results.cpp", ": 1 servers\n")];
    for (language, compiler, name, says) in pieces {
        let shown = snippets("c-api.md", language);
        assert_eq!(shown.len(), 1, "{language}");
        std::fs::write(site.path(name), &shown[0]).expect("written");
        linked(compiler, &site.path(name), &site.path(language));
        let program = site.path(language).display().to_string();
        let said = site.bivouac(["run", "--", &program]).ok();
        assert!(said.ends_with(says), "{said}");
    }
}

#[test]
fn header_versions_and_symbols_name_the_same_functions() {
    let library = library();
    let functions = |text: &str, is_function: fn(&str) -> bool| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
        words
            .filter(|word| word.starts_with("bivouac_") && is_function(word))
            .map(|word| word.split('(').next().unwrap_or_default().to_owned())
            .collect()
    };
    let header = std::fs::read_to_string(library.join("include/bivouac.h")).expect("a header");
    // Comments name functions, too, with nothing behind them or with `()`.
    let code: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let declared = functions(&code, |word| word.contains('('));
    let map = std::fs::read_to_string(source("../../crates/capi/bivouac.map")).expect("a map");
    let versions = functions(map.split_once("*/").expect("a comment").1, |_| true);
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(library.join("lib/libbivouac.so.1"));
    let listed = finish(nm).ok();
    let symbols: BTreeSet<String> = listed
        .lines()
        .filter_map(|line| line.split(' ').nth(2)?.strip_suffix("@@BIVOUAC_1"))
        .map(str::to_owned)
        .collect();
    assert!(declared.len() > 40);
    assert_eq!(declared, versions);
    assert_eq!(declared, symbols);
}

/// A program may have closed its standard streams, and go on to write into them: no descriptor of the library's may be there. And
/// it may have room for few descriptors: then it is told so, and goes on.
#[test]
fn programs_without_standard_streams_or_with_few_descriptors_damage_nothing() {
    let site = Site::new("capi-descriptors");
    let name = site.up(2);
    let text = r#"
#include <bivouac.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
/* Arguments: DEPLOYMENT open|closed. Ends with 10 if there was no room for 100 open files, and all else went well. */
int main(int argc, char **argv) {
    static char content[8192], found[8192];
    static bivouac_file_t *files[100];
    bivouac_t *deployment;
    int opened = 0, failed = 0;
    int closed = argc == 3 && strcmp(argv[2], "closed") == 0;
    for (int fd = 0; fd < 3 && closed; fd++)
        close(fd);
    if (bivouac_attach(argv[1], &deployment))
        return 1;
    memset(content, 'x', sizeof content);
    for (; opened < 100; opened++) {
        char name[] = {'/', (char)('0' + opened / 10), (char)('0' + opened % 10), 0};
        for (int fd = 0; fd < 3 && closed; fd++)
            if (write(fd, "damage", 6) != -1 || errno != EBADF)
                return 2;
        failed = bivouac_open(deployment, name, O_RDWR | O_CREAT, 0644, &files[opened]);
        if (failed)
            break;
    }
    if (failed && failed != -EMFILE)
        return 3;
    /* With half of them closed, there is room again. */
    for (int most = opened; opened > most / 2;)
        bivouac_close(files[--opened]);
    for (int i = 0; i < opened; i++)
        if (bivouac_pwrite(files[i], content, sizeof content, 0) != sizeof content ||
            bivouac_pread(files[i], found, sizeof found, 0) != sizeof found || memcmp(content, found, sizeof found))
            return 4;
    bivouac_detach(deployment);
    return failed ? 10 : 0;
}
"#;
    let (source, program) = (site.path("program.c"), site.path("program"));
    std::fs::write(&source, text).expect("written");
    linked("cc", &source, &program);
    let run = |limit: &str, streams: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -n {limit}; exec {} {name} {streams}", program.display()));
        finish(shell).code
    };
    assert_eq!(run("1000", "open"), 0);
    assert_eq!(run("1000", "closed"), 0);
    for limit in ["24", "60"] {
        assert_eq!((run(limit, "open"), run(limit, "closed")), (10, 10), "{limit}");
    }
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_program_that_is_killed_leaves_nothing_open_or_locked() {
    let site = Site::new("capi-killed");
    let name = site.up(2);
    let text = r#"
#include <bivouac.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    bivouac_t *d;
    bivouac_file_t *file;
    if (argc < 2 || bivouac_attach(argv[1], &d) || bivouac_open(d, "held", O_RDWR | O_CREAT, 0600, &file))
        return 1;
    if (bivouac_pwrite(file, "kept", 4, 100000) != 4 || bivouac_lock(file, BIVOUAC_EXCLUSIVE, 0, 0, argc > 2))
        return 2;
    puts("held");
    fflush(stdout);
    if (argc <= 2)
        pause();
    if (bivouac_unlink(d, "held"))
        return 3;
    bivouac_detach(d);
    return 0;
}
"#;
    std::fs::write(site.path("held.c"), text).expect("written");
    linked("cc", &site.path("held.c"), &site.path("held"));
    let mut held = Command::new(site.path("held")).arg(&name).stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    BufReader::new(held.stdout.take().expect("a pipe")).read_line(&mut line).expect("read");
    assert_eq!(line, "held\n");
    let opens = || site.total(&name, "opens");
    assert_eq!(opens(), 1);
    held.kill().expect("killed");
    held.wait().expect("ended");
    // The next one waits for the lock.
    let mut next = Command::new(site.path("held"));
    next.args([&name, "next"]);
    assert_eq!(finish(next).ok(), "held\n");
    eventually("both are closed", || opens() == 0);
}
