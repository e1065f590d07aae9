package org.bivouac.spark;

import java.io.Serializable;
import java.util.Arrays;
import java.util.Comparator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.examples.terasort.TeraInputFormat;
import org.apache.hadoop.examples.terasort.TeraOutputFormat;
import org.apache.hadoop.io.Text;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import scala.Tuple2;

/** Sorts what TeraGen makes, as Spark sorts by key: a first pass samples the keys, a second one deals the records to ranges of keys. */
final class TeraSort {
    private TeraSort() {}

    /** Keys as TeraValidate compares them: byte by byte, without signs. */
    static final class ByBytes implements Comparator<byte[]>, Serializable {
        private static final long serialVersionUID = 1;

        @Override
        public int compare(byte[] a, byte[] b) {
            return Arrays.compareUnsigned(a, b);
        }
    }

    static JavaPairRDD<Text, Text> read(JavaSparkContext spark, String input, Configuration conf) {
        return spark.newAPIHadoopFile(input, TeraInputFormat.class, Text.class, Text.class, conf);
    }

    static void run(JavaSparkContext spark, JavaPairRDD<Text, Text> records, String output, Configuration conf) {
        records
                // The reader uses the same objects for all records.
                .mapToPair(record -> new Tuple2<>(record._1.copyBytes(), record._2.copyBytes()))
                .sortByKey(new ByBytes(), true, records.getNumPartitions())
                .mapToPair(record -> new Tuple2<>(new Text(record._1), new Text(record._2)))
                .saveAsNewAPIHadoopFile(output, Text.class, Text.class, TeraOutputFormat.class, conf);
    }
}
