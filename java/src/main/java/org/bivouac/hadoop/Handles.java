package org.bivouac.hadoop;

import java.io.IOException;
import java.util.Optional;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystemPathHandle;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.PathHandle;

/** Handles of files that have not moved: a path and, if the data must not have changed, the time at which it last did. */
final class Handles {
    private Handles() {}

    static PathHandle of(FileStatus status, Options.HandleOpt... options) {
        if (status.isDirectory() || status.isSymlink()) {
            throw new IllegalArgumentException("only files have handles");
        }
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

    /** A handle as {@link #of} made it, perhaps in another process. */
    static LocalFileSystemPathHandle read(PathHandle handle) throws IOException {
        return handle instanceof LocalFileSystemPathHandle
                ? (LocalFileSystemPathHandle) handle
                : new LocalFileSystemPathHandle(handle.bytes());
    }
}
