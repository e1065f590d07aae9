package org.bivouac.hadoop;

import java.io.StringWriter;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;

/** A process of its own, for tests: shows its configuration and the content of a file. Usage: ReadingProcess PATH */
public final class ReadingProcess {
    private ReadingProcess() {}

    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        Path path = new Path(args[0]);
        try (FSDataInputStream in = path.getFileSystem(conf).open(path)) {
            StringWriter dump = new StringWriter();
            Configuration.dumpConfiguration(conf, dump);
            System.out.println(dump);
            System.out.println("content of it: " + in.readLine());
        }
    }
}
