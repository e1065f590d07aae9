package org.bivouac.hadoop;

import java.io.IOException;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/** Makes directories, with those above them that are missing. */
final class Directories {
    private final Store store;
    private final FsPermission umask;

    Directories(Store store, FsPermission umask) {
        this.store = store;
        this.umask = umask;
    }

    /** {@code permission} null: Hadoop's default. */
    void make(Path path, FsPermission permission) throws IOException {
        Path whole = store.whole(path);
        FsPermission masked = (permission == null ? FsPermission.getDirDefault() : permission).applyUMask(umask);
        if (whole.getParent() != null) {
            // In most cases its parent is there, and one request does.
            try {
                store.attached().tell(a -> Native.mkdir(a, store.name(whole), masked.toShort()));
                return;
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
        makeOne(whole, masked);
    }

    /** Makes a directory whose parent is there, unless it is there itself. */
    private void makeOne(Path path, FsPermission permission) throws IOException {
        if (path.getParent() == null) {
            return;
        }
        try {
            store.attached().tell(a -> Native.mkdir(a, store.name(path), permission.toShort()));
        } catch (Native.Errno errno) {
            if (errno.number() != Native.EEXIST) {
                throw Native.failed(errno, path);
            }
            if (!Store.isDirectory(store.attributes(path, true))) {
                throw new FileAlreadyExistsException(path + ": it is not a directory");
            }
        }
    }

    /** Makes a directory and all above it that are missing, with Hadoop's default permissions. */
    void makeAll(Path path) throws IOException {
        long[] attributes = new long[Native.ATTRIBUTES];
        try {
            store.attached().tell(a -> Native.stat(a, store.name(path), true, attributes));
            if (!Store.isDirectory(attributes)) {
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
        makeOne(path, FsPermission.getDirDefault().applyUMask(umask));
    }
}
