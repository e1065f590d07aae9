package org.bivouac.hadoop;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.fs.Path;

/**
 * Symbolic links. A link to a path of the deployment leads there for programs with a mount, too: its text begins with the mount's path,
 * which is taken away when Hadoop asks for the target.
 */
final class Links {
    private final Store store;

    Links(Store store) {
        this.store = store;
    }

    Path target(Path path) throws IOException {
        String target = store.ask(path, Native::readlink);
        String mount = store.ask(path, (a, name) -> Native.mount(a));
        if (target.equals(mount) || target.startsWith(mount + "/")) {
            String inside = target.length() == mount.length() ? "/" : target.substring(mount.length());
            return store.whole(new Path(null, null, inside));
        }
        return new Path(null, null, target);
    }

    void make(Path target, Path link) throws IOException {
        URI to = target.toUri();
        boolean isRelative = to.getScheme() == null && !to.getPath().startsWith("/");
        String text = isRelative ? to.getPath() : store.ask(link, (a, name) -> Native.mount(a)) + store.name(target);
        store.tell(link, (a, name) -> Native.symlink(a, text, name));
    }
}
