package org.bivouac.hadoop;

import java.io.IOException;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.BulkDeleteUtils;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;

/**
 * Removes many files below a directory, and directories in which nothing is left. Each is one request, one after the other; what is not
 * there is no error.
 *
 * <p>Hadoop has this from 3.4.1 on, so nothing else may use this class but what only such a Hadoop calls.
 */
final class BulkDeletion implements BulkDelete {
    private static final int PAGE = 1000;

    private final Removal removal;
    private final Path base;
    private final IOStatisticsSource counts;

    private BulkDeletion(Removal removal, Path base, IOStatisticsSource counts) {
        this.removal = removal;
        this.base = base;
        this.counts = counts;
    }

    /** (An interface's type here, so that an older Hadoop does not look for it when it loads the file system.) */
    static BulkDelete below(Store store, Path base, IOStatisticsSource counts) {
        return new BulkDeletion(new Removal(store), store.whole(base), counts);
    }

    @Override
    public int pageSize() {
        return PAGE;
    }

    @Override
    public Path basePath() {
        return base;
    }

    /** What was not removed, and why not. */
    @Override
    public List<Map.Entry<Path, String>> bulkDelete(Collection<Path> paths) {
        BulkDeleteUtils.validateBulkDeletePaths(paths, PAGE, base);
        List<Map.Entry<Path, String>> failed = new ArrayList<>();
        // The deepest first, so that a directory is empty when it comes to it, if all that is in it goes, too.
        List<Path> sorted = new ArrayList<>(paths);
        sorted.sort(Comparator.comparingInt(Path::depth).reversed());
        for (Path path : sorted) {
            try {
                removal.remove(path, false);
            } catch (IOException e) {
                failed.add(new AbstractMap.SimpleImmutableEntry<>(path, e.toString()));
            }
        }
        return failed;
    }

    @Override
    public IOStatistics getIOStatistics() {
        return counts.getIOStatistics();
    }

    @Override
    public void close() {}
}
