"""What Python programs do with files: every line printed must be the same on any file system."""
import mmap
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile

source, scratch = sys.argv[1:]
work = os.getcwd()

with open("text", "w") as f:
    f.write("first\n")
    f.flush()
    print(os.fstat(f.fileno()).st_size, f.tell())
with open("text", "a+") as f:
    f.write("second\n")
    f.seek(0)
    print(f.read().split())
with open("text", "r+b") as f:
    f.seek(2)
    f.write(b"XY")
    f.truncate(9)
print(open("text", "rb").read())
with open("exclusive", "x"):
    pass
try:
    open("exclusive", "x")
except FileExistsError as e:
    print("exists", e.errno)
for bad in ("nosuch/file", "text/file", "."):
    try:
        open(bad, "w")
    except OSError as e:
        print(bad, e.errno)

shutil.copytree(source, "tree", symlinks=True)
total = 0
stack = ["tree"]
while stack:
    with os.scandir(stack.pop()) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                total += entry.stat().st_size
print("bytes", total)
print(sorted(os.listdir("tree/names")), sorted(os.listdir(b"tree/names"))[0])
print(sum(len(files) for _, _, files in os.walk("tree")), os.path.realpath("tree/link").replace(work, ""))
shutil.copytree("tree/deep", "deep2")
shutil.move("deep2", "deep3")
shutil.rmtree("tree")
print(os.path.exists("tree"), sorted(os.listdir(".")))

with tempfile.TemporaryDirectory(dir=".") as d:
    with tempfile.NamedTemporaryFile(dir=d) as t:
        t.write(b"x" * 100_000)
        t.flush()
        print(os.path.getsize(t.name))
    with tempfile.TemporaryFile(dir=d) as t:
        t.write(b"anonymous")
        t.seek(0)
        print(t.read(), os.listdir(d))
    handle, name = tempfile.mkstemp(dir=d)
    os.write(handle, b"abc")
    os.close(handle)
    print(open(name).read())

with open("mapped", "wb") as f:
    f.write(bytes(range(256)) * 8192)
with open("mapped", "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
    print(len(m), m[1_000_000], m.find(b"\xff\x00"), sum(m[::4096]))
with open("mapped", "rb") as f, mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as m:
    m[0] = 99
    print(m[0], open("mapped", "rb").read(1))

with open("out", "w") as out, open("text") as inp:
    subprocess.run(["tr", "a-z", "A-Z"], stdin=inp, stdout=out, check=True)
print(open("out").read().split())
with open("both", "w") as both:
    subprocess.run("echo out; echo err >&2", shell=True, stdout=both, stderr=subprocess.STDOUT, check=True)
print(open("both").read().split())
print(subprocess.run(["cat", "out"], capture_output=True, check=True).stdout)
print(subprocess.run(["pwd"], cwd="deep3", capture_output=True, text=True, check=True).stdout.replace(work, "D"))
with open("inherited", "wb") as f:
    subprocess.run(["sh", "-c", f"echo from child >&{f.fileno()}"], pass_fds=[f.fileno()], check=True)
print(open("inherited").read())


def append(n):
    with open("shared", "a") as f:
        for i in range(50):
            f.write(f"{n} {i}\n")
            f.flush()


os.set_blocking(1, True)
sys.stdout.flush()
with multiprocessing.get_context("fork").Pool(4) as pool:
    pool.map(append, range(4))
lines = open("shared").read().splitlines()
print(len(lines), len(set(lines)))
with open("shared", "w") as f:
    f.writelines(sorted(line + "\n" for line in lines))

fd = os.open("low", os.O_RDWR | os.O_CREAT, 0o640)
os.pwrite(fd, b"hello", 10)
print(os.pread(fd, 5, 10), os.lseek(fd, 0, os.SEEK_END), os.fstat(fd).st_size)
dup = os.dup(fd)
os.lseek(fd, 3, os.SEEK_SET)
print(os.lseek(dup, 0, os.SEEK_CUR))
os.ftruncate(dup, 4)
print(os.fstat(fd).st_size, oct(os.fstat(fd).st_mode))
os.unlink("low")
print(os.pwrite(fd, b"still", 0), os.pread(dup, 5, 0), os.fstat(fd).st_nlink)
os.close(fd)
os.close(dup)
d = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
with open(os.open("relative", os.O_WRONLY | os.O_CREAT, dir_fd=d), "w") as f:
    f.write("r")
os.rename("relative", "renamed", src_dir_fd=d, dst_dir_fd=d)
print(os.stat("renamed", dir_fd=d).st_size, sorted(os.listdir(d)) == sorted(os.listdir(".")))
os.close(d)
os.utime("renamed", ns=(1_000_000_001, 2_000_000_002))
print(os.stat("renamed").st_mtime_ns, os.access("renamed", os.W_OK), os.access("nosuch", os.F_OK))
os.chmod("renamed", 0o400)
print(oct(os.stat("renamed").st_mode))
os.makedirs("x/y/z", exist_ok=True)
os.removedirs("x/y/z")
print(os.statvfs(".").f_namemax, os.path.samefile("text", "./text"))
shutil.copy2("text", os.path.join(scratch, "copied"))
shutil.copyfile(os.path.join(scratch, "copied"), "copied")
print(open("copied", "rb").read())
os.chdir("deep3")
print(os.getcwd().replace(work, "D"), os.path.abspath("q").replace(work, "D"))
