package org.bivouac.hadoop;

import java.io.IOException;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.io.IOUtils;

/** Puts parts behind a file: they are copied one after the other, and then removed. */
final class Concat {
    private Concat() {}

    static void run(FileSystem fs, Path target, Path[] sources) throws IOException {
        if (sources == null || sources.length == 0) {
            throw new PathIOException(target.toString(), "there is nothing to append");
        }
        if (fs.getFileStatus(target).isDirectory()) {
            throw new PathIOException(target.toString(), "it is a directory");
        }
        for (Path source : sources) {
            if (fs.getFileStatus(source).isDirectory() || fs.makeQualified(source).equals(fs.makeQualified(target))) {
                throw new PathIOException(source.toString(), "it cannot be appended to " + target);
            }
        }
        try (FSDataOutputStream out = fs.append(target)) {
            for (Path source : sources) {
                try (FSDataInputStream in = fs.open(source)) {
                    IOUtils.copyBytes(in, out, Buffers.LENGTH, false);
                }
            }
        }
        for (Path source : sources) {
            fs.delete(source, false);
        }
    }
}
