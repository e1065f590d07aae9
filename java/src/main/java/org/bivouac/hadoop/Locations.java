package org.bivouac.hadoop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;

/**
 * Which hosts have which part of a file. A file's blocks are dealt to all servers in turn; so that a task has a place, each part of
 * {@code splitSize} is said to be where most of it is.
 */
final class Locations {
    /** As many as a file of HDFS has copies: a scheduler that is told of all nodes has no reason to prefer one. */
    private static final int HOSTS = 3;

    private final Store store;
    private final long splitSize;

    Locations(Store store, long splitSize) {
        this.store = store;
        this.splitSize = splitSize;
    }

    BlockLocation[] of(FileStatus file, long start, long length) throws IOException {
        if (file == null) {
            return null;
        }
        if (start < 0 || length < 0) {
            throw new IllegalArgumentException("Invalid start or len parameter");
        }
        if (file.isDirectory() || file.getLen() <= start) {
            return new BlockLocation[0];
        }
        List<String> hosts = new ArrayList<>();
        long[] found = store.ask(file.getPath(), (a, name) -> Native.locate(a, name, start, length, hosts));
        List<BlockLocation> made = new ArrayList<>();
        Map<String, Long> has = new HashMap<>();
        long begin = start;
        long end = start;
        int host = 0;
        for (int i = 0; i < found.length; i += 3) {
            long at = found[i];
            long rest = found[i + 1];
            List<String> here = hosts.subList(host, host + (int) found[i + 2]);
            host += found[i + 2];
            while (rest > 0) {
                long some = Math.min(rest, (at / splitSize + 1) * splitSize - at);
                for (String name : here) {
                    has.merge(name, some, Long::sum);
                }
                at += some;
                rest -= some;
                end = at;
                if (at % splitSize == 0) {
                    made.add(part(has, begin, at - begin));
                    begin = at;
                }
            }
        }
        if (end > begin) {
            made.add(part(has, begin, end - begin));
        }
        return made.toArray(new BlockLocation[0]);
    }

    /** A part, from how many bytes of it each host has; these are forgotten. */
    private static BlockLocation part(Map<String, Long> has, long begin, long length) {
        List<Map.Entry<String, Long>> most = new ArrayList<>(has.entrySet());
        most.sort(Map.Entry.<String, Long>comparingByValue().reversed().thenComparing(Map.Entry.comparingByKey()));
        String[] hosts = most.stream().limit(HOSTS).map(Map.Entry::getKey).toArray(String[]::new);
        has.clear();
        return new BlockLocation(hosts, hosts, begin, length);
    }
}
