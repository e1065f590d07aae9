package org.bivouac.hadoop;

import java.util.Set;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;
import org.apache.hadoop.util.StringUtils;

/** What both kinds of streams tell about themselves. */
interface Capable extends StreamCapabilities, IOStatisticsSource {
    /** Names of what the stream can do, in lower case. */
    Set<String> capabilities();

    @Override
    default boolean hasCapability(String capability) {
        return capabilities().contains(StringUtils.toLowerCase(capability));
    }
}
