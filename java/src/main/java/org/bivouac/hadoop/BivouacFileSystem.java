package org.bivouac.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.LocalFileSystemPathHandle;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.MultipartUploaderBuilder;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.PathHandle;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.impl.FileSystemMultipartUploaderBuilder;
import org.apache.hadoop.fs.impl.PathCapabilitiesSupport;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;
import org.apache.hadoop.fs.statistics.StoreStatisticNames;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsStore;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.DataChecksum;
import org.apache.hadoop.util.Progressable;

/**
 * A Bivouac deployment as Hadoop sees it: {@code bivouac://DEPLOYMENT/path}, or {@code bivouac:///path} for the deployment that
 * the environment names. docs/hadoop.md says how it is configured and what it promises.
 */
public class BivouacFileSystem extends FileSystem implements IOStatisticsSource {
    /** The scheme of its URIs. */
    public static final String SCHEME = "bivouac";

    /** A file with the deployment's key, for processes on nodes that do not have it: their own file system's. */
    public static final String KEY_FILE = "fs.bivouac.key.file";

    /** What {@link FileStatus#getBlockSize} says: how much of a file a task gets, if it asks for nothing else. */
    public static final String SPLIT_SIZE = "fs.bivouac.block.size";

    private static final long DEFAULT_SPLIT = 64L << 20;

    private static final int ENTRIES = 1000;

    private URI uri;
    private volatile Deployment deployment;
    private Path workingDirectory;
    private FsPermission umask;
    private long splitSize;
    private final IOStatisticsStore counts = Counts.ofFileSystem();

    private static final Map<Integer, String> USERS = new ConcurrentHashMap<>();
    private static final Map<Integer, String> GROUPS = new ConcurrentHashMap<>();

    @Override
    public String getScheme() {
        return SCHEME;
    }

    @Override
    public synchronized void initialize(URI name, Configuration conf) throws IOException {
        if (deployment != null) {
            // `BivouacFs` uses one that is there.
            return;
        }
        super.initialize(name, conf);
        setConf(conf);
        String authority = name.getAuthority();
        uri = URI.create(SCHEME + "://" + (authority == null ? "/" : authority));
        String named = authority == null ? System.getenv("BIVOUAC_DEPLOYMENT") : authority;
        if (named == null) {
            throw new IOException(name + " names no deployment, and neither does the environment");
        }
        try {
            deployment = new Deployment(named, Keys.find(named, conf));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, name);
        }
        umask = FsPermission.getUMask(conf);
        splitSize = conf.getLongBytes(SPLIT_SIZE, DEFAULT_SPLIT);
        workingDirectory = getHomeDirectory();
    }

    @Override
    public URI getUri() {
        return uri;
    }

    @Override
    public void close() throws IOException {
        try {
            // What is to be deleted on exit is deleted by this.
            super.close();
        } finally {
            Deployment left;
            synchronized (this) {
                left = deployment;
                deployment = null;
            }
            if (left != null) {
                left.close();
            }
        }
    }

    /** The deployment, if it was not closed. */
    private Deployment attached() throws IOException {
        Deployment attached = deployment;
        if (attached == null) {
            throw new IOException(uri + ": the file system is closed");
        }
        return attached;
    }

    private String inside(Path path) {
        checkPath(path);
        return makeQualified(path).toUri().getPath();
    }

    @Override
    public Path getWorkingDirectory() {
        return workingDirectory;
    }

    @Override
    public void setWorkingDirectory(Path path) {
        checkPath(path);
        workingDirectory = makeQualified(path);
    }

    @Override
    public Path getHomeDirectory() {
        String user;
        try {
            user = UserGroupInformation.getCurrentUser().getShortUserName();
        } catch (IOException e) {
            user = System.getProperty("user.name");
        }
        return new Path("/user/" + user).makeQualified(uri, new Path("/"));
    }

    // Looking.

    private static String user(int number) {
        return USERS.computeIfAbsent(number, n -> Optional.ofNullable(Native.userName(n)).orElse(Integer.toString(n)));
    }

    private static String group(int number) {
        return GROUPS.computeIfAbsent(number, n -> Optional.ofNullable(Native.groupName(n)).orElse(Integer.toString(n)));
    }

    /** The status of what these attributes are of, from a place in an array on. */
    private FileStatus status(Path path, long[] attributes, int at, Path target) {
        int mode = (int) attributes[at + Native.MODE];
        boolean isDirectory = (mode & Native.KIND) == Native.DIRECTORY;
        return new Status(
                etag(attributes, at),
                isDirectory ? 0 : attributes[at + Native.SIZE],
                isDirectory,
                isDirectory ? 0 : (int) attributes[at + Native.COPIES],
                isDirectory ? 0 : splitSize,
                Math.floorDiv(attributes[at + Native.MODIFIED], 1_000_000L),
                Math.floorDiv(attributes[at + Native.ACCESSED], 1_000_000L),
                new FsPermission((short) (mode & 01777)),
                user((int) attributes[at + Native.USER]),
                group((int) attributes[at + Native.GROUP]),
                target,
                path);
    }

    /** Differs for different data: the inode is never reused, and each change has a time of its own. */
    private static String etag(long[] attributes, int at) {
        return Long.toHexString(attributes[at + Native.INODE])
                + "-"
                + Long.toHexString(attributes[at + Native.SIZE])
                + "-"
                + Long.toHexString(attributes[at + Native.MODIFIED]);
    }

    /** A status with an etag. */
    private static final class Status extends FileStatus implements EtagSource {
        private static final long serialVersionUID = 1L;
        private final String etag;

        @SuppressWarnings("checkstyle:ParameterNumber")
        Status(
                String etag,
                long length,
                boolean isDirectory,
                int copies,
                long blockSize,
                long modified,
                long accessed,
                FsPermission permission,
                String owner,
                String group,
                Path target,
                Path path) {
            super(length, isDirectory, copies, blockSize, modified, accessed, permission, owner, group, target, path);
            this.etag = etag;
        }

        @Override
        public String getEtag() {
            return etag;
        }
    }

    /** The same with locations. */
    private static final class Located extends LocatedFileStatus implements EtagSource {
        private static final long serialVersionUID = 1L;
        private final String etag;

        Located(FileStatus status, BlockLocation[] locations) {
            super(status, locations);
            etag = status instanceof EtagSource ? ((EtagSource) status).getEtag() : null;
        }

        @Override
        public String getEtag() {
            return etag;
        }
    }

    private long[] attributes(Path path, boolean follow) throws IOException {
        long[] attributes = new long[Native.ATTRIBUTES];
        try {
            attached().tell(a -> Native.stat(a, inside(path), follow, attributes));
        } catch (Native.Errno errno) {
            // Hadoop has one error for what is not there, also where a file is in the place of a directory.
            if (errno.number() == Native.ENOTDIR) {
                throw new FileNotFoundException(path + ": " + errno.getMessage());
            }
            throw Native.failed(errno, path);
        }
        return attributes;
    }

    private static boolean isDirectory(long[] attributes) {
        return (attributes[Native.MODE] & Native.KIND) == Native.DIRECTORY;
    }

    @Override
    public FileStatus getFileStatus(Path path) throws IOException {
        statistics.incrementReadOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_GET_FILE_STATUS);
        return status(makeQualified(path), attributes(path, true), 0, null);
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
        long[] attributes = attributes(path, false);
        Path target = (attributes[Native.MODE] & Native.KIND) == Native.SYMLINK ? getLinkTarget(path) : null;
        return status(makeQualified(path), attributes, 0, target);
    }

    @Override
    public boolean supportsSymlinks() {
        return true;
    }

    @Override
    public Path getLinkTarget(Path path) throws IOException {
        try {
            String target = attached().ask(a -> Native.readlink(a, inside(path)));
            String mount = attached().ask(Native::mount);
            // What leads to the deployment's root for programs with a mount leads there for all.
            if (target.equals(mount) || target.startsWith(mount + "/")) {
                target = target.length() == mount.length() ? "/" : target.substring(mount.length());
                return makeQualified(new Path(null, null, target));
            }
            return new Path(null, null, target);
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public void createSymlink(Path target, Path link, boolean createParent) throws IOException {
        if (createParent) {
            mkdirs(link.getParent());
        }
        // A link to a path of this deployment leads there for programs with a mount, too.
        URI to = target.toUri();
        try {
            boolean isRelative = to.getScheme() == null && !to.getPath().startsWith("/");
            String text = isRelative ? to.getPath() : attached().ask(Native::mount) + inside(target);
            attached().tell(a -> Native.symlink(a, text, inside(link)));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, link);
        }
    }

    @Override
    protected Path resolveLink(Path path) throws IOException {
        return getLinkTarget(path);
    }

    /** The entries of a directory, as they are asked for. */
    private final class Listing implements RemoteIterator<FileStatus> {
        private final Path path;
        private final Path base;
        private final String[] names = new String[ENTRIES];
        private final long[] attributes = new long[ENTRIES * Native.ATTRIBUTES];
        private final Deployment of;
        private long directory;
        private int there;
        private int next;
        private FileStatus alone;

        Listing(Path path) throws IOException {
            this.path = path;
            this.base = makeQualified(path);
            String name = inside(path);
            try {
                of = attached().retain();
            } catch (Native.Errno errno) {
                throw Native.failed(errno, path);
            }
            try {
                directory = of.ask(a -> Native.opendir(a, name));
            } catch (Native.Errno errno) {
                of.close();
                if (errno.number() != Native.ENOTDIR) {
                    throw Native.failed(errno, path);
                }
                // Of a file, itself.
                alone = status(base, BivouacFileSystem.this.attributes(path, true), 0, null);
            }
        }

        private void end() {
            if (directory != 0) {
                Native.closedir(directory);
                directory = 0;
                of.close();
            }
        }

        @Override
        public boolean hasNext() throws IOException {
            if (alone != null || next < there) {
                return true;
            }
            if (directory == 0) {
                return false;
            }
            try {
                there = Native.readdir(directory, names, attributes);
            } catch (Native.Errno errno) {
                end();
                throw Native.failed(errno, path);
            }
            next = 0;
            if (there == 0) {
                end();
            }
            return there > 0;
        }

        @Override
        public FileStatus next() throws IOException {
            if (!hasNext()) {
                throw new NoSuchElementException("no more entries in " + path);
            }
            if (alone != null) {
                FileStatus only = alone;
                alone = null;
                return only;
            }
            int entry = next++;
            Path child = new Path(base, new Path(null, null, names[entry]));
            int at = entry * Native.ATTRIBUTES;
            if ((attributes[at + Native.MODE] & Native.KIND) == Native.SYMLINK) {
                try {
                    return status(child, BivouacFileSystem.this.attributes(child, true), 0, null);
                } catch (IOException e) {
                    // It leads to nothing, in a circle, or out of the deployment: then it is shown itself.
                    return status(child, attributes, at, getLinkTarget(child));
                }
            }
            return status(child, attributes, at, null);
        }
    }

    @Override
    public FileStatus[] listStatus(Path path) throws IOException {
        statistics.incrementReadOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_LIST_STATUS);
        List<FileStatus> found = new ArrayList<>();
        attached();
        Listing listing = new Listing(path);
        while (listing.hasNext()) {
            found.add(listing.next());
        }
        return found.toArray(new FileStatus[0]);
    }

    @Override
    public RemoteIterator<FileStatus> listStatusIterator(Path path) throws IOException {
        statistics.incrementReadOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_LIST_STATUS);
        attached();
        return new Listing(path);
    }

    @Override
    protected RemoteIterator<LocatedFileStatus> listLocatedStatus(Path path, PathFilter filter) throws IOException {
        RemoteIterator<FileStatus> all = listStatusIterator(path);
        return new RemoteIterator<LocatedFileStatus>() {
            private FileStatus next;

            @Override
            public boolean hasNext() throws IOException {
                while (next == null && all.hasNext()) {
                    FileStatus found = all.next();
                    next = filter.accept(found.getPath()) ? found : null;
                }
                return next != null;
            }

            @Override
            public LocatedFileStatus next() throws IOException {
                if (!hasNext()) {
                    throw new NoSuchElementException("no more entries in " + path);
                }
                FileStatus found = next;
                next = null;
                return new Located(
                        found, found.isFile() ? getFileBlockLocations(found, 0, found.getLen()) : null);
            }
        };
    }

    @Override
    public void access(Path path, FsAction mode) throws IOException {
        int mask = (mode.implies(FsAction.READ) ? 4 : 0)
                | (mode.implies(FsAction.WRITE) ? 2 : 0)
                | (mode.implies(FsAction.EXECUTE) ? 1 : 0);
        try {
            attached().tell(a -> Native.access(a, inside(path), mask));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public BlockLocation[] getFileBlockLocations(FileStatus file, long start, long length) throws IOException {
        if (file == null) {
            return null;
        }
        if (start < 0 || length < 0) {
            throw new IllegalArgumentException("Invalid start or len parameter");
        }
        if (file.isDirectory() || file.getLen() <= start) {
            return new BlockLocation[0];
        }
        return locations(file.getPath(), start, length, splitSize);
    }

    /**
     * Who has which part of a file. A file's blocks are dealt to all servers in turn: so that a split has a place, each part of
     * this length is said to be where most of it is.
     */
    private BlockLocation[] locations(Path path, long start, long length, long part) throws IOException {
        List<String> hosts = new ArrayList<>();
        long[] found;
        try {
            found = attached().ask(a -> Native.locate(a, inside(path), start, length, hosts));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
        List<BlockLocation> made = new ArrayList<>();
        Map<String, Long> has = new HashMap<>();
        long begin = start;
        long end = start;
        int host = 0;
        for (int i = 0; i < found.length; i += 3) {
            long at = found[i];
            long rest = found[i + 1];
            List<String> of = hosts.subList(host, host + (int) found[i + 2]);
            host += found[i + 2];
            while (rest > 0) {
                long some = Math.min(rest, (at / part + 1) * part - at);
                for (String name : of) {
                    has.merge(name, some, Long::sum);
                }
                at += some;
                rest -= some;
                end = at;
                if (at % part == 0) {
                    made.add(location(has, begin, at - begin));
                    begin = at;
                }
            }
        }
        if (end > begin) {
            made.add(location(has, begin, end - begin));
        }
        return made.toArray(new BlockLocation[0]);
    }

    private static BlockLocation location(Map<String, Long> has, long begin, long length) {
        List<Map.Entry<String, Long>> most = new ArrayList<>(has.entrySet());
        most.sort(Map.Entry.<String, Long>comparingByValue().reversed().thenComparing(Map.Entry.comparingByKey()));
        // As many as a file of HDFS has copies: a scheduler that is told of all nodes has no reason to prefer one.
        String[] hosts = most.stream().limit(3).map(Map.Entry::getKey).toArray(String[]::new);
        has.clear();
        return new BlockLocation(hosts, hosts, begin, length);
    }

    @Override
    public FsStatus getStatus(Path path) throws IOException {
        long[] space = new long[4];
        try {
            attached().tell(a -> Native.statfs(a, space));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, uri);
        }
        return new FsStatus(space[0], space[0] - space[1], space[1]);
    }

    @Override
    public FsServerDefaults getServerDefaults(Path path) throws IOException {
        return new FsServerDefaults(
                splitSize, 4096, 64 << 10, (short) 1, Buffers.LENGTH, false, 0, DataChecksum.Type.NULL);
    }

    @Override
    public long getDefaultBlockSize(Path path) {
        return splitSize;
    }

    @Override
    @Deprecated
    public long getDefaultBlockSize() {
        return splitSize;
    }

    @Override
    public String getCanonicalServiceName() {
        return null;
    }

    // Reading and writing.

    private Deployment.Open opened(Path path, int flags, int mode) throws IOException {
        attached();
        try {
            return new Deployment.Open(attached(), inside(path), flags, mode);
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public FSDataInputStream open(Path path, int bufferSize) throws IOException {
        statistics.incrementReadOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_OPEN);
        Deployment.Open file;
        try {
            file = opened(path, Native.O_RDONLY, 0);
        } catch (ParentNotDirectoryException e) {
            throw (IOException) new FileNotFoundException(path + ": a file is in the place of a directory").initCause(e);
        }
        // A directory can be opened, and not read.
        long[] attributes = new long[Native.ATTRIBUTES];
        try {
            file.use(open -> {
                Native.fstat(open, attributes);
                return null;
            });
            if (isDirectory(attributes)) {
                throw new FileNotFoundException(path + ": it is a directory");
            }
        } catch (Native.Errno errno) {
            file.close();
            throw Native.failed(errno, path);
        } catch (FileNotFoundException e) {
            file.close();
            throw e;
        }
        return new FSDataInputStream(new BivouacInputStream(file, makeQualified(path), statistics));
    }

    @Override
    public FSDataOutputStream create(
            Path path,
            FsPermission permission,
            boolean overwrite,
            int bufferSize,
            short replication,
            long blockSize,
            Progressable progress)
            throws IOException {
        Path parent = makeQualified(path).getParent();
        if (parent != null) {
            makeAll(parent);
        }
        return made(path, permission, overwrite);
    }

    @Override
    public FSDataOutputStream createNonRecursive(
            Path path,
            FsPermission permission,
            EnumSet<CreateFlag> flags,
            int bufferSize,
            short replication,
            long blockSize,
            Progressable progress)
            throws IOException {
        CreateFlag.validate(flags);
        if (flags.contains(CreateFlag.APPEND)) {
            return append(path, bufferSize, progress);
        }
        Path parent = makeQualified(path).getParent();
        if (parent != null && !isDirectory(attributes(parent, true))) {
            throw new ParentNotDirectoryException(parent + ": it is not a directory");
        }
        return made(path, permission, flags.contains(CreateFlag.OVERWRITE));
    }

    private FSDataOutputStream made(Path path, FsPermission permission, boolean overwrite) throws IOException {
        statistics.incrementWriteOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_CREATE);
        FsPermission masked =
                (permission == null ? FsPermission.getFileDefault() : permission).applyUMask(umask);
        int flags = Native.O_WRONLY | Native.O_CREAT | Native.O_EXCL;
        while (true) {
            try {
                Deployment.Open file = new Deployment.Open(attached(), inside(path), flags, masked.toShort());
                OutputStream stream = new BivouacOutputStream(file, makeQualified(path), 0, false, statistics);
                return new FSDataOutputStream(stream, null, 0);
            } catch (Native.Errno errno) {
                if (errno.number() != Native.EEXIST || !overwrite) {
                    throw Native.failed(errno, path);
                }
            }
            // Another file takes its place: who is still writing the old one, or reading it, is not disturbed, and does not
            // disturb.
            try {
                attached().tell(a -> Native.unlink(a, inside(path)));
            } catch (Native.Errno errno) {
                if (errno.number() == Native.EISDIR) {
                    throw new FileAlreadyExistsException(path + ": it is a directory");
                }
                if (errno.number() != Native.ENOENT) {
                    throw Native.failed(errno, path);
                }
            }
        }
    }

    @Override
    public FSDataOutputStream append(Path path, int bufferSize, Progressable progress) throws IOException {
        statistics.incrementWriteOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_APPEND);
        long[] attributes = attributes(path, true);
        if (isDirectory(attributes)) {
            throw new FileAlreadyExistsException(path + ": it is a directory");
        }
        Deployment.Open file = opened(path, Native.O_WRONLY, 0);
        long size = attributes[Native.SIZE];
        OutputStream stream = new BivouacOutputStream(file, makeQualified(path), size, true, statistics);
        return new FSDataOutputStream(stream, null, size);
    }

    @Override
    public boolean truncate(Path path, long length) throws IOException {
        statistics.incrementWriteOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_TRUNCATE);
        long[] attributes = attributes(path, true);
        if (isDirectory(attributes)) {
            throw new FileNotFoundException(path + ": it is a directory");
        }
        if (length < 0 || length > attributes[Native.SIZE]) {
            throw new org.apache.hadoop.HadoopIllegalArgumentException(
                    "a file of " + attributes[Native.SIZE] + " bytes is not truncated to " + length);
        }
        try {
            attached().tell(a -> Native.truncate(a, inside(path), length));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
        return true;
    }

    /** Parts are appended one after the other, and removed. */
    @Override
    public void concat(Path target, Path[] sources) throws IOException {
        if (sources == null || sources.length == 0) {
            throw new PathIOException(target.toString(), "there is nothing to append");
        }
        FileStatus into = getFileStatus(target);
        if (into.isDirectory()) {
            throw new PathIOException(target.toString(), "it is a directory");
        }
        for (Path source : sources) {
            FileStatus part = getFileStatus(source);
            if (part.isDirectory() || makeQualified(source).equals(makeQualified(target))) {
                throw new PathIOException(source.toString(), "it cannot be appended to " + target);
            }
        }
        try (FSDataOutputStream out = append(target)) {
            for (Path source : sources) {
                try (FSDataInputStream in = open(source)) {
                    org.apache.hadoop.io.IOUtils.copyBytes(in, out, Buffers.LENGTH, false);
                }
            }
        }
        for (Path source : sources) {
            delete(source, false);
        }
    }

    @Override
    protected PathHandle createPathHandle(FileStatus status, Options.HandleOpt... options) {
        if (status.isDirectory() || status.isSymlink()) {
            throw new IllegalArgumentException("only files have handles");
        }
        checkPath(status.getPath());
        if (Options.HandleOpt.getOpt(Options.HandleOpt.Location.class, options)
                .orElse(Options.HandleOpt.moved(false))
                .allowChange()) {
            throw new UnsupportedOperationException("a handle does not follow a file that is renamed");
        }
        boolean mayChange = Options.HandleOpt.getOpt(Options.HandleOpt.Data.class, options)
                .orElse(Options.HandleOpt.changed(false))
                .allowChange();
        return new LocalFileSystemPathHandle(
                status.getPath().toString(),
                mayChange ? Optional.empty() : Optional.of(status.getModificationTime()));
    }

    @Override
    public FSDataInputStream open(PathHandle handle, int bufferSize) throws IOException {
        if (!(handle instanceof LocalFileSystemPathHandle)) {
            handle = new LocalFileSystemPathHandle(handle.bytes());
        }
        LocalFileSystemPathHandle known = (LocalFileSystemPathHandle) handle;
        Path path = new Path(known.getPath());
        known.verify(getFileStatus(path));
        return open(path, bufferSize);
    }

    @Override
    public MultipartUploaderBuilder createMultipartUploader(Path base) throws IOException {
        return new FileSystemMultipartUploaderBuilder(this, base);
    }

    // Names.

    @Override
    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        statistics.incrementWriteOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_MKDIRS);
        Path whole = makeQualified(path);
        FsPermission masked = (permission == null ? FsPermission.getDirDefault() : permission).applyUMask(umask);
        if (whole.getParent() != null) {
            try {
                attached().tell(a -> Native.mkdir(a, inside(whole), masked.toShort()));
                return true;
            } catch (Native.Errno errno) {
                switch (errno.number()) {
                    case Native.ENOENT:
                        makeAll(whole.getParent());
                        break;
                    case Native.EEXIST:
                        break;
                    default:
                        throw Native.failed(errno, path);
                }
            }
        }
        make(whole, masked);
        return true;
    }

    /** Makes a directory whose parent is there, unless it is there itself. */
    private void make(Path path, FsPermission permission) throws IOException {
        if (path.getParent() == null) {
            return;
        }
        try {
            attached().tell(a -> Native.mkdir(a, inside(path), permission.toShort()));
        } catch (Native.Errno errno) {
            if (errno.number() != Native.EEXIST) {
                throw Native.failed(errno, path);
            }
            if (!isDirectory(attributes(path, true))) {
                throw new FileAlreadyExistsException(path + ": it is not a directory");
            }
        }
    }

    /** Makes a directory and all above it that are missing. */
    private void makeAll(Path path) throws IOException {
        long[] attributes = new long[Native.ATTRIBUTES];
        try {
            attached().tell(a -> Native.stat(a, inside(path), true, attributes));
            if (!isDirectory(attributes)) {
                throw new ParentNotDirectoryException(path + ": it is not a directory");
            }
            return;
        } catch (Native.Errno errno) {
            if (errno.number() != Native.ENOENT) {
                throw Native.failed(errno, path);
            }
        }
        if (path.getParent() != null) {
            makeAll(path.getParent());
        }
        make(path, FsPermission.getDirDefault().applyUMask(umask));
    }

    @Override
    public boolean delete(Path path, boolean recursive) throws IOException {
        statistics.incrementWriteOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_DELETE);
        String inside = inside(path);
        boolean isRoot = inside.equals("/");
        try {
            if (!isRoot) {
                attached().tell(a -> Native.unlink(a, inside));
                return true;
            }
        } catch (Native.Errno errno) {
            switch (errno.number()) {
                case Native.ENOENT:
                case Native.ENOTDIR:
                    return false;
                case Native.EISDIR:
                    break;
                default:
                    throw Native.failed(errno, path);
            }
        }
        if (recursive) {
            empty(inside, path);
            if (isRoot) {
                return true;
            }
        } else if (isRoot) {
            if (listStatus(path).length > 0) {
                throw new PathIsNotEmptyDirectoryException(path.toString());
            }
            return false;
        }
        try {
            attached().tell(a -> Native.rmdir(a, inside));
            return true;
        } catch (Native.Errno errno) {
            if (errno.number() == Native.ENOENT) {
                return false;
            }
            throw Native.failed(errno, path);
        }
    }

    /** Removes all that is in a directory. */
    private void empty(String directory, Path path) throws IOException {
        String[] names = new String[ENTRIES];
        long[] attributes = new long[ENTRIES * Native.ATTRIBUTES];
        try {
            long open = attached().ask(a -> Native.opendir(a, directory));
            try {
                int there;
                while ((there = Native.readdir(open, names, attributes)) > 0) {
                    for (int i = 0; i < there; i++) {
                        String name = directory.equals("/") ? "/" + names[i] : directory + "/" + names[i];
                        try {
                            if ((attributes[i * Native.ATTRIBUTES + Native.MODE] & Native.KIND) == Native.DIRECTORY) {
                                empty(name, path);
                                attached().tell(a -> Native.rmdir(a, name));
                            } else {
                                attached().tell(a -> Native.unlink(a, name));
                            }
                        } catch (Native.Errno errno) {
                            // Somebody else has removed it.
                            if (errno.number() != Native.ENOENT) {
                                throw errno;
                            }
                        }
                    }
                }
            } finally {
                Native.closedir(open);
            }
        } catch (Native.Errno errno) {
            if (errno.number() != Native.ENOENT) {
                throw Native.failed(errno, path);
            }
        }
    }

    @Override
    public boolean rename(Path from, Path to) throws IOException {
        statistics.incrementWriteOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_RENAME);
        String source = inside(from);
        String given = inside(to);
        String target = given;
        if (source.equals("/")) {
            return false;
        }
        FileStatus moved = getFileStatus(from);
        long[] there = new long[Native.ATTRIBUTES];
        try {
            attached().tell(a -> Native.stat(a, given, true, there));
            if (isDirectory(there)) {
                // Into it. A directory onto itself is refused, a file onto itself is done.
                if (source.equals(target)) {
                    return false;
                }
                target = target.equals("/") ? "/" + from.getName() : target + "/" + from.getName();
            } else if (source.equals(target)) {
                return moved.isFile();
            } else {
                return false;
            }
        } catch (Native.Errno errno) {
            if (errno.number() != Native.ENOENT) {
                return false;
            }
        }
        if (target.equals(source)) {
            return moved.isFile();
        }
        String into = target;
        try {
            attached().tell(a -> Native.rename(a, source, into, Native.NOREPLACE));
            return true;
        } catch (Native.Errno errno) {
            switch (errno.number()) {
                case Native.EEXIST:
                case Native.ENOENT:
                case Native.ENOTDIR:
                case Native.EISDIR:
                case Native.EINVAL:
                case Native.ENOTEMPTY:
                    return false;
                default:
                    throw Native.failed(errno, from);
            }
        }
    }

    /** With exceptions where the other one returns false; replaces what is there in one step, if that is wanted. */
    @Override
    @Deprecated
    protected void rename(Path from, Path to, Options.Rename... options) throws IOException {
        statistics.incrementWriteOps(1);
        counts.incrementCounter(StoreStatisticNames.OP_RENAME);
        boolean overwrite = Arrays.asList(options).contains(Options.Rename.OVERWRITE);
        FileStatus source = getFileLinkStatus(from);
        FileStatus target = null;
        try {
            target = getFileLinkStatus(to);
        } catch (FileNotFoundException e) {
            Path parent = makeQualified(to).getParent();
            if (parent != null && !isDirectory(attributes(parent, true))) {
                throw (IOException) new ParentNotDirectoryException(parent + ": it is not a directory").initCause(e);
            }
        }
        if (target != null) {
            if (makeQualified(from).equals(makeQualified(to)) || !overwrite) {
                throw new FileAlreadyExistsException(to + ": it exists");
            }
            if (source.isDirectory() != target.isDirectory()) {
                throw new IOException(from + " and " + to + " have to be both files or both directories");
            }
            if (target.isDirectory() && listStatus(to).length > 0) {
                throw new PathIsNotEmptyDirectoryException(to.toString());
            }
        }
        try {
            attached().tell(a -> Native.rename(a, inside(from), inside(to), overwrite ? 0 : Native.NOREPLACE));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, from);
        }
    }

    // Attributes.

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
        try {
            attached().tell(a -> Native.chmod(a, inside(path), permission.toShort()));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public void setOwner(Path path, String user, String group) throws IOException {
        if (user == null && group == null) {
            throw new IOException(path + ": a user or a group has to be given");
        }
        int uid = user == null ? -1 : number(user, Native.userNumber(user), "user");
        int gid = group == null ? -1 : number(group, Native.groupNumber(group), "group");
        try {
            attached().tell(a -> Native.chown(a, inside(path), uid, gid));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    private static int number(String name, int found, String what) throws IOException {
        if (found >= 0) {
            return found;
        }
        try {
            return Integer.parseUnsignedInt(name);
        } catch (NumberFormatException e) {
            throw new IOException("there is no " + what + " " + name + " on this node", e);
        }
    }

    @Override
    public void setTimes(Path path, long modified, long accessed) throws IOException {
        try {
            attached().tell(a -> Native.utimes(a, inside(path), nanos(accessed), nanos(modified)));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    private static long nanos(long millis) {
        return millis == -1 ? Native.AS_IT_IS : millis * 1_000_000L;
    }

    @Override
    public void setXAttr(Path path, String name, byte[] value, EnumSet<XAttrSetFlag> flag) throws IOException {
        boolean create = flag.contains(XAttrSetFlag.CREATE);
        boolean replace = flag.contains(XAttrSetFlag.REPLACE);
        try {
            attached().tell(a -> Native.setxattr(a, inside(path),
                    name,
                    value == null ? new byte[0] : value,
                    create == replace ? 0 : create ? 1 : 2));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public byte[] getXAttr(Path path, String name) throws IOException {
        try {
            return attached().ask(a -> Native.getxattr(a, inside(path), name));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path path) throws IOException {
        return getXAttrs(path, listXAttrs(path));
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path path, List<String> names) throws IOException {
        Map<String, byte[]> found = new HashMap<>();
        for (String name : names) {
            found.put(name, getXAttr(path, name));
        }
        return found;
    }

    @Override
    public List<String> listXAttrs(Path path) throws IOException {
        try {
            return Arrays.asList(attached().ask(a -> Native.listxattr(a, inside(path))));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public void removeXAttr(Path path, String name) throws IOException {
        try {
            attached().tell(a -> Native.removexattr(a, inside(path), name));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public boolean hasPathCapability(Path path, String capability) throws IOException {
        switch (PathCapabilitiesSupport.validatePathCapabilityArgs(makeQualified(path), capability)) {
            case CommonPathCapabilities.ETAGS_AVAILABLE:
            case CommonPathCapabilities.ETAGS_PRESERVED_IN_RENAME:
            case CommonPathCapabilities.FS_APPEND:
            case CommonPathCapabilities.FS_CONCAT:
            case CommonPathCapabilities.FS_MULTIPART_UPLOADER:
            case CommonPathCapabilities.FS_PATHHANDLES:
            case CommonPathCapabilities.FS_PERMISSIONS:
            case CommonPathCapabilities.FS_SYMLINKS:
            case CommonPathCapabilities.FS_TRUNCATE:
            case CommonPathCapabilities.FS_XATTRS:
                return true;
            default:
                return super.hasPathCapability(path, capability);
        }
    }

    @Override
    public IOStatistics getIOStatistics() {
        return counts;
    }

    @Override
    public String toString() {
        return "BivouacFileSystem{" + uri + "}";
    }
}
