package org.bivouac.hadoop;

import java.io.Serializable;
import org.apache.hadoop.fs.FileStatus;

/**
 * Which file something was known of, and which contents it had then. A deployment never uses an inode number again, and each change of a
 * file's data gives it another time. Other deployments have the same inode numbers, but not with the same time of creation, which is in
 * nanoseconds and which nobody can set.
 */
final class Version implements Serializable {
    private static final long serialVersionUID = 1L;

    final long inode;
    final long created;
    final long size;
    final long modified;

    Version(long inode, long created, long size, long modified) {
        this.inode = inode;
        this.created = created;
        this.size = size;
        this.modified = modified;
    }

    /** Of attributes as {@link Native} gives them, which begin at a place in an array. */
    static Version of(long[] attributes, int at) {
        return new Version(
                attributes[at + Native.INODE],
                attributes[at + Native.CREATED],
                attributes[at + Native.SIZE],
                attributes[at + Native.MODIFIED]);
    }

    /** A status that knows it. */
    interface Known {
        Version version();
    }

    /** What a status knows of it, or null: it is one of another file system, or was made by hand. */
    static Version of(FileStatus status) {
        return status instanceof Known ? ((Known) status).version() : null;
    }

    boolean isOfSameFile(Version other) {
        return inode == other.inode && created == other.created;
    }

    /** The time at which attributes changed does not count: a rename and a chmod set it, too. */
    boolean hasSameContents(Version other) {
        return isOfSameFile(other) && size == other.size && modified == other.modified;
    }

    /** Differs for different data. */
    String etag() {
        return Long.toHexString(inode) + "-" + Long.toHexString(size) + "-" + Long.toHexString(modified);
    }
}
