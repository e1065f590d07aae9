package org.bivouac.hadoop;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.Syncable;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsStore;

/**
 * Writes a file, through a buffer of direct memory. What was flushed is in the deployment, for all to see ({@code hflush});
 * {@code hsync} puts it on stable storage.
 */
final class BivouacOutputStream extends OutputStream implements Syncable, Capable {
    private static final Set<String> CAPABILITIES =
            new HashSet<>(Arrays.asList(StreamCapabilities.HFLUSH, StreamCapabilities.HSYNC, StreamCapabilities.IOSTATISTICS));

    private final Deployment.Open file;
    private final Path path;
    private final FileSystem.Statistics statistics;
    private final IOStatisticsStore counts = Counts.ofWriter();
    private ByteBuffer buffer = Buffers.take();
    /** Where the buffer's bytes go; when it appends, where the file ended when it last did. */
    private long position;

    private final boolean appends;

    private boolean closed;
    /** A write has failed: what follows would leave a gap. */
    private IOException broken;

    BivouacOutputStream(
            Deployment.Open file, Path path, long position, boolean appends, FileSystem.Statistics statistics) {
        this.file = file;
        this.appends = appends;
        this.path = path;
        this.position = position;
        this.statistics = statistics;
    }

    private void check() throws IOException {
        if (closed) {
            throw new IOException(path + ": " + FSExceptionMessages.STREAM_IS_CLOSED);
        }
        throwBroken();
    }

    private void throwBroken() throws IOException {
        if (broken != null) {
            // An exception of its own: the first one may have it suppressed.
            throw new IOException(broken.getMessage(), broken);
        }
    }

    private void writeAll(ByteBuffer direct, int length) throws IOException {
        int done = 0;
        while (done < length) {
            int from = done;
            try {
                if (appends) {
                    // In one piece, wherever the end is by now: others may append, too.
                    position = file.use(open -> Native.append(open, direct, from, length - from));
                    return;
                }
                int some = file.use(open -> Native.pwrite(open, direct, from, length - from, position));
                if (some == 0) {
                    throw new IOException(path + ": the storage is full");
                }
                done += some;
                position += some;
            } catch (Native.Errno errno) {
                broken = Native.failed(errno, path);
                throw broken;
            } catch (IOException e) {
                broken = e;
                throw e;
            }
        }
    }

    private void drain() throws IOException {
        if (buffer.position() > 0) {
            int length = buffer.position();
            ((java.nio.Buffer) buffer).clear();
            writeAll(buffer, length);
        }
    }

    private void count(int bytes) {
        counts.incrementCounter(StreamStatisticNames.STREAM_WRITE_BYTES, bytes);
        if (statistics != null) {
            statistics.incrementBytesWritten(bytes);
        }
    }

    @Override
    public synchronized void write(int value) throws IOException {
        check();
        buffer.put((byte) value);
        if (!buffer.hasRemaining()) {
            drain();
        }
        count(1);
    }

    @Override
    public synchronized void write(byte[] from, int at, int length) throws IOException {
        check();
        if (at < 0 || length < 0 || length > from.length - at) {
            throw new IndexOutOfBoundsException();
        }
        int done = 0;
        while (done < length) {
            int some = Math.min(buffer.remaining(), length - done);
            buffer.put(from, at + done, some);
            done += some;
            if (!buffer.hasRemaining()) {
                drain();
            }
        }
        count(length);
    }

    @Override
    public synchronized void flush() throws IOException {
        check();
        drain();
    }

    @Override
    public synchronized void hflush() throws IOException {
        check();
        drain();
    }

    @Override
    public synchronized void hsync() throws IOException {
        check();
        drain();
        try {
            file.use(open -> {
                Native.sync(open);
                return null;
            });
        } catch (Native.Errno errno) {
            throw Native.failed(errno, path);
        }
    }

    @Override
    public synchronized void close() throws IOException {
        if (closed) {
            return;
        }
        try {
            if (broken == null) {
                drain();
            }
        } finally {
            closed = true;
            Buffers.give(buffer);
            buffer = null;
            try {
                file.close();
            } catch (Native.Errno errno) {
                throw Native.failed(errno, path);
            }
        }
        throwBroken();
    }

    @Override
    public Set<String> capabilities() {
        return CAPABILITIES;
    }

    @Override
    public IOStatistics getIOStatistics() {
        return counts;
    }

    @Override
    public String toString() {
        return "BivouacOutputStream{" + path + " at " + position + "}";
    }
}
