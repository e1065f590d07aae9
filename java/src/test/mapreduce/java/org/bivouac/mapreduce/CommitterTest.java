package org.bivouac.mapreduce;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitter;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitterFactory;
import org.apache.hadoop.mapreduce.task.JobContextImpl;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;
import org.junit.Rule;
import org.junit.Test;

/** The committers step by step: two attempts at one task, as with speculative execution, of which one is committed. */
public class CommitterTest {
    @Rule
    public final Workspace work = new Workspace();

    private static TaskAttemptContext attempt(Job job, int task, int number) {
        return new TaskAttemptContextImpl(
                job.getConfiguration(), new TaskAttemptID("bivouac", 1, TaskType.REDUCE, task, number));
    }

    /** By the scheme of the output, which has to be in the path: without one, the factory makes a FileOutputCommitter. */
    private static PathOutputCommitter committer(TaskAttemptContext context) throws IOException {
        return PathOutputCommitterFactory.createCommitter(FileOutputFormat.getOutputPath(context), context);
    }

    private PathOutputCommitter write(TaskAttemptContext context, String name, String text) throws IOException {
        PathOutputCommitter committer = committer(context);
        committer.setupTask(context);
        try (FSDataOutputStream out = work.fs().create(new Path(committer.getWorkPath(), name))) {
            out.write(text.getBytes(StandardCharsets.UTF_8));
        }
        return committer;
    }

    private void oneOfTwoAttempts(Committer committer, boolean visibleBeforeJob) throws Exception {
        Job job = Job.getInstance(committer.configure(work.configuration()));
        Path output = work.path("output");
        FileOutputFormat.setOutputPath(job, output);
        JobContextImpl context = new JobContextImpl(job.getConfiguration(), attempt(job, 0, 0).getJobID());
        PathOutputCommitter ofJob = committer(attempt(job, 0, 0));
        ofJob.setupJob(context);

        TaskAttemptContext slow = attempt(job, 0, 0);
        TaskAttemptContext fast = attempt(job, 0, 1);
        PathOutputCommitter ofSlow = write(slow, "part-r-00000", "half of");
        PathOutputCommitter ofFast = write(fast, "part-r-00000", "all of the first");
        assertTrue(ofFast.needsTaskCommit(fast));
        ofFast.commitTask(fast);
        ofSlow.abortTask(slow);
        TaskAttemptContext other = attempt(job, 1, 0);
        write(other, "part-r-00001", "the second").commitTask(other);
        // An attempt that nobody commits or aborts: its node is gone.
        write(attempt(job, 2, 0), "part-r-00002", "nothing");

        assertEquals(visibleBeforeJob, work.fs().exists(new Path(output, "part-r-00000")));
        assertFalse(work.fs().exists(new Path(output, "_SUCCESS")));
        ofJob.commitJob(context);
        committer.check(work.fs(), output, "part-r-00000", "part-r-00001");
        assertEquals("all of the firstthe second", work.text("output", "part-*"));
    }

    @Test
    public void one_of_two_attempts_with_file_output_committer_v1() throws Exception {
        oneOfTwoAttempts(Committer.V1, false);
    }

    @Test
    public void one_of_two_attempts_with_file_output_committer_v2() throws Exception {
        oneOfTwoAttempts(Committer.V2, true);
    }

    @Test
    public void one_of_two_attempts_with_manifest_committer() throws Exception {
        oneOfTwoAttempts(Committer.MANIFEST, false);
    }
}
