package org.bivouac.mapreduce;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.junit.rules.ExternalResource;

/** A directory of the deployment for the length of one test, and a configuration in which jobs run in this process (LocalJobRunner). */
public class Workspace extends ExternalResource {
    private FileSystem fs;
    private final Path base = new Path("/mapreduce-test");

    @Override
    protected void before() throws IOException {
        fs = FileSystem.get(configuration());
        fs.delete(base, true);
        fs.mkdirs(base);
    }

    @Override
    protected void after() {
        try {
            fs.delete(base, true);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** A new one, with the deployment as the default file system: jobs are staged there too. */
    public Configuration configuration() {
        String local = new File(System.getProperty("java.io.tmpdir"), "mapreduce-test").getPath();
        Configuration conf = new Configuration();
        URI root = URI.create("bivouac://" + System.getProperty("bivouac.deployment") + "/");
        FileSystem.setDefaultUri(conf, root);
        conf.set("fs.AbstractFileSystem.bivouac.impl", "org.bivouac.hadoop.BivouacFs");
        conf.set("mapreduce.framework.name", "local");
        conf.set("hadoop.tmp.dir", local);
        conf.set("mapreduce.jobtracker.staging.root.dir", base + "/staging");
        // Tasks run beside each other, so that several write and commit at once.
        conf.setInt("mapreduce.local.map.tasks.maximum", 2);
        conf.setInt("mapreduce.local.reduce.tasks.maximum", 2);
        conf.setInt("mapreduce.task.io.sort.mb", 32);
        // A job that has ended is seen at once, and not after 5 s.
        conf.setInt("mapreduce.client.completion.pollinterval", 20);
        conf.setInt("mapreduce.client.progressmonitor.pollinterval", 20);
        return conf;
    }

    public FileSystem fs() {
        return fs;
    }

    public Path path(String name) {
        return new Path(base, name);
    }

    /** The contents of a directory's files with such a name, in the order of their names. */
    public String text(String directory, String pattern) throws IOException {
        StringBuilder all = new StringBuilder();
        for (FileStatus file : fs.globStatus(new Path(path(directory), pattern))) {
            byte[] data = new byte[(int) file.getLen()];
            try (FSDataInputStream in = fs.open(file.getPath())) {
                in.readFully(0, data);
            }
            all.append(new String(data, StandardCharsets.UTF_8));
        }
        return all.toString();
    }
}
