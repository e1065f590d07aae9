package org.bivouac.hadoop;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;

/**
 * The C library (bivouac.h), as Java calls it. Deployments, files and directories are numbers here: the addresses that C has.
 * Whoever calls sees to it that none is used after it was closed. Paths are UTF-8 (of Java strings); failures are exceptions of
 * the kinds that Hadoop wants ({@link #failed}).
 *
 * <p>The native library is in the jar, and is put into a temporary file to be loaded. Another one can be named with the system
 * property {@code bivouac.library}.
 */
final class Native {
    private Native() {}

    /** Places in the array that {@link #stat} fills. */
    static final int INODE = 0;

    static final int SIZE = 1;
    static final int ALLOCATED = 2;
    static final int ACCESSED = 3;
    static final int MODIFIED = 4;
    static final int MODE = 5;
    static final int LINKS = 6;
    static final int USER = 7;
    static final int GROUP = 8;
    static final int BLOCK_SIZE = 9;
    static final int COPIES = 10;
    static final int CREATED = 11;
    /** How many there are. */
    static final int ATTRIBUTES = 12;

    /** Kinds of files, in a mode. */
    static final int KIND = 0170000;

    static final int DIRECTORY = 0040000;
    static final int SYMLINK = 0120000;

    /** Flags of open(2). */
    static final int O_RDONLY = 0;

    static final int O_WRONLY = 1;
    static final int O_CREAT = 0100;
    static final int O_EXCL = 0200;

    /** Flags of renameat2(2). */
    static final int NOREPLACE = 1;

    /** Times of {@link #utimes}. */
    static final long AS_IT_IS = Long.MIN_VALUE;

    /** Numbers of errors. */
    static final int ENOENT = 2;

    static final int EBADF = 9;
    static final int EACCES = 13;
    static final int EPERM = 1;
    static final int ENXIO = 6;
    static final int EEXIST = 17;
    static final int EXDEV = 18;
    static final int ENOTDIR = 20;
    static final int EISDIR = 21;
    static final int EINVAL = 22;
    static final int ENOTEMPTY = 39;
    static final int ELOOP = 40;

    static {
        load();
    }

    private static void load() {
        String named = System.getProperty("bivouac.library");
        if (named != null) {
            System.load(new File(named).getAbsolutePath());
            return;
        }
        String resource = "/native/" + System.getProperty("os.arch") + "/libbivouac_jni.so";
        try (InputStream library = Native.class.getResourceAsStream(resource)) {
            if (library == null) {
                throw new UnsatisfiedLinkError("this jar has no native library for " + System.getProperty("os.arch"));
            }
            // A file of this process's own: others may load another version.
            java.nio.file.Path copy = Files.createTempFile("libbivouac_jni", ".so");
            try {
                Files.copy(library, copy, StandardCopyOption.REPLACE_EXISTING);
                System.load(copy.toString());
            } finally {
                // What is loaded stays loaded.
                Files.deleteIfExists(copy);
            }
        } catch (IOException e) {
            throw (Error) new UnsatisfiedLinkError("the native library cannot be put into " + System.getProperty("java.io.tmpdir")
                            + ": set java.io.tmpdir to a directory with room from which libraries may be loaded")
                    .initCause(e);
        }
    }

    /** A call that failed, with its number. */
    static final class Errno extends IOException {
        private static final long serialVersionUID = 1L;
        private final int number;

        Errno(int number, String text) {
            super(text);
            this.number = number;
        }

        int number() {
            return number;
        }
    }

    /** The exception that Hadoop's users expect of a failure with a path. */
    static IOException failed(Errno errno, Object path) {
        String text = path + ": " + errno.getMessage();
        IOException made;
        switch (errno.number()) {
            case ENOENT:
                made = new FileNotFoundException(text);
                break;
            case EEXIST:
                made = new org.apache.hadoop.fs.FileAlreadyExistsException(text);
                break;
            case ENOTDIR:
                made = new org.apache.hadoop.fs.ParentNotDirectoryException(text);
                break;
            case EACCES:
            case EPERM:
                made = new org.apache.hadoop.security.AccessControlException(text);
                break;
            case ENOTEMPTY:
                made = new org.apache.hadoop.fs.PathIsNotEmptyDirectoryException(String.valueOf(path));
                break;
            default:
                made = new IOException(text);
        }
        made.initCause(errno);
        return made;
    }

    static native String version();

    /** Attaches; {@code key} may be null: then this node is asked for it. {@code name} null: the environment's. */
    static native long attach(String name, String key) throws Errno;

    static native void detach(long deployment);

    static native String mount(long deployment);

    static native String host(long deployment);

    /** Total, available, files, block size. */
    static native void statfs(long deployment, long[] space) throws Errno;

    static native long open(long deployment, String path, int flags, int mode) throws Errno;

    /** Opens a file by its inode number, whatever its name is by now. */
    static native long openInode(long deployment, long inode, int flags) throws Errno;

    static native void close(long file) throws Errno;

    /** Reads into a direct buffer's memory, from {@code at} on. How many bytes; 0 at the end. */
    static native int pread(long file, ByteBuffer direct, int at, int length, long offset) throws Errno;

    /** Writes from a direct buffer's memory. How many bytes. */
    static native int pwrite(long file, ByteBuffer direct, int at, int length, long offset) throws Errno;

    /** Appends; where the file ends behind it. All of it is written, or it fails. */
    static native long append(long file, ByteBuffer direct, int at, int length) throws Errno;

    static native void sync(long file) throws Errno;

    static native void fstat(long file, long[] attributes) throws Errno;

    static native void stat(long deployment, String path, boolean follow, long[] attributes) throws Errno;

    static native void access(long deployment, String path, int mask) throws Errno;

    static native void truncate(long deployment, String path, long length) throws Errno;

    static native void chmod(long deployment, String path, int mode) throws Errno;

    /** -1: as it is. */
    static native void chown(long deployment, String path, int user, int group) throws Errno;

    static native void utimes(long deployment, String path, long accessed, long modified) throws Errno;

    static native byte[] getxattr(long deployment, String path, String name) throws Errno;

    static native void setxattr(long deployment, String path, String name, byte[] value, int flags) throws Errno;

    static native void removexattr(long deployment, String path, String name) throws Errno;

    static native String[] listxattr(long deployment, String path) throws Errno;

    static native void mkdir(long deployment, String path, int mode) throws Errno;

    static native void rmdir(long deployment, String path) throws Errno;

    static native void unlink(long deployment, String path) throws Errno;

    static native void rename(long deployment, String from, String to, int flags) throws Errno;

    static native void symlink(long deployment, String target, String path) throws Errno;

    static native String readlink(long deployment, String path) throws Errno;

    static native long opendir(long deployment, String path) throws Errno;

    /** Fills in names and, for each, {@link #ATTRIBUTES} numbers. How many entries; 0 at the end. */
    static native int readdir(long directory, String[] names, long[] attributes) throws Errno;

    static native void closedir(long directory);

    /** For each location an offset, a length and how many hosts; and the hosts of all of them after each other. */
    static native long[] locate(long deployment, String path, long offset, long length, java.util.List<String> hosts) throws Errno;

    /** The user that this process runs as. */
    static native int user();

    /** User and group names for numbers, and numbers for names (-1: there is none). */
    static native String userName(int user);

    static native String groupName(int group);

    static native int userNumber(String name);

    static native int groupNumber(String name);
}
