package org.bivouac.hadoop;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;

/** The same for programs that use {@code FileContext}. */
public class BivouacFs extends DelegateToFileSystem {
    /** Called by Hadoop. */
    public BivouacFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
        super(uri, new BivouacFileSystem(), conf, BivouacFileSystem.SCHEME, false);
    }

    @Override
    public int getUriDefaultPort() {
        return -1;
    }
}
