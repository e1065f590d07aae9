package org.bivouac.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.OutputStream;
import org.apache.hadoop.HadoopIllegalArgumentException;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/** Opens files, to be read, made anew or appended to, and truncates them. */
final class Streams {
    private final Store store;
    private final FsPermission umask;
    private final FileSystem.Statistics statistics;

    Streams(Store store, FsPermission umask, FileSystem.Statistics statistics) {
        this.store = store;
        this.umask = umask;
        this.statistics = statistics;
    }

    FSDataInputStream read(Path path) throws IOException {
        Deployment.Open file;
        try {
            file = store.open(path, Native.O_RDONLY, 0);
        } catch (ParentNotDirectoryException e) {
            throw (IOException) new FileNotFoundException(path + ": a file is in the place of a directory").initCause(e);
        }
        return stream(file, store.whole(path), attributes -> {});
    }

    /** What the handle is of, if that is still what the handle asks for. */
    FSDataInputStream read(FileHandle handle) throws IOException {
        Path path = store.whole(new Path(null, null, handle.path()));
        Deployment.Open file;
        try {
            file = new Deployment.Open(
                    store.attached(),
                    a -> handle.mayMove()
                            ? Native.openInode(a, handle.inode(), Native.O_RDONLY)
                            : Native.open(a, handle.path(), Native.O_RDONLY, 0));
        } catch (Native.Errno errno) {
            switch (errno.number()) {
                // It is gone, or something else than a file is in its place, or in that of a directory above it.
                case Native.ENOENT:
                case Native.ENOTDIR:
                case Native.EISDIR:
                case Native.ELOOP:
                case Native.ENXIO:
                case Native.EXDEV:
                    throw handle.invalid("no such file is there", errno);
                default:
                    throw Native.failed(errno, path);
            }
        }
        return stream(file, path, handle::check);
    }

    /** What is asked of the attributes of a file that was opened. */
    private interface Check {
        void of(long[] attributes) throws IOException;
    }

    /** A stream of an open file, if it may be read; otherwise the file is closed. */
    private FSDataInputStream stream(Deployment.Open file, Path path, Check check) throws IOException {
        long[] attributes = new long[Native.ATTRIBUTES];
        try {
            file.use(open -> {
                Native.fstat(open, attributes);
                return null;
            });
            check.of(attributes);
            // A directory can be opened, and not read.
            if (Store.isDirectory(attributes)) {
                throw new FileNotFoundException(path + ": it is a directory");
            }
        } catch (Native.Errno errno) {
            file.close();
            throw Native.failed(errno, path);
        } catch (IOException e) {
            file.close();
            throw e;
        }
        return new FSDataInputStream(new BivouacInputStream(file, path, statistics));
    }

    /** Makes a file in a directory that is there. {@code permission} null: Hadoop's default. */
    FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite) throws IOException {
        FsPermission masked = (permission == null ? FsPermission.getFileDefault() : permission).applyUMask(umask);
        int flags = Native.O_WRONLY | Native.O_CREAT | Native.O_EXCL;
        while (true) {
            try {
                Deployment.Open file =
                        new Deployment.Open(store.attached(), a -> Native.open(a, store.name(path), flags, masked.toShort()));
                OutputStream stream = new BivouacOutputStream(file, store.whole(path), 0, false, statistics);
                return new FSDataOutputStream(stream, null, 0);
            } catch (Native.Errno errno) {
                if (errno.number() != Native.EEXIST || !overwrite) {
                    throw Native.failed(errno, path);
                }
            }
            // Another file takes its place: who is still writing the old one, or reading it, is not disturbed, and does not
            // disturb.
            try {
                store.attached().tell(a -> Native.unlink(a, store.name(path)));
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

    FSDataOutputStream append(Path path) throws IOException {
        long[] attributes = store.attributes(path, true);
        if (Store.isDirectory(attributes)) {
            throw new FileAlreadyExistsException(path + ": it is a directory");
        }
        Deployment.Open file = store.open(path, Native.O_WRONLY, 0);
        long size = attributes[Native.SIZE];
        OutputStream stream = new BivouacOutputStream(file, store.whole(path), size, true, statistics);
        return new FSDataOutputStream(stream, null, size);
    }

    void truncate(Path path, long length) throws IOException {
        long[] found = store.attributes(path, true);
        if (Store.isDirectory(found)) {
            throw new FileNotFoundException(path + ": it is a directory");
        }
        if (length < 0 || length > found[Native.SIZE]) {
            throw new HadoopIllegalArgumentException(
                    "a file of " + found[Native.SIZE] + " bytes is not truncated to " + length);
        }
        store.tell(path, (a, name) -> Native.truncate(a, name, length));
    }
}
