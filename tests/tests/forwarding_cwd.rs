//! Programs whose working directory is in a directory that is forwarded: where their node sees the backend, they may have been
//! started there, and nothing in a relative name tells that.

use bivouac_tests::forwarding::{LOOK, WORK, backend, local};
use bivouac_tests::paused::Paused;
use bivouac_tests::{Site, finish, hiding, skipped_without_root};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;

fn up(site: &Site, directory: &Path) -> String {
    site.up_with(2, &["--forward", directory.to_str().expect("text")])
}

#[test]
fn programs_that_are_started_in_the_directory_are_forwarded_also_by_relative_names() {
    let site = Site::new("forwarding-there");
    let directory = backend(&site);
    let own = site.path("own");
    fs::create_dir(&own).expect("a directory");
    let expected = local(&own, WORK);
    let name = up(&site, &directory);
    let link = site.path("link");
    std::os::unix::fs::symlink(&directory, &link).expect("a link");
    let requests = || {
        let shown = site.bivouac(["forward", &name, "--json"]).ok();
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        shown["io_nodes"][0]["requests_in"].as_u64().expect("a number")
    };
    for (there, forwarded) in [(&directory, &directory), (&link, &directory), (&directory, &link)] {
        site.bivouac(["forward", &name, forwarded.to_str().expect("text")]).ok();
        let before = requests();
        let mut command = site.command(["exec", &name, "--", "bash", "-c", WORK]);
        command.current_dir(there);
        assert_eq!(finish(command).ok(), expected, "{}", there.display());
        // (Another directory is counted from the beginning.)
        let after = requests();
        assert!(after > 100 && after != before, "{}: {before}, {after}", there.display());
        assert_eq!(local(&directory, LOOK), local(&own, LOOK));
        local(&directory, "rm -rf ./* ./.[!.]*");
    }
    site.bivouac(["forward", &name, directory.to_str().expect("text")]).ok();
    // From a directory in it, up, and out; and from outside, in.
    fs::create_dir(directory.join("sub")).expect("made");
    let script = "import os\nprint(os.getcwd()); open('a', 'x').write('made\\n'); print(open('../sub/a').read(), end='')\n\
                  os.chdir('..'); print(os.listdir('.'), os.path.basename(os.getcwd()))\n\
                  os.chdir('/'); os.chdir(os.environ['LINK']); print(os.listdir('sub'), os.listdir())";
    let mut command = site.command(["exec", &name, "--", "python3", "-c", script]);
    command.current_dir(directory.join("sub")).env("LINK", &link);
    let base = directory.file_name().and_then(|name| name.to_str()).expect("text");
    let expected = format!("{0}/sub\nmade\n['sub'] {base}\n['a'] ['sub']\n", directory.display());
    assert_eq!(finish(command).ok(), expected);
}

#[test]
fn in_a_directory_that_the_backend_does_not_have_relative_names_are_refused_and_nothing_goes_astray() {
    if skipped_without_root("hiding a directory") {
        return;
    }
    let site = Site::new("forwarding-astray");
    let directory = backend(&site);
    let name = up(&site, &directory);
    // Only the outer shell, which runs without the library, sees what the node itself has.
    let program = "pwd; echo astray > file || echo refused; cat /proc/self/cwd/file || echo refused";
    let inner = site.command(["exec", &name, "--", "bash", "-c", program]);
    let outer = "mkdir \"$0/own\"; cd \"$0/own\"; echo before > kept; \"$@\"; ls";
    let mut command = Command::new("sh");
    command.args(["-c", outer]).arg(&directory).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished = finish(hiding(&directory, &command));
    assert_eq!(
        finished.out,
        format!("{}/own\nrefused\nrefused\nkept\n", directory.display()),
        "{}",
        finished.err
    );
    assert!(fs::read_dir(&directory).expect("listed").next().is_none());
}

/// Copies a file to four names of the working directory's, each with a `cp` of its own: the library in a new process does not
/// know yet which directory it is in.
const COPIES: &str = r#"import subprocess, sys
print('ready', flush=True); input()
for name in 'astray', sys.argv[1] + '/astray', './astray', '/proc/self/cwd/astray':
    said = subprocess.run(['cp', '/etc/hostname', name], capture_output=True, text=True)
    print(said.returncode, said.stderr.strip().rpartition(': ')[2])
"#;

#[test]
fn when_no_io_node_answers_relative_names_fail_as_absolute_ones_do_and_nothing_goes_astray() {
    let site = Site::new("forwarding-cwd-dead");
    let directory = backend(&site);
    let name = up(&site, &directory);
    let mut command = site.command(["exec", &name, "--", "python3", "-c", COPIES]);
    command.arg(&directory).current_dir(&directory);
    let mut program = Paused::start(command);
    for server in 0..2 {
        Site::kill(site.server_pid(&name, server), Signal::KILL);
    }
    program.go_on();
    assert_eq!(program.end(), "1 Input/output error\n".repeat(4));
    assert!(fs::read_dir(&directory).expect("listed").next().is_none());
}
