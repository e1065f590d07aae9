package org.bivouac.hadoop.contract;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.contract.AbstractFSContract;
import org.bivouac.hadoop.BivouacFileSystem;

/**
 * What the file system claims to do (contract/bivouac.xml), on the deployment that the property {@code bivouac.deployment}
 * names. There is no other file system that these tests could be run against by mistake.
 */
public class BivouacContract extends AbstractFSContract {
    public BivouacContract(Configuration conf) {
        super(conf);
        addConfResource("contract/bivouac.xml");
    }

    private static URI root() {
        String name = System.getProperty("bivouac.deployment");
        if (name == null || !name.matches("[A-Za-z0-9_.-]+")) {
            throw new IllegalStateException("the tests need a deployment: -Dbivouac.deployment=NAME");
        }
        return URI.create("bivouac://" + name + "/");
    }

    @Override
    public FileSystem getTestFileSystem() throws IOException {
        FileSystem found = FileSystem.get(root(), getConf());
        if (!(found instanceof BivouacFileSystem)) {
            throw new IllegalStateException("not a deployment: " + found);
        }
        return found;
    }

    @Override
    public String getScheme() {
        return BivouacFileSystem.SCHEME;
    }

    @Override
    public Path getTestPath() {
        return new Path(new Path(root()), "test");
    }
}
