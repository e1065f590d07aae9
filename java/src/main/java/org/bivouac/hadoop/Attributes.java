package org.bivouac.hadoop;

import java.io.IOException;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;

/** Permissions, owners, times and extended attributes. */
final class Attributes {
    /** Flags of setxattr(2). */
    private static final int CREATE = 1;

    private static final int REPLACE = 2;

    private final Store store;

    Attributes(Store store) {
        this.store = store;
    }

    /** Fails if this process may not. */
    void access(Path path, FsAction mode) throws IOException {
        int mask = (mode.implies(FsAction.READ) ? 4 : 0)
                | (mode.implies(FsAction.WRITE) ? 2 : 0)
                | (mode.implies(FsAction.EXECUTE) ? 1 : 0);
        store.tell(path, (a, name) -> Native.access(a, name, mask));
    }

    void setPermission(Path path, FsPermission permission) throws IOException {
        store.tell(path, (a, name) -> Native.chmod(a, name, permission.toShort()));
    }

    /** Null: as it is. */
    void setOwner(Path path, String user, String group) throws IOException {
        if (user == null && group == null) {
            throw new IOException(path + ": a user or a group has to be given");
        }
        int uid = Owners.userNumber(user);
        int gid = Owners.groupNumber(group);
        store.tell(path, (a, name) -> Native.chown(a, name, uid, gid));
    }

    /** Milliseconds since 1970; -1: as it is. */
    void setTimes(Path path, long modified, long accessed) throws IOException {
        store.tell(path, (a, name) -> Native.utimes(a, name, nanos(accessed), nanos(modified)));
    }

    private static long nanos(long millis) {
        return millis == -1 ? Native.AS_IT_IS : millis * 1_000_000L;
    }

    void set(Path path, String attribute, byte[] value, EnumSet<XAttrSetFlag> how) throws IOException {
        boolean create = how.contains(XAttrSetFlag.CREATE);
        boolean replace = how.contains(XAttrSetFlag.REPLACE);
        int flags = create == replace ? 0 : create ? CREATE : REPLACE;
        byte[] bytes = value == null ? new byte[0] : value;
        store.tell(path, (a, name) -> Native.setxattr(a, name, attribute, bytes, flags));
    }

    byte[] get(Path path, String attribute) throws IOException {
        return store.ask(path, (a, name) -> Native.getxattr(a, name, attribute));
    }

    Map<String, byte[]> get(Path path, List<String> attributes) throws IOException {
        Map<String, byte[]> found = new HashMap<>();
        for (String attribute : attributes) {
            found.put(attribute, get(path, attribute));
        }
        return found;
    }

    List<String> list(Path path) throws IOException {
        return Arrays.asList(store.ask(path, Native::listxattr));
    }

    void remove(Path path, String attribute) throws IOException {
        store.tell(path, (a, name) -> Native.removexattr(a, name, attribute));
    }
}
