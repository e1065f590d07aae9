//! What the semantics page promises of names and of who may change them, each in every way of access where it
//! can be.

use bivouac_tests::{Site, accesses, python_says, same_as_local};

#[test]
fn a_name_that_is_replaced_or_exchanged_is_never_missing() {
    let script = "
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir('d'); os.mkdir('e')
open('d/target', 'w').write('old'); open('d/swap', 'w').write('one'); open('e/swap', 'w').write('two')
def look():
    missing = 0
    while not os.path.exists('stop'):
        for path in ('d/target', 'd/swap', 'e/swap'):
            try: missing += open(path).read() not in ('old', 'new', 'one', 'two')
            # The kernel looks twice, and no more.
            except OSError as e: missing += not (mounted and e.errno == errno.ESTALE)
        missing += 'target' not in os.listdir('d') or 'swap' not in os.listdir('e')
    assert missing == 0, missing
lookers = [child(look) for _ in range(2)]
for i in range(150):
    open('e/fresh', 'w').write('new')
    os.rename('e/fresh', 'd/target')
    assert libc.renameat2(-100, b'd/swap', -100, b'e/swap', 2) == 0, ctypes.get_errno()
open('stop', 'w').close()
print(join(*lookers), open('d/swap').read(), os.listdir('d') and sorted(os.listdir('e')))
";
    python_says("never-missing", script, "True one ['swap']\n");
}

#[test]
fn a_directory_that_another_program_has_replaced_by_a_file_is_one_in_no_call() {
    let script = "
calls = {
    'rename to it': lambda at, file: os.rename(at + '/missing', file + '/b'),
    'rename from it': lambda at, file: os.rename(file + '/b', at + '/missing'),
    'rename in it': lambda at, file: os.rename(file + '/b', file + '/c'),
    'mkdir': lambda at, file: os.mkdir(file + '/b'),
    'symlink': lambda at, file: os.symlink('b', file + '/b'),
    'link': lambda at, file: os.link(file, file + '/b'),
    'open': lambda at, file: os.open(file + '/b', os.O_CREAT),
    'stat': lambda at, file: os.stat(file + '/b'),
    'unlink': lambda at, file: os.unlink(file + '/b'),
    'listdir': lambda at, file: os.listdir(file),
}
for number, (name, call) in enumerate(calls.items()):
    at = f'd{number}'
    os.makedirs(at + '/a')
    # So that it is known.
    open(at + '/a/b', 'w').close()
    def replace():
        os.unlink(at + '/a/b'); os.rmdir(at + '/a')
    join(child(replace))
    open(at + '/a', 'w').close()
    try: call(at, at + '/a')
    except NotADirectoryError: continue
    except OSError as error: print(name, error)
    else: print(name, 'was done')
";
    python_says("replaced", script, "");
}

#[test]
fn noreplace_and_exchange_work_between_servers() {
    // Directories of their own, which lie on all servers: files, links and directories full and empty, each
    // way round.
    let script = r#"python3 -B - <<'END'
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def renameat2(a, b, how):
    return 'done' if libc.renameat2(-100, a.encode(), -100, b.encode(), how) == 0 else errno.errorcode[ctypes.get_errno()]
makers = {
    'file': lambda p: open(p, 'w').write(p), 'link': lambda p: os.symlink(p, p), 'empty': os.mkdir,
    'full': lambda p: os.makedirs(p + '/in/side'), 'long': lambda p: open(p, 'w').write(p * 9000),
}
def what(path):
    if os.path.islink(path): return os.readlink(path)
    if os.path.isdir(path): return os.listdir(path), os.stat(path).st_nlink
    return open(path).read()[-9:], os.path.getsize(path)
for a in makers:
    for b in makers:
        top = f'{a}-{b}'
        for side in ('x', 'y'): os.makedirs(f'{top}/{side}')
        one, two = f'{top}/x/{a}', f'{top}/y/{b}'
        makers[a](one); makers[b](two)
        print(a, b, renameat2(one, two, 1), renameat2(one, two, 2), what(one), what(two))
        print([os.stat(f'{top}/{side}').st_nlink for side in ('x', 'y')])
        print(renameat2(one, f'{top}/y/new', 1), renameat2(one, two, 2), renameat2(two, f'{top}/x/new', 0), os.listdir(f'{top}/y'))
print(renameat2('file-file', 'file-link/x', 2), renameat2('full-full', 'full-full/x/new/in', 2))
END"#;
    same_as_local("exchange", script);
}

#[test]
fn of_two_renames_that_would_make_a_circle_one_fails() {
    let script = "
for i in range(15):
    os.mkdir(f'a{i}'); os.mkdir(f'b{i}')
go = os.pipe()
def move(one, two):
    os.read(go[0], 1)
    for i in range(15):
        outcome = attempt(os.rename, f'{one}{i}', f'{two}{i}/in')
        # The one that comes late finds that what it would move is above, or gone.
        assert outcome in (None, 'EINVAL', 'ENOENT'), outcome
movers = [child(lambda: move('a', 'b')), child(lambda: move('b', 'a'))]
os.write(go[1], b'!!')
print(join(*movers), len(os.listdir('.')), sum(len(d) for _, d, _ in os.walk('.')))
";
    python_says("circle", script, "True 15 30\n");
}

#[test]
fn nobody_reaches_anything_by_the_old_path_once_a_directory_has_moved() {
    let script = "
os.makedirs('old/in/side'); open('old/in/side/f', 'w').write('text')
tell, told = os.pipe(), os.pipe()
def look():
    for i in range(30):
        now, before = ('old', 'new') if i % 2 == 0 else ('new', 'old')
        assert open(f'{now}/in/side/f').read() == 'text' and os.path.exists(f'{now}/in')
        os.write(tell[1], b'!'); os.read(told[0], 1)
        for call in (os.stat, os.listdir, lambda p: os.mkdir(p + '/x'), lambda p: os.open(p + '/f', os.O_RDONLY)):
            assert attempt(call, f'{now}/in/side') == 'ENOENT'
        assert open(f'{before}/in/side/f').read() == 'text'
looker = child(look)
for i in range(30):
    os.read(tell[0], 1)
    os.rename(*(('old', 'new') if i % 2 == 0 else ('new', 'old')))
    os.write(told[1], b'!')
print(join(looker))
";
    python_says("old-path", script, "True\n");
}

#[test]
fn an_entry_that_stays_is_listed_once_while_others_come_and_go() {
    let script = "
os.mkdir('d')
stay = {f'stay{i}' for i in range(300)}
for name in stay: os.close(os.open('d/' + name, os.O_CREAT | os.O_WRONLY))
def churn(who):
    number = 0
    while not os.path.exists('stop'):
        os.close(os.open(f'd/{who}-{number}', os.O_CREAT | os.O_WRONLY))
        if number >= 20: os.unlink(f'd/{who}-{number - 20}')
        number += 1
others = [child(lambda who=who: churn(who)) for who in range(2)]
bad = 0
for _ in range(25):
    names = [name for name in os.listdir('d') if name.startswith('stay')]
    bad += len(names) != 300 or set(names) != stay
open('stop', 'w').close()
print(bad, join(*others))
";
    python_says("listed-once", script, "0 True\n");
}

/// Runs a shell script as root in a mount of its own, with `as USER SCRIPT` to be somebody else; what it
/// prints.
fn several_users(test: &str, script: &str, expected: &str) {
    let site = Site::new(test);
    let name = site.up(4);
    for access in accesses().iter().filter(|access| **access != "preload") {
        let script = format!(
            "set -eu; cd /bivouac; chmod 755 .; mkdir {access}; cd {access}
as() {{ setpriv --reuid \"$1\" --regid \"$1\" --clear-groups bash -c \"$2\"; }}
said() {{ \"$@\" 2>&1 | sed 's/.*: //'; }}
{script}"
        );
        let said = site.bivouac(["exec", &name, "--access", access, "--", "bash", "-c", &script]).ok();
        assert_eq!(said, expected, "{access}");
    }
}

#[test]
fn in_a_sticky_directory_only_owners_remove_and_rename() {
    let script = r#"mkdir -m 1777 t; mkdir -m 777 free; as 1 'echo 1 > t/a; mkdir t/d; echo o > free/o'; as 2 'echo 2 > t/b; echo 2 > free/b'
said as 2 'rm -f t/a'; said as 2 'rmdir t/d'; said as 2 'mv t/a t/x'; said as 2 'mv t/a free/x'; said as 2 'mv -T t/b t/a'
said as 2 'mv free/b t/a'; said as 2 'mv t/d free'
as 2 'mv t/b t/c; mv t/c free/c; mv free/o t/o'; said as 2 'rm -f t/o'
as 1 'mv t/a t/b; rmdir t/d'; chown 2 t; as 2 'rm -f t/b t/o'; ls t free"#;
    let refused = "Operation not permitted\n".repeat(8);
    several_users("sticky", script, &format!("{refused}free:\nb\nc\n\nt:\n"));
}

#[test]
fn who_does_not_own_a_file_links_it_only_if_that_gives_him_nothing() {
    // Whatever the machine's `fs.protected_hardlinks` is.
    let script = r#"mkdir -m 777 d; for f in read write both set group; do echo "$f" > "$f"; done; mkfifo pipe
chmod 444 read; chmod 222 write; chmod 666 both pipe; chmod 4777 set; chmod 2777 group
for f in read write both set group pipe; do echo "$f $(said as 1 "ln $f d/$f && echo linked")"; done
as 1 'echo mine > d/mine; chmod 400 d/mine; ln d/mine d/again && stat -c %h d/mine'; ln read set group pipe d/; stat -c %h read set group pipe"#;
    let refused = "Operation not permitted";
    let expected = format!(
        "read {refused}\nwrite {refused}\nboth linked\nset {refused}\ngroup {refused}\npipe {refused}\n2\n2\n2\n2\n2\n"
    );
    several_users("hardlinks", script, &expected);
}

#[test]
fn permissions_count_for_each_caller_of_a_mount() {
    let script = r#"mkdir -m 711 way; mkdir -m 700 shut; echo s > way/seen; echo n > way/hidden; chmod 644 way/seen; chmod 640 way/hidden; echo x > shut/x
said as 1 'cat way/seen'; said as 1 'cat way/hidden'; said as 1 'ls way'; said as 1 'cat shut/x'; said as 1 'echo x > way/new'
said as 1 'echo x >> way/seen'; said as 1 'chmod 777 way/seen'; said as 1 'touch -d @5 way/seen'; said as 1 'chown 1 way/seen'; said as 1 'truncate -s 0 way/seen'
chgrp 1 way/hidden; as 1 'cat way/hidden'; said as 1 'mv way/seen way/x'; setfattr -n user.k -v v way/seen; as 1 'getfattr --only-values -n user.k way/seen; echo'; said as 1 'setfattr -n user.k -v w way/seen'"#;
    let (denied, owner) = ("Permission denied\n", "Operation not permitted\n");
    let expected =
        format!("s\n{}{}{owner}{denied}{owner}{denied}n\n{denied}v\n{denied}", denied.repeat(4), denied);
    several_users("callers", script, &expected);
}

#[test]
fn what_does_not_move_is_found_while_anybody_renames_directories() {
    // Also by processes that see no server's pages, as on a node without a server.
    let script = "
import itertools, subprocess
def move(i):
    a, b = '/bivouac/x1/a', '/bivouac/x1/b'
    if i: os.mkdir(a := f'/bivouac/x1/m{i}'); b = a + 'b'
    while not os.path.exists('/bivouac/stop'):
        os.rename(a, b); os.chmod(b, 0o700); os.rename(b, a); os.chmod(a, 0o755)
def look(n):
    for i in range(n):
        os.stat('/bivouac/y/deep'); os.stat('/bivouac/y/deep/er/f'); os.listdir('/bivouac/y/deep')
        os.close(os.open('/bivouac/z/f', os.O_CREAT | os.O_WRONLY))
        os.mkdir(f'/bivouac/z/{os.getpid()}'); os.rmdir(f'/bivouac/z/{os.getpid()}')
        os.rename('/bivouac/y/deep/er/f', '/bivouac/y/deep/er/f')
        assert attempt(os.stat, '/bivouac/y/none/f') == 'ENOENT'
    # What moves itself is found under one of its names, sooner or later: it may move away before each look.
    for i in range(n):
        until = time.monotonic() + 10
        for name in itertools.cycle('ab'):
            names = attempt(os.listdir, f'/bivouac/x1/{name}')
            assert names in (['in'], 'ENOENT') and time.monotonic() < until, (i, name, names)
            if names == ['in']: break
if len(sys.argv) > 1:
    sys.exit(not join(child(lambda: look(60))))
os.makedirs('/bivouac/x1/a/in'); os.makedirs('/bivouac/y/deep/er'); os.mkdir('/bivouac/z'); open('/bivouac/y/deep/er/f', 'w').close()
movers = [child(lambda i=i: move(i)) for i in range(3)]
lookers = [child(lambda: look(60)) for _ in range(2)]
apart = subprocess.Popen([sys.executable, '-B', sys.argv[0], 'look'], env={**os.environ, 'BIVOUAC_LOCAL': '0'})
done = join(*lookers) and apart.wait() == 0
open('/bivouac/stop', 'w').close()
print(done, join(*movers))
";
    python_says("beside-renames", script, "True True\n");
}
