package org.bivouac.hadoop;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFileAttributes;
import java.nio.file.attribute.PosixFilePermission;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;

/**
 * Where a deployment's key comes from: a file that the configuration names, a delegation token of the current user, or the
 * deployment's run directory on this node. A key is 64 hexadecimal digits.
 */
final class Keys {
    private Keys() {}

    private static final Path SHARED = Paths.get("/dev/shm");

    /** The key to attach with, or null: then the C library looks for the run directory. */
    static String find(String deployment, Configuration conf) throws IOException {
        String named = conf.getTrimmed(BivouacFileSystem.KEY_FILE + "." + deployment, conf.getTrimmed(BivouacFileSystem.KEY_FILE, ""));
        return named.isEmpty() ? Tokens.keyOfCurrentUser(deployment) : read(Paths.get(named));
    }

    /** The key to hand on to other processes, or null: this one has none. */
    static String toHandOn(String deployment, Configuration conf) throws IOException {
        String found = find(deployment, conf);
        if (found == null) {
            found = ofNode(deployment);
        }
        return found != null ? found : ofHome(deployment);
    }

    /** The key in what {@code bivouac up} has left in the user's home directory, perhaps on another node; or null. */
    private static String ofHome(String deployment) throws IOException {
        String set = System.getenv("BIVOUAC_HOME");
        Path home = set != null ? Paths.get(set) : Paths.get(System.getProperty("user.home"), ".bivouac");
        Path key = home.resolve(deployment).resolve("key");
        return Files.isReadable(key) ? read(key) : null;
    }

    private static String read(Path file) throws IOException {
        return new String(Files.readAllBytes(file), StandardCharsets.US_ASCII).trim();
    }

    /**
     * The key in the run directory, /dev/shm/bivouac-USER/NAME or, where somebody else has taken that name,
     * /dev/shm/bivouac-USER.SECRET/NAME.
     */
    private static String ofNode(String deployment) throws IOException {
        String usual = "bivouac-" + Integer.toUnsignedString(Native.user());
        String found = ofRunDirectory(SHARED.resolve(usual), deployment);
        if (found != null) {
            return found;
        }
        try (DirectoryStream<Path> others = Files.newDirectoryStream(SHARED, usual + ".*")) {
            for (Path other : others) {
                found = ofRunDirectory(other, deployment);
                if (found != null) {
                    return found;
                }
            }
        }
        return null;
    }

    private static String ofRunDirectory(Path base, String deployment) throws IOException {
        Path directory = base.resolve(deployment);
        Path key = directory.resolve("key");
        return isPrivate(base) && isPrivate(directory) && Files.isRegularFile(key, LinkOption.NOFOLLOW_LINKS) ? read(key) : null;
    }

    /** Whether it is a directory of this user's that nobody else may enter: anybody may make others in /dev/shm. */
    private static boolean isPrivate(Path path) throws IOException {
        if (!Files.isDirectory(path, LinkOption.NOFOLLOW_LINKS)) {
            return false;
        }
        Object owner = Files.getAttribute(path, "unix:uid", LinkOption.NOFOLLOW_LINKS);
        Set<PosixFilePermission> permissions =
                Files.readAttributes(path, PosixFileAttributes.class, LinkOption.NOFOLLOW_LINKS).permissions();
        return owner.equals(Native.user()) && permissions.stream().allMatch(one -> one.name().startsWith("OWNER_"));
    }
}
