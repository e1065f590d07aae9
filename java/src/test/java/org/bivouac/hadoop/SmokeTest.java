package org.bivouac.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;

import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.junit.Test;

public class SmokeTest {
    @Test
    public void writesAndReads() throws Exception {
        FileSystem fs = FileSystem.get(URI.create("bivouac://" + System.getProperty("bivouac.deployment") + "/"), new Configuration());
        Path path = new Path("/smoke/file");
        byte[] data = new byte[3_000_000];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) (i * 31);
        }
        try (FSDataOutputStream out = fs.create(path)) {
            out.write(data);
        }
        byte[] read = new byte[data.length];
        try (FSDataInputStream in = fs.open(path)) {
            in.readFully(0, read);
        }
        assertArrayEquals(data, read);
        assertEquals(data.length, fs.getFileStatus(path).getLen());
        fs.delete(new Path("/smoke"), true);
    }
}
