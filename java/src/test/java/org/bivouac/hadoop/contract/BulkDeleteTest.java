package org.bivouac.hadoop.contract;

import static org.junit.Assert.assertEquals;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.contract.AbstractContractBulkDeleteTest;
import org.apache.hadoop.fs.contract.AbstractFSContract;
import org.junit.Test;

public class BulkDeleteTest extends AbstractContractBulkDeleteTest {
    @Override
    protected AbstractFSContract createContract(Configuration conf) {
        return new BivouacContract(conf);
    }

    /** Hadoop's own test of it wants pages of one path, as its default has. */
    @Override
    @Test
    public void validatePageSize() throws Exception {
        try (BulkDelete bulk = getFileSystem().createBulkDelete(getContract().getTestPath())) {
            assertEquals(1000, bulk.pageSize());
        }
    }
}
