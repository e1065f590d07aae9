"""Processes that use one file in turns: what one did, the others see at once, byte for byte.

    turns.py OPERATIONS SEED MAPPED WORKER...   draws operations, has a worker do each, and compares with a model in memory
    turns.py work PATH                          a worker: does what standard input says

WORKER is a shell command that starts a worker, in whatever way of access. MAPPED says what is done through writable shared mappings:
`no` nothing, `kept` a mapping that stays, `anew` one in a file that is opened for it. Prints the number of operations."""
import errno, mmap, os, pickle, random, struct, subprocess, sys

LONGEST = 150000


def tell(stream, value):
    data = pickle.dumps(value)
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def told(stream):
    head = stream.read(4)
    return pickle.loads(stream.read(struct.unpack("<I", head)[0])) if head else None


class Worker:
    def __init__(self, path):
        self.path = path
        self.map = None
        self.open()

    def open(self):
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        self.end = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def reopen(self):
        os.close(self.fd)
        os.close(self.end)
        self.open()

    def pread(self, at, size):
        return os.pread(self.fd, size, at)

    def read(self, at, size):
        os.lseek(self.fd, at, os.SEEK_SET)
        data = os.read(self.fd, size)
        assert os.lseek(self.fd, 0, os.SEEK_CUR) == at + len(data)
        return data

    def pwrite(self, at, data):
        return os.pwrite(self.fd, data, at)

    def write(self, at, data):
        os.lseek(self.fd, at, os.SEEK_SET)
        return os.write(self.fd, data)

    def append(self, data):
        return os.write(self.end, data)

    def truncate(self, size):
        os.truncate(self.path, size)

    def ftruncate(self, size):
        os.ftruncate(self.fd, size)

    def allocate(self, at, size):
        os.posix_fallocate(self.fd, at, size)

    def size(self):
        by_path, by_number = os.stat(self.path).st_size, os.fstat(self.fd).st_size
        assert by_path == by_number == os.lseek(self.fd, 0, os.SEEK_END), (by_path, by_number)
        return by_path

    def copy(self, at, to, size):
        # A kernel mount copies as far as the kernel knows the file, which others may have made longer.
        os.fstat(self.fd)
        return os.copy_file_range(self.fd, self.fd, size, at, to)

    def sync(self):
        os.fsync(self.fd)

    def data(self, at):
        try:
            return os.lseek(self.fd, at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            return None

    def keep(self):
        """Maps more than the file will have most of the time; only what is there is touched."""
        os.ftruncate(self.fd, LONGEST)
        self.map = mmap.mmap(self.fd, LONGEST)
        os.ftruncate(self.fd, 0)

    def mapread(self, at, size):
        return self.map[at : at + size]

    def mapwrite(self, at, data):
        self.map[at : at + len(data)] = data

    def anew(self, use):
        fd = os.open(self.path, os.O_RDWR)
        with mmap.mmap(fd, 0) as found:
            use(found)
            found.flush()
        os.close(fd)

    def mapread_anew(self, at, size):
        data = []
        self.anew(lambda found: data.append(found[at : at + size]))
        return data[0]

    def mapwrite_anew(self, at, data):
        self.anew(lambda found: found.__setitem__(slice(at, at + len(data)), data))


def work(path):
    worker = Worker(path)
    tell(sys.stdout.buffer, "ready")
    while (order := told(sys.stdin.buffer)) is not None:
        name, *words = order
        try:
            answer = getattr(worker, name)(*words)
        except OSError as error:
            answer = errno.errorcode[error.errno]
        except Exception as error:
            answer = repr(error)
        tell(sys.stdout.buffer, answer)


def drive(operations, seed, mapped, commands):
    draw = random.Random(seed)
    start = lambda line: subprocess.Popen(["bash", "-c", "exec " + line], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    workers = [start(line) for line in commands]
    for worker in workers:
        assert told(worker.stdout) == "ready"
        if mapped == "kept":
            tell(worker.stdin, ("keep",))
            assert told(worker.stdout) is None
    model = bytearray()
    history = []
    weights = {"pread": 10, "read": 10, "pwrite": 10, "write": 10, "append": 3, "truncate": 3, "ftruncate": 5, "allocate": 2}
    weights |= {"size": 6, "copy": 3, "sync": 1, "data": 3, "reopen": 1}
    weights |= {"no": {}, "kept": {"mapread": 8, "mapwrite": 8}, "anew": {"mapread_anew": 4, "mapwrite_anew": 4}}[mapped]
    names, shares = list(weights), list(weights.values())

    def put(at, data):
        if data:
            model.extend(bytes(max(0, at + len(data) - len(model))))
            model[at : at + len(data)] = data

    for number in range(operations):
        name = draw.choices(names, shares)[0]
        size = min(draw.choice([1, 7, 100, 4096, 5000, 16384, 20000]), draw.randrange(1, 20001))
        inside = name.startswith("map") or name == "copy"
        at = draw.randrange(len(model) or 1) if inside else draw.choice([draw.randrange(LONGEST - 20000), 4096, 16384, 0])
        if inside:
            size = min(size, len(model) - at)
            if size <= 0:
                continue
        data = draw.randbytes(size)
        words, expected = (at, size), None
        if "read" in name:
            expected = bytes(model[at : at + size])
        elif name in ("pwrite", "write") or name.startswith("mapwrite"):
            words, expected = (at, data), size if "map" not in name else None
            put(at, data)
        elif name == "append":
            if len(model) + size > LONGEST:
                continue
            words, expected = (data,), size
            put(len(model), data)
        elif name in ("truncate", "ftruncate"):
            words = (at,)
            model[at:] = b""
            model.extend(bytes(at - len(model)))
        elif name == "allocate":
            model.extend(bytes(max(0, at + size - len(model))))
        elif name == "copy":
            # Where the two ranges overlap, it is EINVAL.
            to = draw.randrange(LONGEST - 20000)
            if abs(to - at) < size:
                continue
            words, expected = (at, to, size), size
            put(to, bytes(model[at : at + size]))
        elif name == "size":
            words, expected = (), len(model)
        elif name in ("sync", "reopen"):
            words = ()
        who = draw.randrange(len(workers))
        history = history[-30:] + [(number, who, name, *(len(w) if isinstance(w, bytes) else w for w in words))]
        if name == "data":
            words = (at,)
        tell(workers[who].stdin, (name, *words))
        answer = told(workers[who].stdout)
        if name == "data":
            # Nothing but zeros may be passed over.
            right = at >= len(model) if answer is None else at <= answer < len(model)
            right = right or answer is None and not any(model[at:])
            right = right and (answer is None or not any(model[at:answer]))
        else:
            right = answer == expected
        if not right:
            for line in history:
                print(*line)
            if isinstance(expected, bytes):
                if isinstance(answer, bytes):
                    same = len(os.path.commonprefix([answer, expected]))
                    answer = f"{len(answer)} bytes, right up to the {same}th,"
                expected = f"{len(expected)} bytes"
            sys.exit(f"seed {seed}, operation {number}: {answer} instead of {expected}; the file has {len(model)} bytes")
    for worker in workers:
        worker.stdin.close()
        assert worker.wait() == 0
    print(operations, "operations")


if sys.argv[1] == "work":
    work(sys.argv[2])
else:
    drive(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
