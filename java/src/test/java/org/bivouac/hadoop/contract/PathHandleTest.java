package org.bivouac.hadoop.contract;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.contract.AbstractContractPathHandleTest;
import org.apache.hadoop.fs.contract.AbstractFSContract;

public class PathHandleTest extends AbstractContractPathHandleTest {
    public PathHandleTest(String name, org.apache.hadoop.fs.Options.HandleOpt[] opts, boolean serialized) {
        super(name, opts, serialized);
    }

    @Override
    protected AbstractFSContract createContract(Configuration conf) {
        return new BivouacContract(conf);
    }
}
