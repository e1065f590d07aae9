"""Two processes change and look in turns: what one did, the other sees at once, whatever it has seen before.

Both draw the same random numbers and keep the same model of the tree; in each round one of them makes the call, and the other
one compares everything that it can ask with the model. Prints the number of rounds."""
import errno, os, random, stat, sys

root, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
dirs = ["a", "b", "a/sub"]
names = ["x", "y", "z"]
model = {"a": "dir", "b": "dir", "a/sub": "dir"}  # path: "dir", ("file", content, mode), ("link", target)


def change(act):
    """One random change of the model, and with `act` of the tree."""
    place = draw.choice(dirs) + "/" + draw.choice(names)
    other = draw.choice(dirs) + "/" + draw.choice(names)
    kind = draw.choice(["write", "append", "unlink", "rename", "chmod", "symlink", "truncate", "move", "mkdir", "rmdir", "link"])
    size = draw.choice([0, 1, 100, 4000, 5000, 70000])
    fill = draw.choice("pqrs")
    here = model.get(place)
    path, target = f"{root}/{place}", f"{root}/{other}"
    file_here = isinstance(here, tuple) and here[0] == "file"
    if kind == "write" and (here is None or file_here):
        model[place] = ("file", fill * size, here[2] if here else 0o644)
        if act:
            with open(path, "w") as f:
                f.write(fill * size)
    elif kind == "append" and file_here:
        model[place] = ("file", here[1] + fill * size, here[2])
        if act:
            with open(path, "a") as f:
                f.write(fill * size)
    elif kind == "truncate" and file_here:
        model[place] = ("file", here[1][:size].ljust(size, "\0"), here[2])
        if act:
            os.truncate(path, size)
    elif kind == "chmod" and file_here:
        mode = draw.choice([0o600, 0o644, 0o755])
        model[place] = ("file", here[1], mode)
        if act:
            os.chmod(path, mode)
    elif kind == "unlink" and isinstance(here, tuple):
        del model[place]
        if act:
            os.unlink(path)
    elif kind == "symlink" and here is None:
        model[place] = ("link", other)
        if act:
            os.symlink(other, path)
    elif kind == "rename" and isinstance(here, tuple) and place != other and model.get(other) != "dir":
        model[other] = model.pop(place)
        if act:
            os.rename(path, target)
    elif kind == "link" and file_here and other not in model:
        # Another name, then the first one goes: the inode stays in another place than its name.
        model[other] = model.pop(place)
        if act:
            os.link(path, target)
            os.unlink(path)
    elif kind == "mkdir" and here is None:
        model[place] = "dir"
        if act:
            os.mkdir(path)
    elif kind == "rmdir" and here == "dir" and place not in dirs:
        del model[place]
        if act:
            os.rmdir(path)
    elif kind == "move":
        # The directory `a/sub` and all in it goes to `b` and back.
        old, new = ("a/sub", "b/sub") if "a/sub" in model else ("b/sub", "a/sub")
        dirs[2] = new
        for known in [p for p in model if p == old or p.startswith(old + "/")]:
            model[new + known[len(old):]] = model.pop(known)
        if act:
            os.rename(f"{root}/{old}", f"{root}/{new}")


def seen(path):
    try:
        found = os.lstat(path)
    except OSError as error:
        assert error.errno in (errno.ENOENT, errno.ENOTDIR), error
        return None
    if stat.S_ISDIR(found.st_mode):
        return "dir"
    if stat.S_ISLNK(found.st_mode):
        return ("link", os.readlink(path))
    with open(path) as f:
        content = f.read()
    assert found.st_size == len(content), (path, found.st_size, len(content))
    return ("file", content, found.st_mode & 0o7777)


def look():
    for where in ["a", "b", "a/sub", "b/sub"]:
        for name in names:
            place = f"{where}/{name}"
            now = seen(f"{root}/{place}")
            assert now == model.get(place), (place, str(now)[:60], str(model.get(place))[:60])
        if where in model:
            listed = sorted(os.listdir(f"{root}/{where}"))
            wanted = sorted(p[len(where) + 1:] for p in model if p.startswith(where + "/") and "/" not in p[len(where) + 1:])
            assert listed == wanted, (where, listed, wanted)
        else:
            assert not os.path.exists(f"{root}/{where}")


for made in ["", "/a", "/b", "/a/sub"]:
    os.mkdir(root + made)
to_child, to_parent = os.pipe(), os.pipe()
child = os.fork() == 0
mine, theirs = (to_child, to_parent) if child else (to_parent, to_child)
for turn in range(rounds):
    acting = (turn % 2 == 1) == child
    if acting:
        change(True)
        os.write(theirs[1], b"!")
        assert os.read(mine[0], 1) == b"!"
    else:
        assert os.read(mine[0], 1) == b"!"
        change(False)
        try:
            look()
        except AssertionError as wrong:
            print("round", turn, wrong, flush=True)
            os._exit(1)
        os.write(theirs[1], b"!")
if child:
    os._exit(0)
assert os.wait()[1] == 0
print(rounds, "rounds")
