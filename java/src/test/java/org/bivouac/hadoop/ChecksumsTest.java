package org.bivouac.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.Random;
import java.util.zip.CRC32C;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.CrcComposer;
import org.apache.hadoop.util.CrcUtil;
import org.apache.hadoop.util.DataChecksum;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

public class ChecksumsTest {
    private final URI root = URI.create("bivouac://" + System.getProperty("bivouac.deployment") + "/");
    private final Path path = new Path("/checksums-test");
    private final byte[] data = new byte[2_500_001];
    private FileSystem fs;

    @Before
    public void write() throws IOException {
        Configuration conf = new Configuration();
        conf.set("fs.bivouac.checksum", "CRC32C");
        fs = FileSystem.newInstance(root, conf);
        new Random(7).nextBytes(data);
        try (FSDataOutputStream out = fs.create(path)) {
            out.write(data);
        }
    }

    @After
    public void remove() throws IOException {
        fs.delete(path, false);
        fs.close();
    }

    private byte[] expected(int length) {
        CRC32C crc = new CRC32C();
        crc.update(data, 0, length);
        return CrcUtil.intToBytes((int) crc.getValue());
    }

    @Test
    public void theyAreOfTheBytesThatWereAskedFor() throws IOException {
        FileChecksum whole = fs.getFileChecksum(path);
        assertEquals("COMPOSITE-CRC32C", whole.getAlgorithmName());
        assertArrayEquals(expected(data.length), whole.getBytes());
        for (int length : new int[] {0, 1, 512, 1 << 20, (1 << 20) + 1, data.length - 1}) {
            assertArrayEquals(expected(length), fs.getFileChecksum(path, length).getBytes());
        }
        assertEquals(whole, fs.getFileChecksum(path, data.length));
        try (FSDataOutputStream out = fs.append(path)) {
            out.write(1);
        }
        assertFalse(whole.equals(fs.getFileChecksum(path)));
    }

    /** HDFS composes the checksums of 512 bytes, in each block, and those of the blocks. */
    @Test
    public void theyAreThoseThatHdfsComposes() throws IOException {
        for (int block : new int[] {64 << 10, 1 << 20}) {
            CrcComposer file = CrcComposer.newCrcComposer(DataChecksum.Type.CRC32C, block);
            for (int begin = 0; begin < data.length; begin += block) {
                int end = Math.min(begin + block, data.length);
                CrcComposer blocks = CrcComposer.newCrcComposer(DataChecksum.Type.CRC32C, 512);
                for (int at = begin; at < end; at += 512) {
                    int length = Math.min(512, end - at);
                    CRC32C crc = new CRC32C();
                    crc.update(data, at, length);
                    blocks.update((int) crc.getValue(), length);
                }
                file.update(CrcUtil.readInt(blocks.digest(), 0), end - begin);
            }
            assertArrayEquals(file.digest(), fs.getFileChecksum(path).getBytes());
        }
    }

    @Test
    public void thereAreNoneUnlessTheConfigurationAsks() throws IOException {
        assertTrue(fs.hasPathCapability(path, CommonPathCapabilities.FS_CHECKSUMS));
        try (FileSystem other = FileSystem.newInstance(root, new Configuration())) {
            assertNull(other.getFileChecksum(path));
            assertFalse(other.hasPathCapability(path, CommonPathCapabilities.FS_CHECKSUMS));
        }
        Configuration wrong = new Configuration();
        wrong.set("fs.bivouac.checksum", "MD5");
        try {
            FileSystem.newInstance(root, wrong).close();
            fail("there is no MD5");
        } catch (IllegalArgumentException expected) {
            assertTrue(expected.getMessage(), expected.getMessage().contains("CRC32C"));
        }
    }

    @Test
    public void directoriesHaveNone() throws IOException {
        try {
            fs.getFileChecksum(new Path("/"));
            fail("of a directory");
        } catch (FileNotFoundException expected) {
            assertTrue(expected.getMessage(), expected.getMessage().contains("directory"));
        }
    }
}
