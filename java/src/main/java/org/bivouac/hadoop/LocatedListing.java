package org.bivouac.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.util.NoSuchElementException;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RemoteIterator;

/** The entries of a directory that a filter accepts, with the locations of those that are files. */
final class LocatedListing implements RemoteIterator<LocatedFileStatus>, Closeable {
    private final Listing all;
    private final Path path;
    private final PathFilter filter;
    private final Locations locations;
    private FileStatus next;

    LocatedListing(Listing all, Path path, PathFilter filter, Locations locations) {
        this.all = all;
        this.path = path;
        this.filter = filter;
        this.locations = locations;
    }

    /** A status with locations. */
    private static final class Located extends LocatedFileStatus implements EtagSource, Version.Known {
        private static final long serialVersionUID = 1L;
        private final Version version;

        Located(FileStatus status, BlockLocation[] locations) {
            super(status, locations);
            version = Version.of(status);
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

    @Override
    public boolean hasNext() throws IOException {
        while (next == null && all.hasNext()) {
            FileStatus found = all.next();
            next = filter.accept(found.getPath()) ? found : null;
        }
        return next != null;
    }

    @Override
    public LocatedFileStatus next() throws IOException {
        if (!hasNext()) {
            throw new NoSuchElementException("no more entries in " + path);
        }
        FileStatus found = next;
        next = null;
        return new Located(found, found.isFile() ? locations.of(found, 0, found.getLen()) : null);
    }

    @Override
    public void close() {
        all.close();
    }
}
