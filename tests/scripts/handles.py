# File handles: made in one mount, opened in another one, whose kernel side has seen none of it yet. Arguments: both mounts.
import ctypes, errno, os, sys

libc = ctypes.CDLL(None, use_errno=True)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]


def handle_of(path):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    done = libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0)
    assert done == 0, os.strerror(ctypes.get_errno())
    return handle


def open_by(mount, handle):
    at = os.open(mount, os.O_RDONLY)
    try:
        fd = libc.open_by_handle_at(at, ctypes.byref(handle), os.O_RDONLY)
        return fd if fd >= 0 else errno.errorcode[ctypes.get_errno()]
    finally:
        os.close(at)


a, b = sys.argv[1:]
os.makedirs(a + "/d/e/f")
for name in ("small", "d/e/large"):
    with open(f"{a}/{name}", "w") as file:
        file.write(name * (1 if name == "small" else 2000))
names = ("", "/small", "/d/e/large", "/d/e/f")
handles = {name: handle_of(a + name) for name in names}
for name, handle in handles.items():
    fd = open_by(b, handle)
    assert os.fstat(fd).st_ino == os.stat(a + name).st_ino, name
    if os.path.isdir(a + name):
        # A directory is one with its path, which the kernel finds by going up.
        assert os.readlink(f"/proc/self/fd/{fd}") == b + name, name
    else:
        assert os.read(fd, 5) == name.encode()[1:6], name
    os.close(fd)
os.unlink(a + "/small")
os.rmdir(a + "/d/e/f")
print(open_by(b, handles["/small"]), open_by(b, handles["/d/e/f"]), open_by(a, handles["/small"]))
