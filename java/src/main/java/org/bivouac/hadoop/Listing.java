package org.bivouac.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;

/**
 * The entries of a directory, in batches as they are asked for; of a file, itself. Symbolic links are followed, and those that lead
 * nowhere are shown themselves.
 */
final class Listing implements RemoteIterator<FileStatus>, Closeable {
    /** Entries in a batch. */
    static final int ENTRIES = 1000;

    private final Store store;
    private final Path path;
    private final String scheme;
    private final String authority;
    /** The directory's name, with a slash at its end. */
    private final String prefix;

    private final long splitSize;
    private final String[] names = new String[ENTRIES];
    private final long[] attributes = new long[ENTRIES * Native.ATTRIBUTES];
    private final Deployment of;
    private long directory;
    private int there;
    private int next;
    private FileStatus alone;

    Listing(Store store, Path path, long splitSize) throws IOException {
        this.store = store;
        this.path = path;
        this.splitSize = splitSize;
        Path base = store.whole(path);
        String name = base.toUri().getPath();
        scheme = base.toUri().getScheme();
        authority = base.toUri().getAuthority();
        prefix = name.endsWith("/") ? name : name + "/";
        try {
            of = store.attached().retain();
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
            alone = new Status(base, store.attributes(path, true), 0, splitSize, null);
        }
    }

    /** For who does not want all of them; at the end it is done already. */
    @Override
    public void close() {
        there = next;
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
            close();
            throw Native.failed(errno, path);
        }
        next = 0;
        if (there == 0) {
            close();
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
        // In one piece: a path that is made of two others is taken apart three times.
        Path child = new Path(scheme, authority, prefix + names[entry]);
        int at = entry * Native.ATTRIBUTES;
        if ((attributes[at + Native.MODE] & Native.KIND) == Native.SYMLINK) {
            try {
                return new Status(child, store.attributes(child, true), 0, splitSize, null);
            } catch (IOException e) {
                // It leads to nothing, in a circle, or out of the deployment.
                return new Status(child, attributes, at, splitSize, new Links(store).target(child));
            }
        }
        return new Status(child, attributes, at, splitSize, null);
    }

    /** Whether a directory has no entries. */
    static boolean isEmpty(Store store, Path path) throws IOException {
        try (Listing listing = new Listing(store, path, 0)) {
            return !listing.hasNext();
        }
    }

    /** All that are left. */
    FileStatus[] all() throws IOException {
        List<FileStatus> found = new ArrayList<>();
        while (hasNext()) {
            found.add(next());
        }
        return found.toArray(new FileStatus[0]);
    }
}
