package org.bivouac.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.ByteBufferPositionedReadable;
import org.apache.hadoop.fs.ByteBufferReadable;
import org.apache.hadoop.fs.CanSetReadahead;
import org.apache.hadoop.fs.CanUnbuffer;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsStore;

/**
 * Reads a file. Small reads go through a buffer of direct memory; long ones, and those into direct buffers, without it.
 * Positioned reads need no lock: any number of threads make them at once.
 */
final class BivouacInputStream extends FSInputStream
        implements ByteBufferReadable, ByteBufferPositionedReadable, CanUnbuffer, CanSetReadahead, Capable {
    private static final Set<String> CAPABILITIES = new HashSet<>(Arrays.asList(
            StreamCapabilities.READBYTEBUFFER,
            StreamCapabilities.PREADBYTEBUFFER,
            StreamCapabilities.UNBUFFER,
            StreamCapabilities.READAHEAD,
            StreamCapabilities.VECTOREDIO,
            StreamCapabilities.IOSTATISTICS));

    private final Deployment.Open file;
    private final Path path;
    private final FileSystem.Statistics statistics;
    private final IOStatisticsStore counts = Counts.ofReader();
    private long position;
    private volatile boolean closed;
    /** What was read ahead, or null: bytes of the file from {@code begin} on, {@code filled} of them. */
    private ByteBuffer buffer;

    private long begin;
    private int filled;

    BivouacInputStream(Deployment.Open file, Path path, FileSystem.Statistics statistics) {
        this.file = file;
        this.path = path;
        this.statistics = statistics;
    }

    private void check() throws IOException {
        if (closed) {
            throw new IOException(path + ": " + FSExceptionMessages.STREAM_IS_CLOSED);
        }
    }

    private IOException failed(Native.Errno errno) {
        return Native.failed(errno, path);
    }

    /** Reads into direct memory. How many bytes; 0 at the end. */
    private int readAt(long offset, ByteBuffer direct, int at, int length) throws IOException {
        try {
            return file.use(open -> Native.pread(open, direct, at, length, offset));
        } catch (Native.Errno errno) {
            throw failed(errno);
        }
    }

    private void count(int bytes) {
        counts.incrementCounter(StreamStatisticNames.STREAM_READ_OPERATIONS);
        if (bytes > 0) {
            counts.incrementCounter(StreamStatisticNames.STREAM_READ_BYTES, bytes);
            if (statistics != null) {
                statistics.incrementBytesRead(bytes);
            }
        }
    }

    @Override
    public synchronized void seek(long to) throws IOException {
        check();
        if (to < 0) {
            throw new EOFException(path + ": " + FSExceptionMessages.NEGATIVE_SEEK + " " + to);
        }
        if (to > length()) {
            throw new EOFException(path + ": " + FSExceptionMessages.CANNOT_SEEK_PAST_EOF + " " + to);
        }
        counts.incrementCounter(StreamStatisticNames.STREAM_READ_SEEK_OPERATIONS);
        position = to;
    }

    @Override
    public synchronized long getPos() throws IOException {
        return position;
    }

    @Override
    public boolean seekToNewSource(long target) throws IOException {
        return false;
    }

    private long length() throws IOException {
        long[] attributes = new long[Native.ATTRIBUTES];
        try {
            file.use(open -> {
                Native.fstat(open, attributes);
                return null;
            });
        } catch (Native.Errno errno) {
            throw failed(errno);
        }
        return attributes[Native.SIZE];
    }

    @Override
    public synchronized int available() throws IOException {
        check();
        return (int) Math.max(0, Math.min(Integer.MAX_VALUE, length() - position));
    }

    /** How many bytes of the buffer there are at the position; fills it if there are none. 0 at the end. */
    private int buffered() throws IOException {
        if (buffer == null) {
            buffer = Buffers.take();
            filled = 0;
        }
        long inside = position - begin;
        if (filled == 0 || inside < 0 || inside >= filled) {
            // If it fails, nothing is known of what is in the buffer.
            filled = 0;
            begin = position;
            filled = readAt(position, buffer, 0, Buffers.LENGTH);
            inside = 0;
        }
        return filled - (int) inside;
    }

    @Override
    public synchronized int read() throws IOException {
        check();
        if (buffered() == 0) {
            return -1;
        }
        int value = buffer.get((int) (position - begin)) & 0xff;
        position++;
        count(1);
        return value;
    }

    @Override
    public synchronized int read(byte[] into, int at, int length) throws IOException {
        check();
        if (at < 0 || length < 0 || length > into.length - at) {
            throw new IndexOutOfBoundsException();
        }
        if (length == 0) {
            return 0;
        }
        int done = 0;
        while (done < length) {
            int there = buffered();
            if (there == 0) {
                break;
            }
            int some = Math.min(there, length - done);
            copy(buffer, (int) (position - begin), into, at + done, some);
            done += some;
            position += some;
        }
        count(done);
        return done == 0 ? -1 : done;
    }

    private static void copy(ByteBuffer from, int at, byte[] into, int start, int length) {
        ByteBuffer view = from.duplicate();
        ((java.nio.Buffer) view).limit(at + length).position(at);
        view.get(into, start, length);
    }

    @Override
    public synchronized int read(ByteBuffer into) throws IOException {
        check();
        int count = readInto(position, into);
        if (count > 0) {
            position += count;
        }
        return count;
    }

    /** Reads at an offset into a buffer, at its position. -1 at the end. */
    private int readInto(long offset, ByteBuffer into) throws IOException {
        int wanted = into.remaining();
        if (wanted == 0) {
            return 0;
        }
        int done = 0;
        if (into.isDirect()) {
            done = readAt(offset, into, into.position(), wanted);
            ((java.nio.Buffer) into).position(into.position() + done);
        } else {
            ByteBuffer direct = Buffers.take();
            try {
                while (done < wanted) {
                    int some = readAt(offset + done, direct, 0, Math.min(Buffers.LENGTH, wanted - done));
                    if (some == 0) {
                        break;
                    }
                    ((java.nio.Buffer) direct).limit(some).position(0);
                    into.put(direct);
                    ((java.nio.Buffer) direct).clear();
                    done += some;
                }
            } finally {
                Buffers.give(direct);
            }
        }
        count(done);
        return done == 0 ? -1 : done;
    }

    @Override
    public int read(long offset, byte[] into, int at, int length) throws IOException {
        check();
        validatePositionedReadArgs(offset, into, at, length);
        if (length == 0) {
            return 0;
        }
        return readInto(offset, ByteBuffer.wrap(into, at, length));
    }

    @Override
    public void readFully(long offset, byte[] into, int at, int length) throws IOException {
        check();
        validatePositionedReadArgs(offset, into, at, length);
        readFully(offset, ByteBuffer.wrap(into, at, length));
    }

    @Override
    public int read(long offset, ByteBuffer into) throws IOException {
        check();
        checkOffset(offset);
        return readInto(offset, into);
    }

    @Override
    public void readFully(long offset, ByteBuffer into) throws IOException {
        check();
        checkOffset(offset);
        while (into.hasRemaining()) {
            int some = readInto(offset, into);
            if (some < 0) {
                throw new EOFException(path + ": " + FSExceptionMessages.EOF_IN_READ_FULLY);
            }
            offset += some;
        }
    }

    private static void checkOffset(long offset) throws EOFException {
        if (offset < 0) {
            throw new EOFException(FSExceptionMessages.NEGATIVE_SEEK + " " + offset);
        }
    }

    @Override
    public void readVectored(List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate) throws IOException {
        check();
        long end = length();
        for (FileRange range : ranges) {
            // (Hadoop's own check has another signature in each of its versions.)
            if (range.getLength() < 0) {
                throw new IllegalArgumentException("a range of " + range.getLength() + " bytes");
            }
            if (range.getOffset() < 0) {
                throw new EOFException(path + ": " + range + " begins before the file");
            }
            if (range.getOffset() > end - range.getLength()) {
                throw new EOFException(path + ": " + range + " reaches behind the end of the file, " + end);
            }
        }
        for (FileRange range : ranges) {
            range.setData(new CompletableFuture<>());
        }
        // Each is one exchange with all servers that have a part of it.
        for (FileRange range : ranges) {
            try {
                ByteBuffer into = allocate.apply(range.getLength());
                readFully(range.getOffset(), into);
                ((java.nio.Buffer) into).flip();
                range.getData().complete(into);
            } catch (IOException | RuntimeException e) {
                range.getData().completeExceptionally(e);
            }
        }
        counts.incrementCounter(StreamStatisticNames.STREAM_READ_VECTORED_OPERATIONS);
    }

    @Override
    public synchronized void unbuffer() {
        Buffers.give(buffer);
        buffer = null;
        filled = 0;
        counts.incrementCounter(StreamStatisticNames.STREAM_READ_UNBUFFERED);
    }

    @Override
    public void setReadahead(Long readahead) {
        // The buffer is what is read ahead; the servers' kernels do the rest.
    }

    @Override
    public synchronized void close() throws IOException {
        if (closed) {
            return;
        }
        closed = true;
        Buffers.give(buffer);
        buffer = null;
        try {
            file.close();
        } catch (Native.Errno errno) {
            throw failed(errno);
        }
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
        return "BivouacInputStream{" + path + " at " + position + "}";
    }
}
