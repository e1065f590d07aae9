package org.bivouac.hadoop;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.hadoop.conf.Configuration;

/** Where a deployment's key comes from, if not from its run directory on this node. */
final class Keys {
    private Keys() {}

    /** The key, or null: then the node is asked. */
    static String find(String deployment, Configuration conf) throws IOException {
        String named = conf.getTrimmed(BivouacFileSystem.KEY_FILE + "." + deployment, conf.getTrimmed(BivouacFileSystem.KEY_FILE, ""));
        if (named.isEmpty()) {
            return null;
        }
        return new String(Files.readAllBytes(Paths.get(named)), StandardCharsets.US_ASCII).trim();
    }
}
