//! The command line as a contract: subcommands, exit codes, output, signals, and that nothing stays behind.

use bivouac_tests::{Finished, Site, bivouac, default_signals, eventually, finish, run_dir};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn run_exits_with_the_commands_status() {
    let site = Site::new("status");
    for (script, code) in [("true", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        let name = site.name("run");
        assert_eq!(site.bivouac(["run", "--name", &name, "--", "sh", "-c", script]).code, code, "{script}");
        site.assert_nothing_left(&name, &[]);
    }
    let name = site.name("run");
    site.bivouac(["run", "--name", &name, "--", "no-such-program"])
        .fails(127, &["no-such-program", "No such file"]);
    site.bivouac(["run", "--name", &name, "--", "/etc/passwd"]).fails(126, &["/etc/passwd", "executable"]);
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn exec_exits_with_the_commands_status_and_several_run_at_once() {
    let site = Site::new("exec");
    let name = site.up(2);
    assert_eq!(site.bivouac(["exec", &name, "--", "sh", "-c", "exit 9"]).code, 9);
    site.bivouac(["exec", &name, "--", "no-such-program"]).fails(127, &["no-such-program"]);
    let children: Vec<Child> = (0..6)
        .map(|i| {
            let script = format!(
                "echo {i} > /bivouac/f{i}; for n in $(seq 1 500); do [ $(ls /bivouac | wc -l) = 6 ] && exit; sleep 0.01; done; exit 1"
            );
            site.command(["exec", &name, "--", "sh", "-c", &script])
                .spawn()
                .expect("starts")
        })
        .collect();
    for mut child in children {
        assert!(child.wait().expect("ends").success());
    }
    assert_eq!(site.sh(&name, "cat /bivouac/f*").ok(), "0\n1\n2\n3\n4\n5\n");
}

#[test]
fn a_program_stored_in_the_mount_can_be_the_command() {
    let site = Site::new("stored");
    let name = site.up(2);
    site.sh(
        &name,
        "cp /bin/echo /bivouac/say; printf '#!/bin/sh\\necho script $1\\n' > /bivouac/s; chmod +x /bivouac/s",
    )
    .ok();
    assert_eq!(site.bivouac(["exec", &name, "--", "/bivouac/say", "a b", "$c"]).ok(), "a b $c\n");
    assert_eq!(site.bivouac(["exec", &name, "--", "/bivouac/s", "x"]).ok(), "script x\n");
}

#[test]
fn run_preloads_and_flushes() {
    let site = Site::new("stage");
    let source = site.path("in:put");
    std::fs::create_dir_all(source.join("sub")).expect("makes it");
    std::fs::write(source.join("sub/data"), "x".repeat(3_000_000)).expect("writes");
    std::os::unix::fs::symlink("sub/data", source.join("link")).expect("links");
    let preload = format!("{}:/in", source.display().to_string().replace(':', "\\:"));
    let second = site.path("in:put/sub").display().to_string().replace(':', "\\:");
    let flush = format!("/bivouac/out:{}", site.path("out").display());
    let script =
        "test -L /bivouac/in/link && cp -a /bivouac/in /bivouac/out && ls /bivouac/sub > /bivouac/out/list";
    let run =
        ["run", "--servers", "3", "--stats", "--preload", &preload, "--preload", &second, "--flush", &flush];
    let finished = site.bivouac(run.iter().copied().chain(["--", "sh", "-c", script]));
    assert_eq!(finished.code, 0, "{}", finished.err);
    for word in ["preloaded", "flushed", "SERVER", "WRITTEN", "perfectly even"] {
        assert!(finished.err.contains(word), "{word} is missing in {}", finished.err);
    }
    assert!(finished.out.is_empty(), "standard output is the command's: {}", finished.out);
    assert_eq!(std::fs::read(site.path("out/sub/data")).expect("flushed").len(), 3_000_000);
    assert_eq!(std::fs::read_to_string(site.path("out/list")).expect("flushed"), "data\n");
    assert_eq!(std::fs::read_link(site.path("out/link")).expect("a link"), Path::new("sub/data"));
    assert!(site.deployments().is_empty());
}

#[test]
fn a_failed_flush_keeps_the_deployment_and_says_how_to_go_on() {
    let site = Site::new("keepflush");
    let name = site.name("run");
    std::fs::write(site.path("blocked"), "a file where a directory is needed").expect("writes");
    let flush = format!("/out:{}", site.path("blocked/below").display());
    let script = "echo precious > /bivouac/out";
    // Servers that come meanwhile are kept as well.
    let grows = format!("{script}; {} expand {name} --servers +1", bivouac().display());
    let run = site.bivouac(["run", "--name", &name, "--flush", &flush, "--", "sh", "-c", &grows]);
    run.fails(69, &["is kept", &format!("bivouac flush {name}"), &format!("bivouac down {name}")]);
    // It outlives its lifeline.
    std::thread::sleep(Duration::from_millis(300));
    let servers: Vec<u64> = site.daemons(&name).into_iter().filter_map(|(server, _)| server).collect();
    assert_eq!(servers, [0, 1], "with the one that came");
    let out = site.path("out").display().to_string();
    site.bivouac(["flush", &name, "/out", &out]).ok();
    assert_eq!(std::fs::read_to_string(out).expect("flushed"), "precious\n");
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|d| d.1).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
    // What the command says of itself comes first.
    let run = site.bivouac(["run", "--name", &name, "--flush", &flush, "--", "sh", "-c", "exit 5"]);
    assert_eq!(run.code, 5);
    // Whose storage was to be kept anyway is not told that it cannot be.
    site.bivouac(["down", &name]).ok();
    let run = site.bivouac(["run", "--keep", "--name", &name, "--flush", &flush, "--", "sh", "-c", script]);
    run.fails(69, &["is kept"]);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn kept_storage_is_brought_back_with_its_data() {
    let site = Site::new("kept");
    let name = site.up(3);
    let write = "head -c 5000000 /dev/urandom > /bivouac/big; mkdir /bivouac/d; echo small > /bivouac/d/s; cd /bivouac || exit 1; sha256sum big d/s";
    let before = site.sh(&name, write).ok();
    site.bivouac(["down", &name, "--keep"]).ok();
    assert_eq!(site.status(&name)["state"], "stopped");
    site.bivouac(["exec", &name, "--", "true"]).fails(64, &["does not run", &format!("bivouac up {name}")]);
    site.bivouac(["up", &name, "--servers", "2"]).fails(65, &["exists", "its own servers"]);
    assert!(site.bivouac(["up", &name]).ok().contains("is back"));
    assert_eq!(site.sh(&name, "cd /bivouac || exit 1; sha256sum big d/s").ok(), before);
    assert!(site.status(&name)["epoch"].as_u64() > Some(1));
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
    let run = site.bivouac(["run", "--keep", "--name", &name, "--", "sh", "-c", "echo k > /bivouac/k"]);
    assert!(run.code == 0 && run.err.contains(&format!("bivouac up {name}")), "{}", run.err);
    site.bivouac(["up", &name]).ok();
    assert_eq!(site.sh(&name, "cat /bivouac/k").ok(), "k\n");
}

#[test]
fn a_crash_is_told_by_status_and_cleaned_by_down_or_survived_by_up() {
    let site = Site::new("crash");
    let name = site.up(3);
    let before = site.sh(&name, "seq 1 100000 > /bivouac/a; sha256sum /bivouac/a").ok();
    let crash = || {
        for (_, pid) in site.daemons(&name) {
            Site::kill(pid, Signal::KILL);
        }
    };
    crash();
    eventually("crashed", || site.status(&name)["state"] == "crashed");
    let text = site.bivouac(["status"]).ok();
    assert!(text.contains("crashed") && text.contains(&format!("bivouac down {name}")), "{text}");
    site.bivouac(["exec", &name, "--", "true"]).fails(64, &["have died"]);
    site.bivouac(["up", &name]).ok();
    assert_eq!(
        site.sh(&name, "sha256sum /bivouac/a").ok(),
        before,
        "all servers killed at once lose nothing"
    );
    crash();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn a_truncated_record_is_an_error_with_a_remedy() {
    let site = Site::new("record");
    std::fs::create_dir_all(site.home().join("broken")).expect("makes it");
    std::fs::write(site.home().join("broken/daemons.json"), "{\"version\": 1, \"na").expect("writes");
    site.bivouac(["status", "broken"]).fails(65, &["damaged", "remove"]);
    let all = site.bivouac(["status"]);
    assert!(all.code == 0 && all.err.contains("damaged"));
    std::fs::remove_dir_all(site.home()).expect("removes");
    std::fs::create_dir_all(site.home().join("early")).expect("an `up` that was killed in its first moments");
    site.bivouac(["down", "early"]).ok();
    assert!(!site.home().join("early").exists());
}

#[test]
fn unknown_deployments_are_told_by_every_subcommand() {
    let site = Site::new("unknown");
    let words = ["no deployment named", "bivouac status"];
    site.bivouac(["exec", "nosuch", "--", "true"]).fails(64, &words);
    site.bivouac(["status", "nosuch"]).fails(64, &words);
    site.bivouac(["down", "nosuch"]).fails(64, &words);
    site.bivouac(["env", "nosuch"]).fails(64, &words);
    site.bivouac(["preload", "nosuch", "/etc", "/x"]).fails(64, &words);
    site.bivouac(["flush", "nosuch", "/x", "/tmp/x"]).fails(64, &words);
    assert_eq!(site.bivouac(["status"]).ok(), "no deployments\n");
}

#[test]
fn wrong_usage_exits_with_2_and_shows_what_is_right() {
    let site = Site::new("usage");
    let cases: [&[&str]; 10] = [
        &["nosuch"],
        &["run"],
        &["run", "true"],
        &["run", "--servers", "0", "--", "true"],
        &["up"],
        &["up", "a/b"],
        &["up", "-x"],
        &["up", "x", "--block-size", "5000"],
        &["up", "x", "--mount", "relative"],
        &["run", "--flush", "/only-a-source", "--", "true"],
    ];
    for case in cases {
        site.bivouac(case).fails(2, &["error:"]);
    }
    assert!(site.deployments().is_empty());
}

#[test]
fn help_is_there_on_every_level_and_feeds_completion_and_man_pages() {
    let site = Site::new("help");
    let top = site.bivouac(["--help"]).ok();
    assert!(top.contains("Examples:") && top.contains("Exit codes:"));
    for command in ["run", "up", "exec", "preload", "flush", "status", "down", "env"] {
        assert!(top.contains(command));
        let text = site.bivouac([command, "--help"]).ok();
        assert!(text.contains("Usage:") && text.len() > 200, "{command}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(site.bivouac(["completions", shell]).ok().contains("preload"));
    }
    let man = site.path("man");
    std::fs::create_dir(&man).expect("makes it");
    site.bivouac(["man", &man.display().to_string()]).ok();
    let page = std::fs::read_to_string(man.join("bivouac-run.1")).expect("a page");
    assert!(page.starts_with(".ie") && page.contains("preload"));
    assert!(site.bivouac(["--version"]).ok().starts_with("bivouac "));
}

#[test]
fn env_can_be_evaluated_by_a_shell() {
    let site = Site::new("env");
    let name = site.up(1);
    let script =
        "eval \"$(\"$B\" env \"$N\")\"; sh -c 'echo hello > /bivouac/x'; cat /bivouac/x; ls /bivouac";
    let output = Command::new("bash")
        .args(["-c", script])
        .env("B", bivouac())
        .env("N", &name)
        .env("BIVOUAC_HOME", site.home())
        .output()
        .expect("bash starts");
    assert_eq!(Finished::of(output).ok(), "hello\nx\n");
}

#[test]
fn status_shows_servers_and_its_json_is_as_documented() {
    let site = Site::new("json");
    let name = site.up_with(2, &["--block-size", "64K", "--mount", "/bivouac/"]);
    site.sh(&name, "head -c 1000000 /dev/zero > /bivouac/z; echo s > /bivouac/s").ok();
    let status = site.status(&name);
    assert_eq!(status["name"], name.as_str());
    assert_eq!((&status["state"], &status["mount"]), (&"running".into(), &"/bivouac".into()));
    assert_eq!((status["block_size"].as_u64(), status["epoch"].as_u64()), (Some(65536), Some(1)));
    let servers = status["servers"].as_array().expect("a list");
    assert_eq!(servers.len(), 2);
    for (i, server) in servers.iter().enumerate() {
        assert_eq!(server["id"].as_u64(), Some(i as u64));
        assert_eq!(server["state"], "up");
        assert!(server["address"].as_str().expect("an address").starts_with("127.0.0.1:"));
        for field in [
            "capacity",
            "available",
            "stored",
            "inodes",
            "meta_operations",
            "data_operations",
            "bytes_read",
            "bytes_written",
            "connections",
            "opens",
            "silent_ms",
            "node",
        ] {
            assert!(server[field].is_u64(), "{field}");
        }
    }
    // The root, and two files; the large one is stored whole.
    assert_eq!(status["totals"]["inodes"].as_u64(), Some(3));
    assert!((1_000_000..1_300_000).contains(&status["totals"]["stored"].as_u64().expect("bytes")));
    let text = site.bivouac(["status", &name]).ok();
    assert!(
        text.contains("2 of 2 servers") && text.contains("blocks of 64 KiB") && text.contains("epoch 1"),
        "{text}"
    );
}

#[test]
fn two_deployments_at_once_do_not_see_each_other() {
    let site = Site::new("two");
    let (first, second) = (site.up(2), site.up_with(1, &["--mount", "/elsewhere"]));
    site.sh(&first, "echo first > /bivouac/f").ok();
    site.sh(&second, "echo second > /elsewhere/f; test ! -e /bivouac").ok();
    assert_eq!(site.sh(&first, "cat /bivouac/f; ls /bivouac; test ! -e /elsewhere").ok(), "first\nf\n");
    let text = site.bivouac(["status"]).ok();
    assert!(text.contains(&first) && text.contains(&second), "{text}");
    site.bivouac(["up", &first]).fails(65, &["runs already"]);
    site.bivouac(["down", &first]).ok();
    assert_eq!(site.sh(&second, "cat /elsewhere/f").ok(), "second\n");
}

#[test]
fn the_same_name_from_another_home_is_refused_and_left_alone() {
    let (site, other) = (Site::new("mine"), Site::new("yours"));
    let name = site.up(1);
    other.bivouac(["up", &name]).fails(65, &["another deployment named", "use another name"]);
    assert!(other.deployments().is_empty());
    assert_eq!(site.sh(&name, "echo alive").ok(), "alive\n");
}

// --- signals ----------------------------------------------------------------------------------------------

/// Starts `run` with a command that says "ready" first.
fn start_run(site: &Site, name: &str, script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let script = format!("echo ready; {script}");
    let mut child = site
        .command(["run", "--name", name, "--servers", "2", "--", "bash", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("reads");
    assert_eq!(line, "ready\n");
    (child, out)
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let site = Site::new("signals");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        let name = site.name("run");
        let script = "for s in TERM INT HUP USR1; do trap \"echo got $s; exit 42\" $s; done; echo set; while :; do sleep 0.02; done";
        let (mut child, mut out) = start_run(&site, &name, script);
        let mut line = String::new();
        out.read_line(&mut line).expect("reads");
        let pids: Vec<i32> = site.daemons(&name).into_iter().map(|d| d.1).collect();
        Site::kill(child.id() as i32, signal);
        line.clear();
        out.read_line(&mut line).expect("reads");
        assert!(line.starts_with("got "), "{signal:?}: {line}");
        assert_eq!(child.wait().expect("ends").code(), Some(42));
        site.assert_nothing_left(&name, &pids);
    }
}

#[test]
fn a_command_that_dies_by_the_signal_gives_its_status_and_nothing_is_left() {
    let site = Site::new("sigdeath");
    let name = site.name("run");
    let (mut child, _out) = start_run(&site, &name, "exec sleep 60");
    Site::kill(child.id() as i32, Signal::TERM);
    assert_eq!(child.wait().expect("ends").code(), Some(143));
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn an_interrupt_at_the_terminal_reaches_the_command_once() {
    let site = Site::new("tty");
    let name = site.name("run");
    let log = site.path("log");
    let inner = format!(
        "trap 'echo int >> {0}' INT; echo ready >> {0}; for i in 1 2 3 4 5 6; do sleep 0.2; done; exit 6",
        log.display()
    );
    // `script` gives it a terminal of its own, to which the test types. The shell between them makes way: the
    // interrupt would end it, and `script` reports the shell's status.
    let run = format!("exec {} run --name {name} -- bash -c {}", bivouac().display(), quote(&inner));
    let mut script = Command::new("script");
    script.args(["-qec", &run, "/dev/null"]).env("BIVOUAC_HOME", site.home());
    let mut child = default_signals(&mut script)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("script starts");
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("ready", || text().contains("ready"));
    let mut keyboard = child.stdin.take().expect("a pipe");
    keyboard.write_all(b"\x03").expect("types");
    keyboard.flush().expect("types");
    assert_eq!(child.wait().expect("ends").code(), Some(6), "the command's own status");
    assert_eq!(text().matches("int").count(), 1, "{}", text());
    site.assert_nothing_left(&name, &[]);
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[test]
fn job_control_stops_and_continues_the_command() {
    let site = Site::new("jobs");
    let name = site.name("run");
    let (mut child, mut out) = start_run(&site, &name, "for i in $(seq 1 50); do sleep 0.02; done; echo end");
    let pid = child.id() as i32;
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().unwrap_or("").trim().chars().next()
    };
    Site::kill(pid, Signal::TSTP);
    // The test's process group may be an orphan, which the kernel does not let stop: then nothing stops, and
    // all goes on.
    let until = Instant::now() + Duration::from_millis(500);
    while state() != Some('T') && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    Site::kill(pid, Signal::CONT);
    let mut line = String::new();
    out.read_line(&mut line).expect("reads");
    assert_eq!(line, "end\n");
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

#[test]
fn killing_run_outright_takes_everything_down() {
    let site = Site::new("sigkill");
    let name = site.name("run");
    let (mut child, _out) = start_run(&site, &name, "exec sleep 5");
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|d| d.1).collect();
    assert_eq!(pids.len(), 3, "two servers and their agent");
    child.kill().expect("kills");
    child.wait().expect("ends");
    eventually("all is gone", || !site.home().join(&name).exists() && !run_dir(&name).exists());
    eventually("the daemons end", || {
        pids.iter().all(|pid| {
            !std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains("daemon")
        })
    });
}

#[test]
fn killing_run_and_a_server_takes_everything_down() {
    let site = Site::new("sigkill2");
    let name = site.name("run");
    let (mut child, _out) = start_run(&site, &name, "exec sleep 5");
    Site::kill(site.server_pid(&name, 1), Signal::KILL);
    child.kill().expect("kills");
    child.wait().expect("ends");
    eventually("all is gone, also what the dead server stored", || {
        !site.home().join(&name).exists() && !run_dir(&name).exists()
    });
}

#[test]
fn a_server_that_dies_under_run_does_not_keep_it_from_cleaning_up() {
    let site = Site::new("dying");
    let name = site.name("run");
    let (mut child, _out) = start_run(&site, &name, "sleep 1; exit 3");
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|d| d.1).collect();
    Site::kill(pids[1], Signal::KILL);
    assert_eq!(child.wait().expect("ends").code(), Some(3));
    site.assert_nothing_left(&name, &pids);
}

#[test]
fn an_interrupt_while_copying_takes_everything_down() {
    let site = Site::new("intcopy");
    let name = site.name("run");
    let preload = "/usr/include:/a";
    let mut child = site
        .command(["run", "--name", &name, "--preload", preload, "--", "sleep", "30"])
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    eventually("serves", || {
        std::fs::read_to_string(site.home().join(&name).join("daemons.json"))
            .is_ok_and(|r| r.contains("\"running\""))
    });
    Site::kill(child.id() as i32, Signal::INT);
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn idle_daemons_use_no_processor_to_speak_of() {
    let site = Site::new("idle");
    let name = site.up(4);
    let ticks = || -> u64 {
        let stats = site
            .daemons(&name)
            .into_iter()
            .filter_map(|(_, pid)| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        stats
            .map(|s| {
                s.rsplit(')')
                    .next()
                    .unwrap_or("")
                    .split_whitespace()
                    .skip(11)
                    .take(2)
                    .filter_map(|n| n.parse::<u64>().ok())
                    .sum::<u64>()
            })
            .sum()
    };
    // Ticks are hundredths of a second: four daemons, three seconds, two percent of one processor.
    eventually("they have nothing to do any more", || {
        let before = ticks();
        std::thread::sleep(Duration::from_secs(3));
        ticks() - before <= 6
    });
}

#[test]
fn output_that_nobody_reads_ends_no_command_and_a_full_disk_is_told() {
    let site = Site::new("unread");
    let name = site.up_with(1, &[]);
    let commands = ["status", "status --json", "env", "verify", "verify --json", "heal", "layout /bivouac"];
    let mut lines: Vec<String> = vec!["completions bash".into()];
    for command in commands {
        let (command, options) = command.split_once(' ').unwrap_or((command, ""));
        lines.push(match command {
            "layout" => format!("{command} -d {name} {options}"),
            _ => format!("{command} {name} {options}"),
        });
    }
    for line in &lines {
        let run = |to: &str| {
            let script = format!("set -o pipefail; {} {line} {to}", bivouac().display());
            let mut shell = Command::new("bash");
            shell.args(["-c", &script]).env("BIVOUAC_HOME", site.home());
            finish(shell)
        };
        let all = run("");
        // Nobody has the other end of the pipe open.
        let unread = run("| (exec <&-; sleep 0.5)");
        assert_eq!((unread.code, &unread.err), (all.code, &all.err), "{line}");
        if !all.out.is_empty() {
            run("> /dev/full").fails(70, &["cannot write to standard output", "No space left"]);
        }
    }
    site.bivouac(["down", &name]).ok();
}
