package org.bivouac.mapreduce;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.util.Arrays;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitterFactory;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.files.ManifestSuccessData;

/** The ways in which Hadoop makes the output of tasks the output of a job, and what each leaves behind. */
public enum Committer {
    /** A task's output is renamed when the task is committed, and again when the job is. */
    V1,
    /** A task's output is renamed to its place when the task is committed. */
    V2,
    /** A task that is committed leaves a list of its files; all are renamed when the job is committed. */
    MANIFEST;

    private static final String ALGORITHM = "mapreduce.fileoutputcommitter.algorithm.version";

    public Configuration configure(Configuration conf) {
        switch (this) {
            case V1:
                conf.setInt(ALGORITHM, 1);
                break;
            case V2:
                conf.setInt(ALGORITHM, 2);
                break;
            default:
                conf.set("mapreduce.outputcommitter.factory.scheme.bivouac", ManifestCommitterFactory.NAME);
        }
        return conf;
    }

    /** Checks what a job's output directory holds: these files, the mark of success that this committer makes, and nothing else. */
    public void check(FileSystem fs, Path output, String... files) throws IOException {
        Set<String> expected = new TreeSet<>(Arrays.asList(files));
        expected.add("_SUCCESS");
        Set<String> found = new TreeSet<>();
        for (FileStatus status : fs.listStatus(output)) {
            found.add(status.getPath().getName());
        }
        assertEquals(expected, found);
        Path success = new Path(output, "_SUCCESS");
        if (this != MANIFEST) {
            assertEquals(0, fs.getFileStatus(success).getLen());
            return;
        }
        ManifestSuccessData data = ManifestSuccessData.load(fs, success);
        assertTrue(data.toJson(), data.getSuccess());
        assertEquals("org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitter", data.getCommitter());
        Set<String> listed = new TreeSet<>();
        for (Path path : data.getFilenamePaths()) {
            assertEquals(fs.makeQualified(output), path.getParent());
            listed.add(path.getName());
        }
        // What a job writes without its committer is hidden from other jobs by such a name.
        expected.removeIf(name -> name.startsWith("_"));
        assertEquals(expected, listed);
    }
}
