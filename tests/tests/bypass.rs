//! Programs that the preload library does not reach: they are warned of, and land nothing beside the file
//! system.

use bivouac_tests::{Finished, Site, bivouac, finish, skipped_without_root};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A program without a loader that writes `1` to each file that it is given, and makes each name that ends
/// with a slash.
fn writer(site: &Site) -> String {
    let (source, program) = (site.path("writer.c"), site.path("writer"));
    let text = r#"
        #include <fcntl.h>
        #include <stdio.h>
        #include <string.h>
        #include <sys/stat.h>
        #include <unistd.h>
        int main(int count, char **names) {
            int failed = 0;
            for (int i = 1; i < count; i++) {
                if (names[i][strlen(names[i]) - 1] == '/') {
                    if (mkdir(names[i], 0755) != 0) perror(names[i]), failed = 1;
                    continue;
                }
                int file = open(names[i], O_CREAT | O_WRONLY, 0644);
                if (file < 0 || write(file, "1", 1) != 1) perror(names[i]), failed = 1;
            }
            return failed;
        }
    "#;
    std::fs::write(&source, text).expect("written");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-static", "-o"]).arg(&program).arg(&source);
    finish(compiler).ok();
    program.to_string_lossy().into_owned()
}

const SAYS: &str = "is linked statically";

fn warnings(said: &Finished) -> usize {
    said.err.matches("so that the preload library is not loaded into it").count()
}

fn preload(site: &Site, name: &str, words: &[&str]) -> Finished {
    let mut command = site.command(["exec", name, "--access", "preload", "--"]);
    command.args(words).current_dir("/");
    finish(command)
}

#[test]
fn a_program_without_a_loader_is_warned_of_once_however_it_is_started() {
    let site = Site::new("bypass-warned");
    let writer = writer(&site);
    let starts = [
        "\"$0\"; \"$0\"",
        "python3 -c 'import os, sys; os.execv(sys.argv[1], sys.argv[1:])' \"$0\"",
        "python3 -c 'import os, sys; os.posix_spawn(sys.argv[1], sys.argv[1:], {}); os.wait()' \"$0\"",
        "python3 -c 'import os, sys; os.execve(os.open(sys.argv[1], os.O_RDONLY), sys.argv[1:], os.environ)' \"$0\"",
        "PATH=$(dirname \"$0\"):$PATH; env writer; perl -e 'system { \"writer\" } \"writer\"'",
        "printf '#!%s\\n' \"$0\" > ${0%/*}/script; chmod +x ${0%/*}/script; ${0%/*}/script || true",
        "cp \"$0\" /bivouac/inside && /bivouac/inside",
    ];
    for start in starts {
        // Another deployment has not heard of it.
        let name = site.up(1);
        let said = preload(&site, &name, &["bash", "-c", start, &writer]);
        assert!(warnings(&said) == 1 && said.err.contains(SAYS), "{start}: {said:?}");
        assert!(said.err.contains(&format!("bivouac exec {name} --fuse")), "{said:?}");
        site.bivouac(["down", &name]).ok();
        assert!(!bivouac_tests::run_dir(&name).exists());
    }
    // The command itself.
    let name = site.up(1);
    let said = preload(&site, &name, &[&writer]);
    assert!(warnings(&said) == 1, "{said:?}");
    assert_eq!(warnings(&preload(&site, &name, &["bash", "-c", "\"$0\"; true", &writer])), 0);
    assert_eq!(warnings(&preload(&site, &name, &["bash", "-c", "ls / | cat; /bin/true"])), 0);
}

#[test]
fn a_program_that_changes_its_user_is_warned_of() {
    if skipped_without_root("making files of other users") {
        return;
    }
    let site = Site::new("bypass-user");
    let program = site.path("true-as-daemon");
    std::fs::copy("/bin/true", &program).expect("a copy");
    std::os::unix::fs::chown(&program, Some(1), Some(1)).expect("root may");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).expect("set");
    let name = site.up(1);
    let said = preload(&site, &name, &["bash", "-c", "\"$0\"; \"$0\"", &program.to_string_lossy()]);
    assert!(warnings(&said) == 1 && said.err.contains("changes its user"), "{said:?}");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("set");
    std::fs::rename(&program, site.path("true-as-anybody")).expect("renamed");
    let plain = site.path("true-as-anybody");
    assert_eq!(warnings(&preload(&site, &name, &["bash", "-c", "\"$0\"", &plain.to_string_lossy()])), 0);
}

#[test]
fn what_bypasses_the_library_makes_nothing_at_the_mount_path() {
    if skipped_without_root("a mount namespace without a user namespace") {
        return;
    }
    let site = Site::new("bypass-shut");
    let writer = writer(&site);
    let real = site.path("real");
    std::fs::create_dir(&real).expect("a directory");
    for (mount, exists) in [("/bivouac".to_owned(), false), (real.to_string_lossy().into_owned(), true)] {
        assert_eq!(Path::new(&mount).exists(), exists, "{mount}");
        let name = site.up_with(1, &["--mount", &mount]);
        let script = "echo in > $BIVOUAC_MOUNT/in; \"$0\" $BIVOUAC_MOUNT/ 2>&1; \"$0\" $BIVOUAC_MOUNT/f 2>&1; cat $BIVOUAC_MOUNT/in";
        let said = preload(&site, &name, &["bash", "-c", script, &writer]);
        let out = said.ok();
        assert!(out.contains("Read-only file system") || out.contains("File exists"), "{out}");
        assert!(out.matches(&mount).count() >= 2 && out.ends_with("in\n"), "{out}");
        // Nested, and with mounts inside.
        let more = format!(
            "bivouac={}; name={name}; cd /tmp; for access in preload fuse both; do \
             $bivouac exec $name --access $access -- sh -c 'echo x >> $BIVOUAC_MOUNT/in; \"$0\" $BIVOUAC_MOUNT/by-$1 2>/dev/null; pwd' $0 $access; \
             done; cat $BIVOUAC_MOUNT/in; ls $BIVOUAC_MOUNT; mkdir {1}/m-${{#BIVOUAC_MOUNT}}; \
             $bivouac mount $name {1}/m-${{#BIVOUAC_MOUNT}} --daemon >/dev/null && ls {1}/m-${{#BIVOUAC_MOUNT}} | wc -l",
            bivouac().display(),
            site.path("").display()
        );
        let said = preload(&site, &name, &["bash", "-c", &more, &writer]).ok();
        assert_eq!(said, "/tmp\n/tmp\n/tmp\nin\nx\nx\nx\nby-both\nby-fuse\nin\n3\n");
        site.bivouac(["down", &name]).ok();
        assert_eq!(Path::new(&mount).exists(), exists, "{mount}");
        assert!(!exists || std::fs::read_dir(&mount).expect("it is there").next().is_none());
    }
    let script = "\"$0\" /bivouac/; true";
    site.bivouac(["run", "--access", "preload", "--", "bash", "-c", script, &writer]).ok();
    assert!(!Path::new("/bivouac").exists());
}
