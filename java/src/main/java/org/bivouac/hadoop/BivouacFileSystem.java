package org.bivouac.hadoop;

import java.io.IOException;
import java.net.URI;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.MultipartUploaderBuilder;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.PathHandle;
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
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.util.DataChecksum;
import org.apache.hadoop.util.Progressable;

/**
 * A Bivouac deployment as Hadoop sees it: {@code bivouac://DEPLOYMENT/path}, or {@code bivouac:///path} for the deployment that
 * the environment names. docs/hadoop.md says how it is configured and what it promises.
 *
 * <p>This class is what Hadoop calls: it counts the calls, and hands them on. How each is done, the classes that it uses say.
 */
public class BivouacFileSystem extends FileSystem implements IOStatisticsSource {
    /** The scheme of its URIs. */
    public static final String SCHEME = "bivouac";

    /** A file with the deployment's key, for processes on nodes that do not have it: their own file system's. */
    public static final String KEY_FILE = "fs.bivouac.key.file";

    /** What {@link FileStatus#getBlockSize} says: how much of a file a task gets, if it asks for nothing else. */
    public static final String SPLIT_SIZE = "fs.bivouac.block.size";

    /** {@code CRC32C}: files have checksums, for which they are read. Otherwise they have none. */
    public static final String CHECKSUM = "fs.bivouac.checksum";

    private static final long DEFAULT_SPLIT = 64L << 20;

    private URI uri;
    private String deployment;
    private Path workingDirectory;
    private long splitSize;
    private boolean checksums;
    private final IOStatisticsStore counts = Counts.ofFileSystem();

    private Store store;
    private Streams streams;
    private Directories directories;
    private Attributes attributes;
    private Locations locations;

    @Override
    public String getScheme() {
        return SCHEME;
    }

    @Override
    public synchronized void initialize(URI name, Configuration conf) throws IOException {
        if (store != null) {
            // `BivouacFs` uses one that is there.
            return;
        }
        super.initialize(name, conf);
        setConf(conf);
        String authority = name.getAuthority();
        uri = URI.create(SCHEME + "://" + (authority == null ? "/" : authority));
        deployment = authority == null ? System.getenv("BIVOUAC_DEPLOYMENT") : authority;
        if (deployment == null) {
            throw new IOException(name + " names no deployment, and neither does the environment");
        }
        FsPermission umask = FsPermission.getUMask(conf);
        checksums = Checksums.areWanted(conf);
        splitSize = conf.getLongBytes(SPLIT_SIZE, DEFAULT_SPLIT);
        workingDirectory = getHomeDirectory();
        Deployment attached;
        try {
            attached = new Deployment(deployment, Keys.find(deployment, conf));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, name);
        }
        store = new Store(this, attached);
        streams = new Streams(store, umask, statistics);
        directories = new Directories(store, umask);
        attributes = new Attributes(store);
        locations = new Locations(store, splitSize);
    }

    @Override
    public void close() throws IOException {
        try {
            // What is to be deleted on exit is deleted by this.
            super.close();
        } finally {
            if (store != null) {
                store.close();
            }
        }
    }

    private void reads(String operation) {
        statistics.incrementReadOps(1);
        counts.incrementCounter(operation);
    }

    private void writes(String operation) {
        statistics.incrementWriteOps(1);
        counts.incrementCounter(operation);
    }

    // Paths.

    @Override
    public URI getUri() {
        return uri;
    }

    @Override
    public Path getWorkingDirectory() {
        return workingDirectory;
    }

    @Override
    public void setWorkingDirectory(Path path) {
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

    @Override
    public FileStatus getFileStatus(Path path) throws IOException {
        reads(StoreStatisticNames.OP_GET_FILE_STATUS);
        return new Status(makeQualified(path), store.attributes(path, true), 0, splitSize, null);
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
        long[] found = store.attributes(path, false);
        boolean isLink = (found[Native.MODE] & Native.KIND) == Native.SYMLINK;
        return new Status(makeQualified(path), found, 0, splitSize, isLink ? getLinkTarget(path) : null);
    }

    @Override
    public FileStatus[] listStatus(Path path) throws IOException {
        return listing(path).all();
    }

    @Override
    public RemoteIterator<FileStatus> listStatusIterator(Path path) throws IOException {
        return listing(path);
    }

    @Override
    protected RemoteIterator<LocatedFileStatus> listLocatedStatus(Path path, PathFilter filter) throws IOException {
        return new LocatedListing(listing(path), path, filter, locations);
    }

    private Listing listing(Path path) throws IOException {
        reads(StoreStatisticNames.OP_LIST_STATUS);
        return new Listing(store, path, splitSize);
    }

    @Override
    public BlockLocation[] getFileBlockLocations(FileStatus file, long start, long length) throws IOException {
        return locations.of(file, start, length);
    }

    @Override
    public FsStatus getStatus(Path path) throws IOException {
        long[] space = new long[4];
        store.tell(new Path("/"), (a, root) -> Native.statfs(a, space));
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

    // Delegation tokens.

    @Override
    public String getCanonicalServiceName() {
        return Tokens.service(deployment).toString();
    }

    /** Nobody renews it. */
    @Override
    public Token<?> getDelegationToken(String renewer) throws IOException {
        return Tokens.issue(deployment, getConf());
    }

    // Symbolic links.

    @Override
    public boolean supportsSymlinks() {
        return true;
    }

    @Override
    public Path getLinkTarget(Path path) throws IOException {
        return new Links(store).target(path);
    }

    @Override
    public void createSymlink(Path target, Path link, boolean createParent) throws IOException {
        if (createParent) {
            mkdirs(link.getParent());
        }
        new Links(store).make(target, link);
    }

    @Override
    protected Path resolveLink(Path path) throws IOException {
        return getLinkTarget(path);
    }

    // Reading and writing.

    @Override
    public FSDataInputStream open(Path path, int bufferSize) throws IOException {
        reads(StoreStatisticNames.OP_OPEN);
        return streams.read(path);
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
            directories.makeAll(parent);
        }
        writes(StoreStatisticNames.OP_CREATE);
        return streams.create(path, permission, overwrite);
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
        if (parent != null && !Store.isDirectory(store.attributes(parent, true))) {
            throw new ParentNotDirectoryException(parent + ": it is not a directory");
        }
        writes(StoreStatisticNames.OP_CREATE);
        return streams.create(path, permission, flags.contains(CreateFlag.OVERWRITE));
    }

    @Override
    public FSDataOutputStream append(Path path, int bufferSize, Progressable progress) throws IOException {
        writes(StoreStatisticNames.OP_APPEND);
        return streams.append(path);
    }

    @Override
    public boolean truncate(Path path, long length) throws IOException {
        writes(StoreStatisticNames.OP_TRUNCATE);
        streams.truncate(path, length);
        return true;
    }

    @Override
    public void concat(Path target, Path[] sources) throws IOException {
        Concat.run(this, target, sources);
    }

    @Override
    protected PathHandle createPathHandle(FileStatus status, Options.HandleOpt... options) {
        checkPath(status.getPath());
        return FileHandle.of(deployment, status, options);
    }

    @Override
    public FSDataInputStream open(PathHandle handle, int bufferSize) throws IOException {
        FileHandle known = FileHandle.of(handle);
        if (!known.deployment().equals(deployment)) {
            throw known.invalid("this deployment is " + deployment, null);
        }
        reads(StoreStatisticNames.OP_OPEN);
        return streams.read(known);
    }

    @Override
    public MultipartUploaderBuilder createMultipartUploader(Path base) throws IOException {
        return new FileSystemMultipartUploaderBuilder(this, base);
    }

    // Names.

    @Override
    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        writes(StoreStatisticNames.OP_MKDIRS);
        directories.make(path, permission);
        return true;
    }

    @Override
    public boolean delete(Path path, boolean recursive) throws IOException {
        writes(StoreStatisticNames.OP_DELETE);
        return new Removal(store).remove(path, recursive);
    }

    @Override
    public BulkDelete createBulkDelete(Path base) throws IOException {
        return BulkDeletion.below(store, base, this);
    }

    @Override
    public boolean rename(Path from, Path to) throws IOException {
        writes(StoreStatisticNames.OP_RENAME);
        return new Renaming(store).rename(from, to);
    }

    @Override
    @Deprecated
    protected void rename(Path from, Path to, Options.Rename... options) throws IOException {
        writes(StoreStatisticNames.OP_RENAME);
        new Renaming(store).rename(from, to, Arrays.asList(options).contains(Options.Rename.OVERWRITE));
    }

    // Attributes.

    @Override
    public void access(Path path, FsAction mode) throws IOException {
        attributes.access(path, mode);
    }

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
        attributes.setPermission(path, permission);
    }

    @Override
    public void setOwner(Path path, String user, String group) throws IOException {
        attributes.setOwner(path, user, group);
    }

    @Override
    public void setTimes(Path path, long modified, long accessed) throws IOException {
        attributes.setTimes(path, modified, accessed);
    }

    @Override
    public void setXAttr(Path path, String name, byte[] value, EnumSet<XAttrSetFlag> flag) throws IOException {
        attributes.set(path, name, value, flag);
    }

    @Override
    public byte[] getXAttr(Path path, String name) throws IOException {
        return attributes.get(path, name);
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path path) throws IOException {
        return attributes.get(path, listXAttrs(path));
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path path, List<String> names) throws IOException {
        return attributes.get(path, names);
    }

    @Override
    public List<String> listXAttrs(Path path) throws IOException {
        return attributes.list(path);
    }

    @Override
    public void removeXAttr(Path path, String name) throws IOException {
        attributes.remove(path, name);
    }

    /** Null, as of local files, unless the configuration asks for checksums. */
    @Override
    public FileChecksum getFileChecksum(Path path, long length) throws IOException {
        return checksums ? Checksums.of(this, path, length) : null;
    }

    // What it can do, and what it did.

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
            case CommonPathCapabilities.FS_CHECKSUMS:
                return checksums;
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
