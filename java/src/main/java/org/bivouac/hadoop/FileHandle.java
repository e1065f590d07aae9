package org.bivouac.hadoop;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.zip.CRC32;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.InvalidPathHandleException;
import org.apache.hadoop.fs.Options.HandleOpt;
import org.apache.hadoop.fs.PathHandle;

/**
 * A handle of a file, which can be opened later, by this process or by another one, if what was asked of the handle still holds: that the
 * file has not moved, that its contents have not changed, both or neither. It is the same file in any case, and not another one that has
 * got its name. Owners, permissions and extended attributes may change.
 *
 * <p>As bytes it is: {@link #MAGIC}, the version of this format, what may change, inode, time of creation, size, time of change, the name
 * of the deployment, the path in it, and a CRC-32 of all that. A text has its length before it.
 */
final class FileHandle implements PathHandle {
    private static final long serialVersionUID = 1L;

    /** "bvph". */
    private static final int MAGIC = 0x62767068;

    private static final byte FORMAT = 1;
    private static final byte MAY_MOVE = 1;
    private static final byte MAY_CHANGE = 2;
    private static final int CHECKSUM = 4;
    /** All but the texts. */
    private static final int FIXED = 4 + 1 + 1 + 4 * 8 + 2 * 4 + CHECKSUM;

    private final String deployment;
    private final String path;
    private final Version version;
    private final boolean mayMove;
    private final boolean mayChange;

    FileHandle(String deployment, String path, Version version, boolean mayMove, boolean mayChange) {
        this.deployment = deployment;
        this.path = path;
        this.version = version;
        this.mayMove = mayMove;
        this.mayChange = mayChange;
    }

    /** A handle of the file that a status is of, as it was when the status was asked for. */
    static FileHandle of(String deployment, FileStatus status, HandleOpt... options) {
        if (status.isDirectory() || status.isSymlink()) {
            throw new IllegalArgumentException(status.getPath() + ": only files have handles");
        }
        Version version = Version.of(status);
        if (version == null) {
            throw new IllegalArgumentException(status.getPath() + ": a handle needs a status that this file system has given");
        }
        for (HandleOpt option : options) {
            if (!(option instanceof HandleOpt.Location || option instanceof HandleOpt.Data)) {
                throw new UnsupportedOperationException("handles do not know the option " + option);
            }
        }
        boolean mayMove = HandleOpt.getOpt(HandleOpt.Location.class, options)
                .orElse(HandleOpt.moved(false))
                .allowChange();
        boolean mayChange = HandleOpt.getOpt(HandleOpt.Data.class, options)
                .orElse(HandleOpt.changed(false))
                .allowChange();
        return new FileHandle(deployment, status.getPath().toUri().getPath(), version, mayMove, mayChange);
    }

    /** The handle that these are the bytes of. */
    static FileHandle of(PathHandle handle) throws InvalidPathHandleException {
        if (handle instanceof FileHandle) {
            return (FileHandle) handle;
        }
        ByteBuffer bytes = handle.bytes().slice();
        if (bytes.remaining() < FIXED || bytes.getInt() != MAGIC) {
            throw new InvalidPathHandleException("it is not a handle of a file in a deployment");
        }
        byte format = bytes.get();
        if (format != FORMAT) {
            throw new InvalidPathHandleException("a handle of format " + format + ": this version of bivouac-hadoop reads " + FORMAT);
        }
        int end = bytes.limit() - CHECKSUM;
        if (bytes.getInt(end) != checksum(bytes, end)) {
            throw damaged();
        }
        bytes.limit(end);
        byte may = bytes.get();
        Version version = new Version(bytes.getLong(), bytes.getLong(), bytes.getLong(), bytes.getLong());
        String deployment = text(bytes);
        String path = text(bytes);
        if (bytes.hasRemaining() || (may & ~(MAY_MOVE | MAY_CHANGE)) != 0 || !path.startsWith("/")) {
            throw damaged();
        }
        return new FileHandle(deployment, path, version, (may & MAY_MOVE) != 0, (may & MAY_CHANGE) != 0);
    }

    private static InvalidPathHandleException damaged() {
        return new InvalidPathHandleException("the bytes of the handle are damaged");
    }

    private static String text(ByteBuffer bytes) throws InvalidPathHandleException {
        int length = bytes.remaining() < 4 ? -1 : bytes.getInt();
        if (length < 0 || length > bytes.remaining()) {
            throw damaged();
        }
        byte[] text = new byte[length];
        bytes.get(text);
        return new String(text, StandardCharsets.UTF_8);
    }

    private static int checksum(ByteBuffer bytes, int length) {
        ByteBuffer all = bytes.duplicate();
        all.position(0).limit(length);
        CRC32 sum = new CRC32();
        sum.update(all);
        return (int) sum.getValue();
    }

    @Override
    public ByteBuffer bytes() {
        byte[] name = deployment.getBytes(StandardCharsets.UTF_8);
        byte[] place = path.getBytes(StandardCharsets.UTF_8);
        ByteBuffer bytes = ByteBuffer.allocate(FIXED + name.length + place.length);
        bytes.putInt(MAGIC).put(FORMAT).put((byte) ((mayMove ? MAY_MOVE : 0) | (mayChange ? MAY_CHANGE : 0)));
        bytes.putLong(version.inode).putLong(version.created).putLong(version.size).putLong(version.modified);
        bytes.putInt(name.length).put(name).putInt(place.length).put(place);
        bytes.putInt(checksum(bytes, bytes.position()));
        bytes.flip();
        return bytes;
    }

    String deployment() {
        return deployment;
    }

    /** Where in the deployment the file was. */
    String path() {
        return path;
    }

    long inode() {
        return version.inode;
    }

    boolean mayMove() {
        return mayMove;
    }

    /** Refuses a file that was opened, by its attributes now, if it is not what the handle asks for. */
    void check(long[] attributes) throws InvalidPathHandleException {
        Version found = Version.of(attributes, 0);
        if (!found.isOfSameFile(version)) {
            throw invalid(mayMove ? "the file is gone, and another deployment has its number" : "another file is there", null);
        }
        // Somebody may still have open what was deleted.
        if (attributes[Native.LINKS] == 0) {
            throw invalid("the file was deleted", null);
        }
        if (!mayChange && !found.hasSameContents(version)) {
            throw invalid("its contents have changed", null);
        }
    }

    InvalidPathHandleException invalid(String text, Throwable cause) {
        return new InvalidPathHandleException("the handle of " + path + " in " + deployment + " does not hold any more: " + text, cause);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PathHandle && Arrays.equals(toByteArray(), ((PathHandle) other).toByteArray());
    }

    @Override
    public int hashCode() {
        return bytes().hashCode();
    }

    @Override
    public String toString() {
        return "FileHandle{" + deployment + ":" + path + ", etag " + version.etag() + (mayMove ? ", may move" : "")
                + (mayChange ? ", may change" : "") + "}";
    }
}
