# Directories that another client moves, used in a mount: the rename of one that was moved a moment ago, and everything else
# while it is moved all the time and others work in the directories where it was. Arguments: the program, the deployment.
import collections, errno, os, subprocess, sys, time

tool, name = sys.argv[1:]
SECONDS = 3


def elsewhere(script, **more):
    """Runs a script in the deployment as another client, with the library alone."""
    words = [tool, "exec", name, "--access", "preload", "--", "python3", "-B", "-c", "import os, time\nos.chdir('/bivouac')\n" + script]
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "BIVOUAC_MOUNTED")}
    return subprocess.Popen(words, env=clean, **more)


os.chdir("/bivouac")
for directory in ("p/d", "q", "r"):
    os.makedirs(directory)
for look in (False, True):
    # Known to the kernel under the first name.
    os.close(os.open("p/d", os.O_RDONLY))
    assert elsewhere("os.rename('p/d', 'q/e')").wait() == 0
    if look:
        os.lstat("q/e")
    os.rename("q/e", "r/f")
    os.rename("r/f", "p/d")
    # The target of an exchange, too.
    assert elsewhere("os.rename('p/d', 'q/e')").wait() == 0
    os.rename("r", "q/r")
    os.rename("q/r", "r")
    os.rename("q/e", "p/d")
print("renamed")

mover = elsewhere(
    f"""
end = time.time() + {SECONDS + 1}
while time.time() < end:
    os.rename('p/d', 'q/d')
    os.rename('q/d', 'p/d')
"""
)
end = time.time() + SECONDS
children = []
for me in range(4):
    if (child := os.fork()) == 0:
        failed = collections.Counter()
        done = 0
        while time.time() < end:
            for above in "pq":
                if me < 2:
                    path = f"{above}/x{me}"
                    os.close(os.open(path, os.O_CREAT | os.O_RDWR))
                    os.unlink(path)
                    continue
                for call in (
                    lambda: os.close(os.open(f"{above}/d", os.O_RDONLY)),
                    lambda: os.chmod(f"{above}/d", 0o755),
                    lambda: os.close(os.open(f"{above}/d/f{me}", os.O_CREAT | os.O_RDWR)),
                    lambda: os.utime(f"{above}/d"),
                    lambda: os.listdir(f"{above}/d"),
                ):
                    try:
                        call()
                        done += 1
                    except OSError as error:
                        failed[errno.errorcode[error.errno]] += 1
        good = set(failed) <= {"ENOENT"} and (me < 2 or done > 10)
        if not good:
            print(done, dict(failed), flush=True)
        os._exit(0 if good else 1)
    children.append(child)
assert all([os.waitpid(child, 0)[1] == 0 for child in children])
assert mover.wait() == 0
print("used while moved")
