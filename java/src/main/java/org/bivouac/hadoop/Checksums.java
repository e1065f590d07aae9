package org.bivouac.hadoop;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CompositeCrcFileChecksum;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.DataChecksum;

/**
 * Checksums of files, where the configuration asks for them. A deployment keeps none, so each is computed by reading the file. It is
 * the CRC-32C of the file's bytes, which HDFS gives too, with {@code dfs.checksum.combine.mode=COMPOSITE_CRC}, whatever its block size
 * is: so {@code distcp} can compare copies.
 */
final class Checksums {
    private Checksums() {}

    private static final String CRC32C = "CRC32C";
    private static final int PIECE = 1 << 20;
    /** What HDFS has by default. It is told with a checksum, and is no part of its value. */
    private static final int BYTES_PER_CRC = 512;

    /** Whether the configuration asks for them. */
    static boolean areWanted(Configuration conf) {
        String wanted = conf.getTrimmed(BivouacFileSystem.CHECKSUM, "");
        if (!wanted.isEmpty() && !wanted.equals(CRC32C)) {
            throw new IllegalArgumentException(BivouacFileSystem.CHECKSUM + " is " + wanted + ", but there is only " + CRC32C);
        }
        return !wanted.isEmpty();
    }

    /** Of the file's first {@code length} bytes, or of all if it has fewer. */
    static FileChecksum of(FileSystem fs, Path path, long length) throws IOException {
        DataChecksum crc = DataChecksum.newDataChecksum(DataChecksum.Type.CRC32C, BYTES_PER_CRC);
        byte[] piece = new byte[PIECE];
        try (FSDataInputStream in = fs.open(path)) {
            for (long rest = length; rest > 0; ) {
                int some = in.read(piece, 0, (int) Math.min(rest, PIECE));
                if (some < 0) {
                    break;
                }
                crc.update(piece, 0, some);
                rest -= some;
            }
        }
        return new CompositeCrcFileChecksum((int) crc.getValue(), DataChecksum.Type.CRC32C, BYTES_PER_CRC);
    }
}
