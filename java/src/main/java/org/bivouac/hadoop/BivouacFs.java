package org.bivouac.hadoop;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;

/**
 * The same for programs that use {@code FileContext}. That makes one for each path, and closes none, so all of them use the one
 * file system that Hadoop keeps for the deployment.
 */
public class BivouacFs extends DelegateToFileSystem {
    /** Called by Hadoop. */
    public BivouacFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
        this(uri, conf, (BivouacFileSystem) FileSystem.get(uri, conf));
    }

    private BivouacFs(URI uri, Configuration conf, BivouacFileSystem kept) throws IOException, URISyntaxException {
        super(uri, kept, conf, BivouacFileSystem.SCHEME, false);
    }

    @Override
    public int getUriDefaultPort() {
        return -1;
    }

    @Override
    public void renameInternal(Path from, Path to, boolean overwrite) throws IOException {
        ((BivouacFileSystem) fsImpl).rename(from, to, overwrite ? Options.Rename.OVERWRITE : Options.Rename.NONE);
    }
}
