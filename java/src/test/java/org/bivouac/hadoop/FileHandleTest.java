package org.bivouac.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.InvalidPathHandleException;
import org.apache.hadoop.fs.LocalFileSystemPathHandle;
import org.apache.hadoop.fs.Options.HandleOpt;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathHandle;
import org.apache.hadoop.fs.RawPathHandle;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.AccessControlException;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** What Hadoop's contract tests do not ask of handles. */
public class FileHandleTest {
    private static final String NAME = System.getProperty("bivouac.deployment");
    private static final HandleOpt[][] ALL = {HandleOpt.exact(), HandleOpt.content(), HandleOpt.path(), HandleOpt.reference()};

    private final Path base = new Path("/file-handle-test");
    private final Path path = new Path(base, "file");
    private final Path other = new Path(base, "other");
    private FileSystem fs;

    @Before
    public void attach() throws IOException {
        fs = FileSystem.newInstance(URI.create("bivouac://" + NAME + "/"), new Configuration());
        fs.mkdirs(base);
    }

    @After
    public void detach() throws IOException {
        fs.delete(base, true);
        fs.close();
    }

    private static void write(FileSystem fs, Path path, String text) throws IOException {
        try (FSDataOutputStream out = fs.create(path)) {
            out.writeBytes(text);
        }
    }

    private PathHandle handle(HandleOpt... options) throws IOException {
        return fs.getPathHandle(fs.getFileStatus(path), options);
    }

    private static String read(FileSystem fs, PathHandle handle) throws IOException {
        byte[] read = new byte[100];
        try (FSDataInputStream in = fs.open(handle)) {
            int length = in.read(0, read, 0, read.length);
            return new String(read, 0, Math.max(length, 0), "US-ASCII");
        }
    }

    private String refused(FileSystem fs, PathHandle handle) {
        return assertThrows(InvalidPathHandleException.class, () -> read(fs, handle)).getMessage();
    }

    @Test
    public void anotherFileUnderTheNameIsNotTheFile() throws IOException {
        write(fs, path, "first");
        FileStatus first = fs.getFileStatus(path);
        write(fs, path, "other");
        for (HandleOpt[] options : ALL) {
            refused(fs, fs.getPathHandle(first, options));
        }
        fs.delete(path, false);
        fs.mkdirs(path);
        for (HandleOpt[] options : ALL) {
            refused(fs, fs.getPathHandle(first, options));
        }
        fs.delete(path, true);
        fs.createSymlink(path, path, false);
        refused(fs, fs.getPathHandle(first, HandleOpt.exact()));
        fs.delete(base, true);
        write(fs, base, "a file in the place of the directory");
        refused(fs, fs.getPathHandle(first, HandleOpt.exact()));
    }

    @Test
    public void whatWasDeletedIsGoneAlsoWhereSomebodyStillReadsIt() throws IOException {
        write(fs, path, "content");
        PathHandle reference = handle(HandleOpt.reference());
        try (FSDataInputStream in = fs.open(path)) {
            fs.delete(path, false);
            assertTrue(refused(fs, reference).contains("deleted"));
            assertEquals('c', in.read());
        }
        refused(fs, reference);
    }

    @Test
    public void changesAreSeenThatLeaveTheLength() throws IOException {
        write(fs, path, "1");
        for (int i = 0; i < 50; i++) {
            PathHandle exact = handle(HandleOpt.exact());
            PathHandle content = handle(HandleOpt.content());
            assertEquals("1", read(fs, exact));
            fs.truncate(path, 0);
            try (FSDataOutputStream out = fs.append(path)) {
                out.writeBytes("1");
            }
            refused(fs, exact);
            refused(fs, content);
        }
    }

    @Test
    public void attributesMayChangeAndPermissionsCount() throws IOException {
        write(fs, path, "content");
        PathHandle exact = handle(HandleOpt.exact());
        PathHandle reference = handle(HandleOpt.reference());
        fs.setPermission(path, new FsPermission((short) 0600));
        fs.setXAttr(path, "user.some", new byte[] {1});
        assertEquals("content", read(fs, exact));
        fs.setTimes(path, 1_000, -1);
        refused(fs, exact);
        assertEquals("content", read(fs, reference));
        if (Native.user() != 0) {
            fs.setPermission(path, new FsPermission((short) 0));
            assertThrows(AccessControlException.class, () -> read(fs, exact));
            assertThrows(AccessControlException.class, () -> read(fs, reference));
        }
    }

    @Test
    public void statusesOfListingsGiveHandlesOfTheSameFile() throws IOException {
        write(fs, path, "content");
        PathHandle known = handle(HandleOpt.content());
        assertEquals(known, fs.getPathHandle(fs.listStatus(base)[0], HandleOpt.content()));
        assertEquals(known, fs.getPathHandle(fs.listFiles(base, false).next(), HandleOpt.content()));
        assertNotEquals(known, handle(HandleOpt.exact()));
        fs.rename(path, other);
        assertEquals("content", read(fs, known));
        fs.createSymlink(other, path, false);
        assertEquals("a link leads to it", "content", read(fs, handle(HandleOpt.exact())));
    }

    @Test
    public void onlyFilesOfThisFileSystemHaveHandles() throws IOException {
        write(fs, path, "content");
        assertThrows(IllegalArgumentException.class, () -> fs.getPathHandle(fs.getFileStatus(base)));
        FileStatus made = new FileStatus(7, false, 1, 1, 0, fs.makeQualified(path));
        assertThrows(IllegalArgumentException.class, () -> fs.getPathHandle(made));
        FileStatus found = fs.getFileStatus(path);
        assertThrows(UnsupportedOperationException.class, () -> fs.getPathHandle(found, new HandleOpt() {}));
    }

    @Test
    public void aFileThatTakesTurnsWithAnotherIsReadOrRefused() throws Exception {
        write(fs, path, "wanted");
        write(fs, other, "not wanted");
        PathHandle exact = handle(HandleOpt.exact());
        PathHandle content = handle(HandleOpt.content());
        Path between = new Path(base, "between");
        Thread moves = new Thread(() -> {
            try {
                for (int i = 0; i < 300; i++) {
                    fs.rename(path, between);
                    fs.rename(other, path);
                    fs.rename(between, other);
                    fs.rename(path, between);
                    fs.rename(other, path);
                    fs.rename(between, other);
                }
            } catch (IOException e) {
                throw new AssertionError(e);
            }
        });
        moves.start();
        int refused = 0;
        do {
            assertEquals("wanted", read(fs, content));
            try {
                assertEquals("wanted", read(fs, exact));
            } catch (InvalidPathHandleException e) {
                refused++;
            }
        } while (moves.isAlive());
        assertTrue("it was away at times", refused > 0);
        assertEquals("wanted", read(fs, exact));
    }

    @Test
    public void bytesThatAreNoHandleAreRefused() throws IOException {
        write(fs, path, "content");
        PathHandle known = handle(HandleOpt.reference());
        byte[] bytes = known.toByteArray();
        PathHandle again = new RawPathHandle(ByteBuffer.wrap(bytes));
        assertEquals("content", read(fs, again));
        assertEquals(known, again);
        for (int at = 0; at < bytes.length; at++) {
            refused(fs, new RawPathHandle(ByteBuffer.wrap(bytes, 0, at)));
            byte[] damaged = bytes.clone();
            damaged[at] ^= 1 << at % 8;
            refused(fs, new RawPathHandle(ByteBuffer.wrap(damaged)));
        }
        byte[] longer = Arrays.copyOf(bytes, bytes.length + 1);
        assertTrue(refused(fs, new RawPathHandle(ByteBuffer.wrap(longer))).contains("damaged"));
        byte[] later = bytes.clone();
        later[4]++;
        assertTrue(refused(fs, new RawPathHandle(ByteBuffer.wrap(later))).contains("format 2"));
        PathHandle local = new LocalFileSystemPathHandle(path.toString(), Optional.empty());
        assertTrue(refused(fs, local).contains("not a handle"));
    }

    @Test
    public void handlesGoThroughJavasSerialization() throws Exception {
        write(fs, path, "content");
        PathHandle known = handle(HandleOpt.content());
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        new ObjectOutputStream(written).writeObject(known);
        PathHandle again = (PathHandle) new ObjectInputStream(new ByteArrayInputStream(written.toByteArray())).readObject();
        assertEquals(known, again);
        assertEquals("content", read(fs, again));
    }

    @Test
    public void inodeNumbersThatNoFileHasAreRefused() throws IOException {
        write(fs, path, "content");
        Version version = Version.of(fs.getFileStatus(path));
        LongStream numbers = LongStream.concat(
                IntStream.range(0, 64).mapToLong(bit -> version.inode ^ 1L << bit),
                LongStream.of(0, 1, -1, Long.MAX_VALUE, Long.MIN_VALUE));
        for (long inode : numbers.toArray()) {
            Version off = new Version(inode, version.created, version.size, version.modified);
            PathHandle handle = new FileHandle(NAME, path.toUri().getPath(), off, true, true);
            refused(fs, handle);
        }
    }

    private static void bivouac(String... arguments) throws Exception {
        String[] command = new String[arguments.length + 1];
        command[0] = System.getProperty("bivouac.program");
        System.arraycopy(arguments, 0, command, 1, arguments.length);
        File said = File.createTempFile("bivouac", ".txt");
        Process process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(said).start();
        assertTrue(process.waitFor(120, TimeUnit.SECONDS));
        assertEquals(new String(java.nio.file.Files.readAllBytes(said.toPath())), 0, process.exitValue());
        said.delete();
    }

    @Test
    public void otherDeploymentsDoNotTakeTheHandlesOfThisOne() throws Exception {
        write(fs, path, "content");
        PathHandle[] known = new PathHandle[ALL.length];
        for (int i = 0; i < ALL.length; i++) {
            known[i] = handle(ALL[i]);
        }
        String name = NAME + "-again";
        URI again = URI.create("bivouac://" + name + "/");
        long inode = 0;
        PathHandle[] before = new PathHandle[ALL.length];
        for (int round = 0; round < 2; round++) {
            bivouac("up", name, "--servers", "1");
            try (FileSystem second = FileSystem.newInstance(again, new Configuration())) {
                write(second, path, "content");
                FileStatus status = second.getFileStatus(path);
                for (int i = 0; i < ALL.length; i++) {
                    assertTrue(refused(second, known[i]).contains(name));
                    if (round == 0) {
                        inode = Version.of(status).inode;
                        before[i] = second.getPathHandle(status, ALL[i]);
                        assertEquals("content", read(second, before[i]));
                    } else {
                        assertEquals("the numbers are the same", inode, Version.of(status).inode);
                        refused(second, before[i]);
                    }
                }
            } finally {
                bivouac("down", name);
            }
        }
    }
}
