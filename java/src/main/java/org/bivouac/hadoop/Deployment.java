package org.bivouac.hadoop;

import java.io.Closeable;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * An attached deployment, which is detached when nobody uses it any more: the file system has a reference, and so has each open
 * file, so that a stream goes on after its file system was closed.
 */
final class Deployment implements Closeable {
    private final long address;
    private int references = 1;

    Deployment(String name, String key) throws Native.Errno {
        address = Native.attach(name, key);
    }

    long address() {
        return address;
    }

    /** For somebody else, who closes it, too. */
    synchronized Deployment retain() {
        references++;
        return this;
    }

    @Override
    public void close() {
        synchronized (this) {
            if (--references != 0) {
                return;
            }
        }
        Native.detach(address);
    }

    /** An open file. It can be closed while others use it: then it is closed when they are done. */
    static final class Open implements Closeable {
        private final Deployment deployment;
        private final ReadWriteLock lock = new ReentrantReadWriteLock();
        private long file;

        Open(Deployment deployment, String path, int flags, int mode) throws Native.Errno {
            file = Native.open(deployment.address(), path, flags, mode);
            this.deployment = deployment.retain();
        }

        /** What is done with an open file. */
        interface Use<T> {
            T with(long file) throws Native.Errno;
        }

        <T> T use(Use<T> use) throws Native.Errno {
            lock.readLock().lock();
            try {
                if (file == 0) {
                    throw new Native.Errno(9, "the file is closed");
                }
                return use.with(file);
            } finally {
                lock.readLock().unlock();
            }
        }

        @Override
        public void close() throws Native.Errno {
            lock.writeLock().lock();
            try {
                if (file != 0) {
                    long closing = file;
                    file = 0;
                    Native.close(closing);
                    deployment.close();
                }
            } finally {
                lock.writeLock().unlock();
            }
        }
    }
}
