//! A directory of the site's storage that is forwarded, and what programs do there in every way of access.

use crate::Site;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What programs do to a directory. Everything that they say is the same wherever they do it.
pub const WORK: &str = r#"
set -e
umask 022
mkdir -p a/b/c; cd a
echo hello > one; cat one; echo more >> one; cat one; wc -c < one
head -c 3000000 /dev/urandom > big; cp big copy; cmp big copy; rm copy
printf 'x' | dd of=big bs=1 seek=5000000 conv=notrunc 2>/dev/null; stat -c '%s' big
truncate -s 100 big; stat -c '%s %a' big
chmod 640 one; stat -c '%a %h' one
ln one two; stat -c '%h' one; ln -s one link; cat link; readlink link; stat -c '%F' link
mv two b/three; cat b/three; ls -1 b; test ! -e two
touch -d '2020-02-02 02:02:02 UTC' one; stat -c '%Y' one
mkdir d; ls -1a d | wc -l; rmdir d
for i in $(seq 300); do echo $i > c$i; done; ls -1 | wc -l; cat c* | md5sum
find . -name 'c2?' | sort | tr '\n' ' '
rm c*; ls -1 | sort
cd b; pwd | sed 's,.*/a,a,'; cat ../one; cd ../..
(echo first; sleep 0.01; echo second) > log; cat log; : > log; test ! -s log
exec 5<> both; echo through >&5; exec 5>&-; cat both
tar cf - a | tar tf - | sort
python3 - <<'PY'
import os, errno, fcntl
def error(call, *arguments):
    try: call(*arguments); return "fine"
    except OSError as e: return errno.errorcode[e.errno]
print(error(os.rmdir, "a"), error(os.open, "none", os.O_RDONLY), error(os.mkdir, "a"), error(os.open, "a/one", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
print(error(os.unlink, "a"), error(os.rename, "a", "a/b/x"), error(os.readlink, "a/one"), error(os.listdir, "a/one"), error(os.open, "a/one/x", 0))
fd = os.open("holes", os.O_CREAT | os.O_RDWR, 0o600)
os.pwrite(fd, b"end", 1 << 20); print(os.pread(fd, 4, (1 << 20) - 1), os.fstat(fd).st_size)
os.ftruncate(fd, 10); print(os.pread(fd, 100, 0), os.lseek(fd, 0, os.SEEK_END)); os.fsync(fd)
os.unlink("holes"); os.write(fd, b"still"); print(os.fstat(fd).st_nlink, os.pread(fd, 5, 10)); os.close(fd)
f = open("locked", "w"); fcntl.lockf(f, fcntl.LOCK_EX); fcntl.flock(f, fcntl.LOCK_EX)
pid = os.fork()
if pid == 0:
    g = open("locked", "r+")
    print(error(fcntl.lockf, g, fcntl.LOCK_EX | fcntl.LOCK_NB), error(fcntl.flock, g, fcntl.LOCK_SH | fcntl.LOCK_NB), flush=True); os._exit(0)
os.waitpid(pid, 0); f.close()
os.setxattr("locked", "user.what", b"value"); print(os.listxattr("locked"), os.getxattr("locked", "user.what")); os.removexattr("locked", "user.what"); print(os.listxattr("locked"))
os.rename("locked", "both"); print(sorted(os.listdir(".")))
with open("appended", "ab") as f:
    for i in range(10): f.write(b"%d" % i); f.flush()
print(open("appended", "rb").read())
PY
"#;

/// What is left of it.
pub const LOOK: &str = "find . -type d -printf '%P %y %m\\n' -o -printf '%P %y %m %s %n %l\\n' | sort; find . -type f -print0 | sort -z | xargs -0 md5sum | grep -v 'a/big'";

/// Runs a script in a directory of this machine, well; what it says.
pub fn local(directory: &Path, script: &str) -> String {
    let done = Command::new("bash").args(["-c", script]).current_dir(directory).output().expect("runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// A directory of the backend.
pub fn backend(site: &Site) -> PathBuf {
    let directory = site.path("scratch/me");
    fs::create_dir_all(&directory).expect("a directory");
    directory.canonicalize().expect("a path")
}

/// Four processes that write and read what only they write, blocks of a shared file and files of their own, and check all of it,
/// until there is a file "stop"; with `names`, they make, rename and remove files, too. Prints how many rounds there were.
pub const CHECKS: &str = r#"
import os, random, sys
def block(who, number, turn): return (b"%08d%08d%08d" % (who, number, turn)) * 1366
def work(who):
    random.seed(who); rounds = 0
    shared = os.open("shared", os.O_RDWR | os.O_CREAT, 0o644)
    own = os.open("own%d" % who, os.O_RDWR | os.O_CREAT, 0o644)
    size = len(block(0, 0, 0)); last = {}
    while not os.path.exists("stop"):
        for _ in range(20):
            number = random.randrange(16); turn = rounds
            for fd, at in ((shared, (number * 4 + who) * size), (own, number * size)):
                assert os.pwrite(fd, block(who, number, turn), at) == size
            last[number] = turn
            number = random.choice(list(last))
            for fd, at in ((shared, (number * 4 + who) * size), (own, number * size)):
                read = os.pread(fd, size, at)
                assert read == block(who, number, last[number]), (who, number, rounds, read[:24], last[number])
        os.fsync(own)
        rounds += 1
        if "names" not in sys.argv: continue
        name = "d%d" % who
        os.mkdir(name)
        with open(name + "/new", "x") as f: f.write("%d" % rounds)
        os.rename(name + "/new", name + "/renamed")
        with open(name + "/renamed", "a") as f: f.write("more")
        assert open(name + "/renamed").read() == "%dmore" % rounds
        assert os.listdir(name) == ["renamed"]
        os.unlink(name + "/renamed"); os.rmdir(name)
    assert os.fstat(own).st_size == (max(last) + 1) * size
    os.write(1, b"%d\n" % rounds); os._exit(0)
children = []
for who in range(4):
    pid = os.fork()
    if pid == 0:
        try: work(who)
        except BaseException:
            import traceback; traceback.print_exc(); os._exit(1)
    children.append(pid)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
"#;

/// What people run, again and again until there is a file "stop": each checks what it gets. Says how many rounds there were.
pub const TOOLS: &str = r#"
set -e
rounds=0
while [ ! -e "$1" ]; do
    tar cf headers.tar -C /usr/include linux; mkdir headers; tar xf headers.tar -C headers; diff -r headers/linux /usr/include/linux
    rm -r headers headers.tar
    sqlite3 data.db 'create table if not exists t(a, b); begin; insert into t select value, hex(randomblob(99)) from generate_series(1, 500); commit;' 2>&1
    [ "$(sqlite3 data.db 'pragma integrity_check')" = ok ]
    fio --name=verify --filename=fio.data --rw=randrw --bs=16k --size=4m --verify=crc32c --verify_fatal=1 --do_verify=1 > fio.log
    rounds=$((rounds + 1))
done
sqlite3 data.db 'select count(*) from t'
echo "$rounds rounds"
"#;
