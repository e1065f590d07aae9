package org.bivouac.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.StringTokenizer;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.lib.input.TextInputFormat;
import org.apache.hadoop.mapreduce.lib.output.TextOutputFormat;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import scala.Tuple2;

/** Counts words in texts. */
final class WordCount {
    private WordCount() {}

    static JavaPairRDD<LongWritable, Text> read(JavaSparkContext spark, String input, Configuration conf) {
        return spark.newAPIHadoopFile(input, TextInputFormat.class, LongWritable.class, Text.class, conf);
    }

    static void run(JavaSparkContext spark, JavaPairRDD<LongWritable, Text> lines, String output, Configuration conf) {
        lines.flatMapToPair(line -> {
                    List<Tuple2<String, Integer>> words = new ArrayList<>();
                    StringTokenizer tokens = new StringTokenizer(line._2.toString());
                    while (tokens.hasMoreTokens()) {
                        words.add(new Tuple2<>(tokens.nextToken(), 1));
                    }
                    return words.iterator();
                })
                .reduceByKey(Integer::sum)
                .mapToPair(count -> new Tuple2<>(new Text(count._1), new IntWritable(count._2)))
                .saveAsNewAPIHadoopFile(output, Text.class, IntWritable.class, TextOutputFormat.class, conf);
    }
}
