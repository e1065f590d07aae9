package org.bivouac.hadoop;

import java.io.Closeable;
import java.io.FileNotFoundException;
import java.io.IOException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * The attached deployment, as the parts of the file system use it: with Hadoop's paths, where C wants names inside the deployment, and
 * with the exceptions that Hadoop wants, where C gives numbers of errors.
 */
final class Store implements Closeable {
    /** Makes paths whole: it has the working directory. */
    private final FileSystem fs;

    private volatile Deployment deployment;

    Store(FileSystem fs, Deployment deployment) {
        this.fs = fs;
        this.deployment = deployment;
    }

    /** A call about one path that has a result. */
    interface Ask<T> {
        T with(long deployment, String name) throws Native.Errno;
    }

    /** A call about one path that has none. */
    interface Tell {
        void with(long deployment, String name) throws Native.Errno;
    }

    /** The deployment, if the file system was not closed. */
    Deployment attached() throws IOException {
        Deployment attached = deployment;
        if (attached == null) {
            throw new IOException(fs.getUri() + ": the file system is closed");
        }
        return attached;
    }

    /** The path with scheme and deployment, from the root on; it is refused if it belongs to another file system. */
    Path whole(Path path) {
        return fs.makeQualified(path);
    }

    /** The same as C wants it. */
    String name(Path path) {
        return whole(path).toUri().getPath();
    }

    <T> T ask(Path path, Ask<T> call) throws IOException {
        try {
            return attached().ask(a -> call.with(a, name(path)));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    void tell(Path path, Tell call) throws IOException {
        ask(path, (a, name) -> {
            call.with(a, name);
            return null;
        });
    }

    /** What there is at a path. */
    long[] attributes(Path path, boolean follow) throws IOException {
        long[] attributes = new long[Native.ATTRIBUTES];
        try {
            attached().tell(a -> Native.stat(a, name(path), follow, attributes));
        } catch (Native.Errno errno) {
            // Hadoop has one error for what is not there, also where a file is in the place of a directory.
            if (errno.number() == Native.ENOTDIR) {
                throw new FileNotFoundException(path + ": " + errno.getMessage());
            }
            throw Native.failed(errno, path);
        }
        return attributes;
    }

    static boolean isDirectory(long[] attributes) {
        return (attributes[Native.MODE] & Native.KIND) == Native.DIRECTORY;
    }

    Deployment.Open open(Path path, int flags, int mode) throws IOException {
        try {
            return new Deployment.Open(attached(), a -> Native.open(a, name(path), flags, mode));
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public void close() {
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
