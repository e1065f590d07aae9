package org.bivouac.hadoop;

import static org.apache.hadoop.fs.statistics.impl.IOStatisticsBinding.iostatisticsStore;

import org.apache.hadoop.fs.statistics.StoreStatisticNames;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsStore;

/** What is counted, by the names that Hadoop has for it. */
final class Counts {
    private Counts() {}

    static IOStatisticsStore ofReader() {
        return iostatisticsStore()
                .withCounters(
                        StreamStatisticNames.STREAM_READ_BYTES,
                        StreamStatisticNames.STREAM_READ_OPERATIONS,
                        StreamStatisticNames.STREAM_READ_SEEK_OPERATIONS,
                        StreamStatisticNames.STREAM_READ_UNBUFFERED,
                        StreamStatisticNames.STREAM_READ_VECTORED_OPERATIONS)
                .build();
    }

    static IOStatisticsStore ofWriter() {
        return iostatisticsStore().withCounters(StreamStatisticNames.STREAM_WRITE_BYTES).build();
    }

    static IOStatisticsStore ofFileSystem() {
        return iostatisticsStore()
                .withCounters(
                        StoreStatisticNames.OP_OPEN,
                        StoreStatisticNames.OP_CREATE,
                        StoreStatisticNames.OP_APPEND,
                        StoreStatisticNames.OP_DELETE,
                        StoreStatisticNames.OP_RENAME,
                        StoreStatisticNames.OP_MKDIRS,
                        StoreStatisticNames.OP_GET_FILE_STATUS,
                        StoreStatisticNames.OP_LIST_STATUS,
                        StoreStatisticNames.OP_TRUNCATE)
                .build();
    }
}
