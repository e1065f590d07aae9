package org.bivouac.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotEquals;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.tools.DistCp;
import org.apache.hadoop.util.ToolRunner;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Copies with {@code distcp -update}, which copies what differs: by length and checksum, and by time only where there is no checksum. */
public class DistCpTest {
    private final Path base = new Path("bivouac://" + System.getProperty("bivouac.deployment") + "/distcp-test");
    private final Path from = new Path(base, "from");
    private final Path to = new Path(base, "to");
    private final Configuration conf = new Configuration();
    private FileSystem fs;

    @Before
    public void make() throws IOException {
        conf.set("fs.bivouac.checksum", "CRC32C");
        conf.set("mapreduce.framework.name", "local");
        conf.set("fs.bivouac.impl.disable.cache", "true");
        fs = FileSystem.newInstance(URI.create(base.toString()), conf);
        fs.mkdirs(base);
    }

    @After
    public void remove() throws IOException {
        fs.delete(base, true);
        fs.close();
    }

    private void write(Path path, String text) throws IOException {
        try (FSDataOutputStream out = fs.create(path)) {
            out.writeBytes(text);
        }
    }

    private void copy() throws Exception {
        assertEquals(0, ToolRunner.run(conf, new DistCp(conf, null), new String[] {"-update", from.toString(), to.toString()}));
    }

    @Test
    public void itCopiesAgainWhatDiffersOnlyInItsBytes() throws Exception {
        write(new Path(from, "same"), "same");
        write(new Path(from, "other"), "one");
        copy();
        assertEquals(fs.getFileChecksum(new Path(from, "other")), fs.getFileChecksum(new Path(to, "other")));
        Object same = ((Status) fs.getFileStatus(new Path(to, "same"))).getEtag();
        // As long as before, and newer than what it was copied from.
        write(new Path(to, "other"), "two");
        assertNotEquals(fs.getFileChecksum(new Path(from, "other")), fs.getFileChecksum(new Path(to, "other")));
        copy();
        assertEquals(fs.getFileChecksum(new Path(from, "other")), fs.getFileChecksum(new Path(to, "other")));
        assertEquals("it was not copied again", same, ((Status) fs.getFileStatus(new Path(to, "same"))).getEtag());
    }
}
