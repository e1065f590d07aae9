package org.bivouac.hadoop;

import java.io.Closeable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * An attached deployment, which is detached when nobody uses it any more. The file system has a reference, and so have each open
 * file, so that a stream goes on after its file system was closed, and each call for as long as it takes.
 */
final class Deployment implements Closeable {
    private final long address;
    private final AtomicInteger references = new AtomicInteger(1);

    Deployment(String name, String key) throws Native.Errno {
        address = Native.attach(name, key);
    }

    /** A call that has a result. */
    interface Ask<T> {
        T with(long deployment) throws Native.Errno;
    }

    /** A call that has none. */
    interface Tell {
        void with(long deployment) throws Native.Errno;
    }

    /** For somebody else, who closes it, too. */
    Deployment retain() throws Native.Errno {
        int now;
        do {
            now = references.get();
            if (now == 0) {
                throw new Native.Errno(Native.EBADF, "the file system is closed");
            }
        } while (!references.compareAndSet(now, now + 1));
        return this;
    }

    <T> T ask(Ask<T> call) throws Native.Errno {
        retain();
        try {
            return call.with(address);
        } finally {
            close();
        }
    }

    void tell(Tell call) throws Native.Errno {
        retain();
        try {
            call.with(address);
        } finally {
            close();
        }
    }

    @Override
    public void close() {
        if (references.decrementAndGet() == 0) {
            Native.detach(address);
        }
    }

    /** An open file. It can be closed while others use it: then it is closed when they are done. */
    static final class Open implements Closeable {
        private final Deployment deployment;
        private final ReadWriteLock lock = new ReentrantReadWriteLock();
        private long file;

        Open(Deployment deployment, Ask<Long> open) throws Native.Errno {
            this.deployment = deployment.retain();
            try {
                file = open.with(deployment.address);
            } catch (Native.Errno | RuntimeException e) {
                deployment.close();
                throw e;
            }
        }

        /** What is done with an open file. */
        interface Use<T> {
            T with(long file) throws Native.Errno;
        }

        <T> T use(Use<T> use) throws Native.Errno {
            lock.readLock().lock();
            try {
                if (file == 0) {
                    throw new Native.Errno(Native.EBADF, "the file is closed");
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
                    try {
                        Native.close(closing);
                    } finally {
                        deployment.close();
                    }
                }
            } finally {
                lock.writeLock().unlock();
            }
        }
    }
}
