package org.bivouac.hadoop;

import java.io.IOException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;

/** Removes files and directories. What somebody else removes meanwhile is no error. */
final class Removal {
    private final Store store;

    Removal(Store store) {
        this.store = store;
    }

    /** Whether there was something that it has removed. The root itself stays. */
    boolean remove(Path path, boolean recursive) throws IOException {
        String name = store.name(path);
        if (name.equals("/")) {
            return removeAllOfRoot(path, recursive);
        }
        try {
            store.attached().tell(a -> Native.unlink(a, name));
            return true;
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
            empty(name, path);
        }
        try {
            store.attached().tell(a -> Native.rmdir(a, name));
            return true;
        } catch (Native.Errno errno) {
            if (errno.number() == Native.ENOENT) {
                return false;
            }
            throw Native.failed(errno, path);
        }
    }

    private boolean removeAllOfRoot(Path root, boolean recursive) throws IOException {
        if (recursive) {
            empty("/", root);
            return true;
        }
        if (!Listing.isEmpty(store, root)) {
            throw new PathIsNotEmptyDirectoryException(root.toString());
        }
        return false;
    }

    /** Removes all that is in a directory. {@code path}: for exceptions. */
    private void empty(String directory, Path path) throws IOException {
        String[] names = new String[Listing.ENTRIES];
        long[] attributes = new long[Listing.ENTRIES * Native.ATTRIBUTES];
        Deployment deployment = store.attached();
        try {
            long open = deployment.ask(a -> Native.opendir(a, directory));
            try {
                int there;
                while ((there = Native.readdir(open, names, attributes)) > 0) {
                    for (int i = 0; i < there; i++) {
                        String name = directory.equals("/") ? "/" + names[i] : directory + "/" + names[i];
                        try {
                            if ((attributes[i * Native.ATTRIBUTES + Native.MODE] & Native.KIND) == Native.DIRECTORY) {
                                empty(name, path);
                                deployment.tell(a -> Native.rmdir(a, name));
                            } else {
                                deployment.tell(a -> Native.unlink(a, name));
                            }
                        } catch (Native.Errno errno) {
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
}
