package org.bivouac.mapreduce;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.examples.WordCount;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.junit.Rule;
import org.junit.Test;

/** WordCount of Hadoop's examples, with each committer, beside counts that are kept while the text is made; and jobs that fail. */
public class WordCountTest {
    private static final int FILES = 3;
    private static final int LINES = 20_000;
    private static final String[] PARTS = {"part-r-00000", "part-r-00001"};

    @Rule
    public final Workspace work = new Workspace();

    /** Makes the text, with lines of all lengths; how often each word is in it. */
    private Map<String, Integer> write(Path directory) throws IOException {
        Random random = new Random(15);
        Map<String, Integer> counts = new TreeMap<>();
        for (int file = 0; file < FILES; file++) {
            try (FSDataOutputStream out = work.fs().create(new Path(directory, "text-" + file))) {
                for (int line = 0; line < LINES; line++) {
                    StringBuilder text = new StringBuilder();
                    for (int words = random.nextInt(12); words > 0; words--) {
                        // Some words are frequent, and most are not.
                        String word = "wörd" + (int) Math.exp(random.nextInt(10) * random.nextDouble());
                        counts.merge(word, 1, Integer::sum);
                        text.append(word).append(words == 1 ? "" : random.nextInt(5) == 0 ? "\t" : " ");
                    }
                    out.write(text.append('\n').toString().getBytes(StandardCharsets.UTF_8));
                }
            }
        }
        return counts;
    }

    private Job job(Configuration conf) throws IOException {
        conf.setLong(FileInputFormat.SPLIT_MAXSIZE, 300_001);
        Job job = Job.getInstance(conf, "word count");
        job.setJarByClass(WordCount.class);
        job.setMapperClass(WordCount.TokenizerMapper.class);
        job.setCombinerClass(WordCount.IntSumReducer.class);
        job.setReducerClass(WordCount.IntSumReducer.class);
        job.setOutputKeyClass(Text.class);
        job.setOutputValueClass(IntWritable.class);
        job.setNumReduceTasks(PARTS.length);
        FileInputFormat.addInputPath(job, work.path("texts"));
        FileOutputFormat.setOutputPath(job, work.path("counts"));
        return job;
    }

    private void countsWith(Committer committer) throws Exception {
        Map<String, Integer> expected = write(work.path("texts"));
        assertTrue(job(committer.configure(work.configuration())).waitForCompletion(false));
        committer.check(work.fs(), work.path("counts"), PARTS);
        Map<String, Integer> found = new TreeMap<>();
        for (String line : work.text("counts", "part-r-*").split("\n")) {
            String[] word = line.split("\t");
            found.merge(word[0], Integer.valueOf(word[1]), Integer::sum);
        }
        assertEquals(expected, found);
    }

    @Test
    public void counts_with_file_output_committer_v1() throws Exception {
        countsWith(Committer.V1);
    }

    @Test
    public void counts_with_file_output_committer_v2() throws Exception {
        countsWith(Committer.V2);
    }

    @Test
    public void counts_with_manifest_committer() throws Exception {
        countsWith(Committer.MANIFEST);
    }

    /** Writes what it reads, and fails in one of the splits. */
    public static class Failing extends Mapper<LongWritable, Text, Text, IntWritable> {
        @Override
        protected void map(LongWritable at, Text line, Context context) throws IOException, InterruptedException {
            if (at.get() > 600_000) {
                throw new IOException("this mapper fails");
            }
            context.write(line, new IntWritable(1));
        }
    }

    private void leavesNothingWith(Committer committer) throws Exception {
        write(work.path("texts"));
        Job job = job(committer.configure(work.configuration()));
        job.setMapperClass(Failing.class);
        job.setNumReduceTasks(0);
        assertTrue(!job.waitForCompletion(false));
        assertTrue(!work.fs().exists(new Path(work.path("counts"), "_SUCCESS")));
        assertTrue(!work.fs().exists(new Path(work.path("counts"), "_temporary")));
    }

    @Test
    public void job_that_fails_leaves_no_temporary_files_with_v1() throws Exception {
        leavesNothingWith(Committer.V1);
    }

    @Test
    public void job_that_fails_leaves_no_temporary_files_with_manifest_committer() throws Exception {
        leavesNothingWith(Committer.MANIFEST);
    }
}
