package org.bivouac.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;

/** Both ways in which Hadoop renames: one that says no, and one that says why not. */
final class Renaming {
    private final Store store;

    Renaming(Store store) {
        this.store = store;
    }

    /** Renames as the shell's {@code mv} does, into a directory that is there, but replaces nothing. Whether it has. */
    boolean rename(Path from, Path to) throws IOException {
        String source = store.name(from);
        String given = store.name(to);
        String target = given;
        if (source.equals("/")) {
            return false;
        }
        boolean isFile = !Store.isDirectory(store.attributes(from, true));
        long[] there = new long[Native.ATTRIBUTES];
        try {
            store.attached().tell(a -> Native.stat(a, given, true, there));
            if (Store.isDirectory(there)) {
                // Into it. A directory onto itself is refused, a file onto itself is done.
                if (source.equals(target)) {
                    return false;
                }
                target = target.equals("/") ? "/" + from.getName() : target + "/" + from.getName();
            } else {
                return source.equals(target) && isFile;
            }
        } catch (Native.Errno errno) {
            if (errno.number() != Native.ENOENT) {
                return false;
            }
        }
        if (target.equals(source)) {
            return isFile;
        }
        String into = target;
        try {
            store.attached().tell(a -> Native.rename(a, source, into, Native.NOREPLACE));
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
    void rename(Path from, Path to, boolean overwrite) throws IOException {
        long[] source = store.attributes(from, false);
        long[] target = null;
        try {
            target = store.attributes(to, false);
        } catch (FileNotFoundException e) {
            Path parent = store.whole(to).getParent();
            if (parent != null && !Store.isDirectory(store.attributes(parent, true))) {
                throw (IOException) new ParentNotDirectoryException(parent + ": it is not a directory").initCause(e);
            }
        }
        if (target != null) {
            if (store.name(from).equals(store.name(to)) || !overwrite) {
                throw new FileAlreadyExistsException(to + ": it exists");
            }
            if (Store.isDirectory(source) != Store.isDirectory(target)) {
                throw new IOException(from + " and " + to + " have to be both files or both directories");
            }
            if (Store.isDirectory(target) && !Listing.isEmpty(store, to)) {
                throw new PathIsNotEmptyDirectoryException(to.toString());
            }
        }
        store.tell(from, (a, name) -> Native.rename(a, name, store.name(to), overwrite ? 0 : Native.NOREPLACE));
    }
}
