package org.bivouac.spark;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.mapreduce.lib.input.FileSplit;
import org.apache.spark.Partition;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.rdd.NewHadoopPartition;
import scala.collection.JavaConverters;

/**
 * A Spark application that does jobs as it is told, so that executors that have warmed up do all of them. It says {@code ready}, then
 * reads lines {@code wordcount INPUT OUTPUT} and {@code terasort INPUT OUTPUT}, and writes for each job, in the job group of the line's
 * number, its splits, {@code split NUMBER PATH OFFSET LENGTH HOST,...}, and then {@code done SECONDS}. Usage: Jobs CORES
 */
public final class Jobs {
    private Jobs() {}

    public static void main(String[] arguments) throws Exception {
        int cores = Integer.parseInt(arguments[0]);
        SparkConf settings = new SparkConf()
                .set("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
                .set("spark.cores.max", String.valueOf(cores))
                // No job begins before all executors are there.
                .set("spark.scheduler.minRegisteredResourcesRatio", "1.0")
                .set("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s");
        try (JavaSparkContext spark = new JavaSparkContext(settings)) {
            List<Integer> numbers = new ArrayList<>();
            for (int i = 0; i < 64 * cores; i++) {
                numbers.add(i);
            }
            spark.setJobGroup("warm-up", "classes are loaded", false);
            spark.parallelize(numbers, 4 * cores).mapToPair(n -> new scala.Tuple2<>(n % 7, n)).reduceByKey(Integer::sum).collect();
            System.out.println("ready");
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            String line;
            for (int number = 0; (line = in.readLine()) != null; number++) {
                spark.setJobGroup(String.valueOf(number), line, false);
                job(spark, line.split(" "));
            }
        }
    }

    private static void job(JavaSparkContext spark, String[] words) {
        Configuration conf = new Configuration(spark.hadoopConfiguration());
        long begin = System.nanoTime();
        JavaPairRDD<?, ?> splits;
        switch (words[0]) {
            case "wordcount": {
                var lines = WordCount.read(spark, words[1], conf);
                splits = lines;
                WordCount.run(spark, lines, words[2], conf);
                break;
            }
            case "terasort": {
                var records = TeraSort.read(spark, words[1], conf);
                splits = records;
                TeraSort.run(spark, records, words[2], conf);
                break;
            }
            default:
                throw new IllegalArgumentException(words[0]);
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        for (Partition partition : splits.rdd().partitions()) {
            FileSplit split = (FileSplit) ((NewHadoopPartition) partition).serializableHadoopSplit().value();
            String hosts = String.join(",", JavaConverters.seqAsJavaList(splits.rdd().preferredLocations(partition)));
            System.out.printf("split %d %s %d %d %s%n",
                    partition.index(), split.getPath().toUri().getPath(), split.getStart(), split.getLength(), hosts);
        }
        System.out.printf("done %.3f%n", seconds);
    }
}
