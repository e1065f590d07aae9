package org.bivouac.hadoop;

import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/** The status of a file or directory, with an etag. */
final class Status extends FileStatus implements EtagSource, Version.Known {
    private static final long serialVersionUID = 1L;
    private final Version version;

    /**
     * The status of what these attributes are of, from a place in an array on.
     *
     * @param splitSize how much of a file a task gets
     * @param target where a symbolic link leads, which was not followed; otherwise null
     */
    Status(Path path, long[] attributes, int at, long splitSize, Path target) {
        this(path, attributes, at, isDirectory(attributes, at), splitSize, target);
    }

    private Status(Path path, long[] attributes, int at, boolean isDirectory, long splitSize, Path target) {
        super(
                isDirectory ? 0 : attributes[at + Native.SIZE],
                isDirectory,
                isDirectory ? 0 : (int) attributes[at + Native.COPIES],
                isDirectory ? 0 : splitSize,
                Math.floorDiv(attributes[at + Native.MODIFIED], 1_000_000L),
                Math.floorDiv(attributes[at + Native.ACCESSED], 1_000_000L),
                new FsPermission((short) (attributes[at + Native.MODE] & 01777)),
                Owners.user((int) attributes[at + Native.USER]),
                Owners.group((int) attributes[at + Native.GROUP]),
                target,
                path);
        version = Version.of(attributes, at);
    }

    private static boolean isDirectory(long[] attributes, int at) {
        return (attributes[at + Native.MODE] & Native.KIND) == Native.DIRECTORY;
    }

    @Override
    public Version version() {
        return version;
    }

    @Override
    public String getEtag() {
        return version.etag();
    }
}
