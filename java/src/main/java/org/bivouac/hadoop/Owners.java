package org.bivouac.hadoop;

import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;

/** Names of users and groups for their numbers, as this node has them, and the other way round. Names are looked up once. */
final class Owners {
    private Owners() {}

    private static final Map<Integer, String> USERS = new ConcurrentHashMap<>();
    private static final Map<Integer, String> GROUPS = new ConcurrentHashMap<>();

    static String user(int number) {
        return USERS.computeIfAbsent(number, n -> Optional.ofNullable(Native.userName(n)).orElse(Integer.toString(n)));
    }

    static String group(int number) {
        return GROUPS.computeIfAbsent(number, n -> Optional.ofNullable(Native.groupName(n)).orElse(Integer.toString(n)));
    }

    /** -1 for null. */
    static int userNumber(String name) throws IOException {
        return name == null ? -1 : number(name, Native.userNumber(name), "user");
    }

    /** -1 for null. */
    static int groupNumber(String name) throws IOException {
        return name == null ? -1 : number(name, Native.groupNumber(name), "group");
    }

    private static int number(String name, int found, String what) throws IOException {
        if (found >= 0) {
            return found;
        }
        try {
            return Integer.parseUnsignedInt(name);
        } catch (NumberFormatException e) {
            throw new IOException("there is no " + what + " " + name + " on this node", e);
        }
    }
}
