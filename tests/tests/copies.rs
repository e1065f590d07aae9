//! Copies within the file system by `copy_file_range`: what they refuse, and what they cost.

use bivouac_tests::{Site, eventually, same_as_local};

#[test]
fn overlapping_ranges_of_one_file_are_not_copied() {
    let script = r#"python3 -B - <<'END'
import errno, os
K = 1 << 10
def attempt(*args):
    try:
        return os.copy_file_range(*args)
    except OSError as e:
        return errno.errorcode[e.errno]
for size in (1000, 200 * K):
    f = os.open(f'f{size}', os.O_RDWR | os.O_CREAT)
    g = os.open(f'f{size}', os.O_RDWR)
    os.write(f, bytes(i * 7 % 251 for i in range(size)))
    half = size // 2
    for fd in (f, g):
        # The same place, a little behind it, a little before it; side by side; what overlaps only behind the end.
        print(size, [attempt(f, fd, count, at, to) for count, at, to in (
            (half, 0, 0), (half, 0, half - 1), (half, half - 1, 0), (1 << 40, 0, half), (0, 0, 0),
            (half, 0, half), (1 << 40, half, 0), (half, size, size), (half, size + 5, 0), (1 << 20, half, size))])
    print(os.fstat(f).st_size)
    os.lseek(f, 0, os.SEEK_SET)
    print(attempt(f, f, 10), attempt(f, f, 10, 5), attempt(f, f, 10, 500), os.lseek(f, 0, os.SEEK_CUR))
END"#;
    same_as_local("overlaps", script);
}

#[test]
fn offsets_at_the_limits_are_refused_or_shortened_as_locally() {
    let script = r#"python3 -B - <<'END'
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
f, t = (os.open(name, os.O_RDWR | os.O_CREAT) for name in 'ft')
os.write(f, b'x' * 1000)
def attempt(at, to, count, flags=0):
    at, to = ctypes.c_longlong(at), ctypes.c_longlong(to)
    done = libc.copy_file_range(f, ctypes.byref(at), t, ctypes.byref(to), ctypes.c_size_t(count), flags)
    return done if done >= 0 else errno.errorcode[ctypes.get_errno()]
LAST, ALL = (1 << 63) - 1, (1 << 64) - 1
for case in ((-1, 0, 10), (0, -1, 10), (-5, -5, 3), (-1, 0, 0), (0, LAST, 10), (LAST - 1, 0, 100), (0, 0, ALL), (10, 0, ALL),
             (0, 0, 0), (2000, 0, 10), (0, LAST - 9, ALL), (0, 0, 10, 1)):
    print(case, attempt(*case))
END"#;
    same_as_local("copy-limits", script);
}

#[test]
fn a_small_file_is_copied_with_one_read_and_one_write_and_its_end_costs_a_look() {
    let site = Site::new("copy-cost");
    let deployment = site.up_with(2, &["--block-size", "64K"]);
    let total = || site.total(&deployment, "meta_operations") + site.total(&deployment, "data_operations");
    // The agent tells all servers of a process's end a little later: that is part of what the process costs.
    let requests = || {
        let mut last = total();
        eventually("no more requests come", || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            std::mem::replace(&mut last, total()) == last
        });
        last
    };
    // Over the network, so that everything is a request.
    let run = |script: &str| {
        let head = "import os, time\nos.chdir('/bivouac')\ncopy = os.copy_file_range\n";
        let before = requests();
        let mut command = site.command(["exec", &deployment, "--", "python3", "-B", "-c"]);
        command.arg([head, script].concat()).env("BIVOUAC_LOCAL", "0");
        let said = bivouac_tests::finish(command).ok();
        (requests() - before, said)
    };
    let make = "f = os.open('from', os.O_RDWR | os.O_CREAT)\nos.write(f, b'x' * 20000)\nos.close(f)\n";
    run(make);
    let open = "f, t = os.open('from', os.O_RDONLY), os.open('to', os.O_RDWR | os.O_CREAT)\n";
    let (opened, _) = run(&format!("{open}os.write(t, b'x' * 20000)\n"));
    let (copied, _) = run(&format!("{open}assert copy(f, t, 1 << 30) == 20000\n"));
    let (ended, _) = run(&format!(
        "{open}assert copy(f, t, 1 << 30) == 20000\nfor i in range(100): assert copy(f, t, 1 << 30) == 0\n"
    ));
    assert!(copied <= opened + 1, "one request to read it: {copied} instead of {opened}");
    assert!(ended <= copied + 100, "one request for each look at its end: {ended} instead of {copied}");
    // No memory is filled for what is not there to be copied: clearing 4 MiB takes some 400 µs.
    let (_, spent) = run(&format!(
        "{open}copy(f, t, 1 << 30)\nbegun = time.process_time()\nfor i in range(2000): copy(f, t, 1 << 30)\nprint(time.process_time() - begun)\n"
    ));
    let spent: f64 = spent.trim().parse().expect("a time");
    assert!(spent < 0.4, "2,000 looks at the end of a file took {spent} s of the processor");
}
