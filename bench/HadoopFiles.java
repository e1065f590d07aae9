import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.Random;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/**
 * Measures a deployment and a directory through Hadoop's file system classes. Usage: HadoopFiles DEPLOYMENT DIRECTORY MIB FILES. It makes
 * the files and runs everything until the compiler of the virtual machine has seen it, says "ready", and then answers each line of its
 * input, SIDE OPERATION, with a figure: MiB/s of write, read and read-direct, files/s of list and small.
 */
public final class HadoopFiles {
    private static final int PIECE = 1 << 20;
    private static final int SMALL = 10_000;
    private static final int WARM_UPS = 5;

    private final FileSystem fs;
    private final Path large;
    private final Path directory;
    private final int pieces;
    private final int files;
    private final byte[] heap = new byte[PIECE];
    private final ByteBuffer direct = ByteBuffer.allocateDirect(PIECE);

    private HadoopFiles(FileSystem fs, Path base, int pieces, int files) throws IOException {
        this.fs = fs;
        this.pieces = pieces;
        this.files = files;
        large = new Path(base, "large");
        directory = new Path(base, "small");
        new Random(1).nextBytes(heap);
        fs.mkdirs(directory);
    }

    private Path small(int number) {
        return new Path(directory, "file-" + number);
    }

    private void makeSmall(int number) throws IOException {
        try (FSDataOutputStream out = fs.create(small(number))) {
            out.write(heap, 0, SMALL);
        }
    }

    private double run(String operation) throws IOException {
        long begin = System.nanoTime();
        double done = operation.equals("list") || operation.equals("small") ? files : pieces;
        switch (operation) {
            case "write":
                write();
                break;
            case "read":
                read();
                break;
            case "read-direct":
                readDirect();
                break;
            case "list":
                list();
                break;
            case "small":
                readSmall();
                break;
            default:
                throw new IllegalArgumentException(operation);
        }
        return done / ((System.nanoTime() - begin) / 1e9);
    }

    private void write() throws IOException {
        try (FSDataOutputStream out = fs.create(large)) {
            for (int i = 0; i < pieces; i++) {
                out.write(heap, 0, PIECE);
            }
        }
    }

    private void read() throws IOException {
        try (FSDataInputStream in = fs.open(large)) {
            for (int i = 0; i < pieces; i++) {
                in.readFully(heap, 0, PIECE);
            }
            check(in.read() < 0, "more than was written");
        }
    }

    private void readDirect() throws IOException {
        try (FSDataInputStream in = fs.open(large)) {
            for (int i = 0; i < pieces; i++) {
                direct.clear();
                while (direct.hasRemaining()) {
                    check(in.read(direct) > 0, "less than was written");
                }
            }
        }
    }

    private void list() throws IOException {
        FileStatus[] found = fs.listStatus(directory);
        long bytes = 0;
        for (FileStatus status : found) {
            bytes += status.getLen();
        }
        check(found.length == files && bytes == (long) files * SMALL, "another listing");
    }

    private void readSmall() throws IOException {
        for (int i = 0; i < files; i++) {
            try (FSDataInputStream in = fs.open(small(i))) {
                in.readFully(heap, 0, SMALL);
            }
        }
    }

    private static void check(boolean isTrue, String otherwise) throws IOException {
        if (!isTrue) {
            throw new IOException(otherwise);
        }
    }

    public static void main(String[] args) throws IOException {
        Configuration conf = new Configuration();
        int pieces = Integer.parseInt(args[2]);
        int files = Integer.parseInt(args[3]);
        RawLocalFileSystem raw = new RawLocalFileSystem();
        raw.initialize(URI.create("file:///"), conf);
        FileSystem bivouac = FileSystem.get(URI.create("bivouac://" + args[0] + "/"), conf);
        HadoopFiles subject = new HadoopFiles(bivouac, new Path("bivouac://" + args[0] + "/hadoop"), pieces, files);
        HadoopFiles limit = new HadoopFiles(raw, new Path("file://" + args[1]), pieces, files);
        for (int i = 0; i < files; i++) {
            subject.makeSmall(i);
            limit.makeSmall(i);
        }
        for (int i = 0; i < WARM_UPS; i++) {
            for (String operation : new String[] {"write", "read", "list", "small"}) {
                subject.run(operation);
                limit.run(operation);
            }
            subject.run("read-direct");
        }
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            System.out.println((words[0].equals("bivouac") ? subject : limit).run(words[1]));
        }
        bivouac.close();
    }
}
