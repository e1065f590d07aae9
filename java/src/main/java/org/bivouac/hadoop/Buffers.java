package org.bivouac.hadoop;

import java.nio.ByteBuffer;
import java.util.concurrent.ConcurrentLinkedQueue;

/** Direct memory that streams share: to allocate it for each of them would take longer than they live. */
final class Buffers {
    private Buffers() {}

    /** The length of each, bytes. */
    static final int LENGTH = 256 << 10;

    private static final int KEPT = 64;
    private static final ConcurrentLinkedQueue<ByteBuffer> FREE = new ConcurrentLinkedQueue<>();

    static ByteBuffer take() {
        ByteBuffer buffer = FREE.poll();
        if (buffer == null) {
            return ByteBuffer.allocateDirect(LENGTH);
        }
        ((java.nio.Buffer) buffer).clear();
        return buffer;
    }

    static void give(ByteBuffer buffer) {
        if (buffer != null && FREE.size() < KEPT) {
            FREE.add(buffer);
        }
    }
}
