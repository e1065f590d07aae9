package org.bivouac.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** What Hadoop's contract tests do not ask. */
public class FilesTest {
    private final URI root = URI.create("bivouac://" + System.getProperty("bivouac.deployment") + "/");
    private FileSystem fs;
    private final Path base = new Path("/files-test");

    @Before
    public void attach() throws IOException {
        fs = FileSystem.newInstance(root, new Configuration());
        fs.mkdirs(base);
    }

    @After
    public void detach() throws IOException {
        fs.delete(base, true);
        fs.close();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private String content(Path path) throws IOException {
        byte[] read = new byte[(int) fs.getFileStatus(path).getLen()];
        try (FSDataInputStream in = fs.open(path)) {
            in.readFully(0, read);
        }
        return new String(read, StandardCharsets.UTF_8);
    }

    private void write(Path path, String text) throws IOException {
        try (FSDataOutputStream out = fs.create(path)) {
            out.write(bytes(text));
        }
    }

    @Test
    public void largeFilesAreWrittenAndReadInAnyPieces() throws IOException {
        Path path = new Path(base, "large");
        byte[] data = new byte[3_000_000];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) (i * 31 + i / 251);
        }
        try (FSDataOutputStream out = fs.create(path)) {
            for (int at = 0, step = 1; at < data.length; at += step, step = Math.min(data.length - at, step * 3 + 1)) {
                out.write(data, at, step);
            }
        }
        byte[] read = new byte[data.length];
        try (FSDataInputStream in = fs.open(path)) {
            for (int at = 0, step = 1; at < data.length; at += step, step = Math.min(data.length - at, step * 5 + 2)) {
                in.readFully(read, at, step);
            }
        }
        assertArrayEquals(data, read);
        assertEquals(data.length, fs.getFileBlockLocations(path, 0, data.length)[0].getLength());
    }

    @Test
    public void twoWhoAppendDoNotOverwriteEachOther() throws IOException {
        Path path = new Path(base, "appended");
        write(path, "begin ");
        try (FSDataOutputStream one = fs.append(path);
                FSDataOutputStream other = fs.append(path)) {
            one.write(bytes("one "));
            other.write(bytes("other "));
            other.hflush();
            one.hflush();
        }
        assertEquals("begin other one ", content(path));
    }

    @Test
    public void whoCreatesAFileAnewDoesNotDisturbWhoReadsTheOldOne() throws IOException {
        Path path = new Path(base, "replaced");
        write(path, "the old one");
        try (FSDataInputStream in = fs.open(path)) {
            write(path, "new");
            byte[] read = new byte[11];
            in.readFully(0, read);
            assertArrayEquals(bytes("the old one"), read);
        }
        assertEquals("new", content(path));
    }

    @Test
    public void aRenameReplacesInOneStepWhereThatIsAsked() throws Exception {
        Configuration conf = new Configuration();
        conf.set("fs.AbstractFileSystem.bivouac.impl", BivouacFs.class.getName());
        FileContext context = FileContext.getFileContext(root, conf);
        Path from = new Path(base, "from");
        Path to = new Path(base, "to");
        write(to, "there");
        AtomicBoolean done = new AtomicBoolean();
        AtomicReference<Throwable> wrong = new AtomicReference<>();
        Thread reader = new Thread(() -> {
            try {
                while (!done.get()) {
                    fs.getFileStatus(to);
                }
            } catch (Throwable e) {
                wrong.set(e);
            }
        });
        reader.start();
        for (int i = 0; i < 200; i++) {
            write(from, "number " + i);
            context.rename(from, to, Options.Rename.OVERWRITE);
        }
        done.set(true);
        reader.join();
        assertEquals(null, wrong.get());
        assertEquals("number 199", content(to));
        write(from, "again");
        try {
            context.rename(from, to);
            fail("it was replaced");
        } catch (org.apache.hadoop.fs.FileAlreadyExistsException expected) {
            assertEquals("number 199", content(to));
        }
    }

    @Test
    public void linksAreFollowedOrShownAndNoListingFailsForThem() throws IOException {
        write(new Path(base, "file"), "content");
        fs.createSymlink(new Path(base, "file"), new Path(base, "absolute"), false);
        fs.createSymlink(new Path("nothing"), new Path(base, "dangling"), false);
        fs.createSymlink(new Path("circle"), new Path(base, "circle"), false);
        assertEquals(4, fs.listStatus(base).length);
        assertEquals("content", content(new Path(base, "absolute")));
        FileStatus link = fs.getFileLinkStatus(new Path(base, "absolute"));
        assertTrue(link.isSymlink());
        assertEquals(fs.makeQualified(new Path(base, "file")), link.getSymlink());
        fs.mkdirs(new Path(base, "tree"));
        fs.createSymlink(base, new Path(base, "tree/up"), false);
        fs.delete(new Path(base, "tree"), true);
        assertTrue(fs.exists(new Path(base, "file")));
    }

    @Test
    public void closedFileSystemsSaySoAndStreamsGoOn() throws Exception {
        FileSystem other = FileSystem.newInstance(root, new Configuration());
        Path path = new Path(base, "open");
        FSDataOutputStream out = other.create(path);
        AtomicBoolean done = new AtomicBoolean();
        AtomicReference<Throwable> ended = new AtomicReference<>();
        Thread user = new Thread(() -> {
            try {
                while (!done.get()) {
                    other.getFileStatus(base);
                }
            } catch (Throwable e) {
                ended.set(e);
            }
        });
        user.start();
        Thread.sleep(50);
        other.close();
        out.write(bytes("written after it"));
        out.close();
        user.join(10_000);
        done.set(true);
        assertFalse(user.isAlive());
        assertTrue(String.valueOf(ended.get()), ended.get() instanceof IOException);
        assertEquals("written after it", content(path));
    }
}
