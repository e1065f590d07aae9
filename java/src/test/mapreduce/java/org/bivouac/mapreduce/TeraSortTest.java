package org.bivouac.mapreduce;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.math.BigInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.examples.terasort.TeraChecksum;
import org.apache.hadoop.examples.terasort.TeraGen;
import org.apache.hadoop.examples.terasort.TeraSort;
import org.apache.hadoop.examples.terasort.TeraValidate;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;
import org.junit.Rule;
import org.junit.Test;

/** TeraGen, TeraSort and TeraValidate of Hadoop's examples, with each committer; and that TeraValidate would see an error. */
public class TeraSortTest {
    private static final int RECORDS = 100_000;
    private static final int RECORD = 100;
    private static final String[] PARTS = {"part-r-00000", "part-r-00001", "part-r-00002"};

    @Rule
    public final Workspace work = new Workspace();

    private void run(Configuration conf, Tool tool, String... arguments) throws Exception {
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = arguments[i].startsWith("@") ? work.path(arguments[i].substring(1)).toString() : arguments[i];
        }
        assertEquals(0, ToolRunner.run(conf, tool, arguments));
    }

    private Configuration configuration(Committer committer) {
        Configuration conf = committer.configure(work.configuration());
        conf.setInt("mapreduce.job.reduces", PARTS.length);
        // Ten splits of the one file that TeraGen makes where all runs in one process.
        conf.setLong("mapreduce.input.fileinputformat.split.maxsize", 1 << 20);
        return conf;
    }

    private void sorted(Configuration conf) throws Exception {
        run(conf, new TeraGen(), String.valueOf(RECORDS), "@input");
        run(conf, new TeraSort(), "@input", "@sorted");
    }

    /** What TeraValidate writes of a directory. */
    private String validated(Configuration conf) throws Exception {
        run(conf, new TeraValidate(), "@sorted", "@report");
        String report = work.text("report", "part-*");
        work.fs().delete(work.path("report"), true);
        return report;
    }

    private void sortsWith(Committer committer) throws Exception {
        Configuration conf = configuration(committer);
        sorted(conf);
        committer.check(work.fs(), work.path("input"), "part-m-00000");
        long length = 0;
        for (String part : PARTS) {
            long some = work.fs().getFileStatus(new Path(work.path("sorted"), part)).getLen();
            assertTrue(part + " is empty", some > 0);
            length += some;
        }
        assertEquals((long) RECORDS * RECORD, length);
        // The sampler's file of where to cut lies beside the output.
        committer.check(work.fs(), work.path("sorted"), concat(PARTS, "_partition.lst"));
        run(conf, new TeraChecksum(), "@input", "@checksum");
        String checksum = work.text("checksum", "part-*").trim();
        assertTrue(checksum, new BigInteger(checksum, 16).signum() > 0);
        // No error, and the same records.
        assertEquals("checksum\t" + checksum, validated(conf).trim());
    }

    private static String[] concat(String[] some, String more) {
        String[] all = java.util.Arrays.copyOf(some, some.length + 1);
        all[some.length] = more;
        return all;
    }

    @Test
    public void sorts_with_file_output_committer_v1() throws Exception {
        sortsWith(Committer.V1);
    }

    @Test
    public void sorts_with_file_output_committer_v2() throws Exception {
        sortsWith(Committer.V2);
    }

    @Test
    public void sorts_with_manifest_committer() throws Exception {
        sortsWith(Committer.MANIFEST);
    }

    @Test
    public void one_wrong_record_is_seen() throws Exception {
        Configuration conf = configuration(Committer.V1);
        sorted(conf);
        Path part = new Path(work.path("sorted"), PARTS[1]);
        byte[] data = read(part);
        String before = validated(conf);
        assertTrue(before, before.startsWith("checksum\t"));
        // A key that is greater than all others, in the middle.
        int at = data.length / RECORD / 2 * RECORD;
        byte[] key = java.util.Arrays.copyOfRange(data, at, at + 10);
        java.util.Arrays.fill(data, at, at + 10, (byte) '~');
        write(part, data);
        String broken = validated(conf);
        assertTrue(broken, broken.contains("error\tmisorder in part-r-00001"));
        // A record whose place is right, and whose value is another one: the sum says so.
        System.arraycopy(key, 0, data, at, key.length);
        data[at + 50] ^= 1;
        write(part, data);
        String changed = validated(conf);
        assertTrue(changed, changed.startsWith("checksum\t") && !changed.equals(before));
    }

    private byte[] read(Path path) throws IOException {
        byte[] data = new byte[(int) work.fs().getFileStatus(path).getLen()];
        try (FSDataInputStream in = work.fs().open(path)) {
            in.readFully(0, data);
        }
        return data;
    }

    private void write(Path path, byte[] data) throws IOException {
        try (FSDataOutputStream out = work.fs().create(path, true)) {
            out.write(data);
        }
    }
}
