package org.bivouac.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.IOException;
import java.io.StringWriter;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.token.DtUtilShell;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.util.ToolRunner;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class TokensTest {
    private static final String NAME = System.getProperty("bivouac.deployment");

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private final Configuration conf = new Configuration();
    private final Path path = new Path("bivouac://" + NAME + "/tokens-test");
    private final java.nio.file.Path keyFile = Paths.get("/dev/shm/bivouac-" + Native.user(), NAME, "key");
    private FileSystem fs;
    private String key;

    @Before
    public void write() throws IOException {
        fs = FileSystem.newInstance(URI.create("bivouac://" + NAME + "/"), conf);
        key = new String(Files.readAllBytes(keyFile), StandardCharsets.US_ASCII).trim();
        assertEquals(64, key.length());
        try (FSDataOutputStream out = fs.create(path)) {
            out.writeBytes("content");
        }
    }

    @After
    public void remove() throws IOException {
        fs.delete(path, false);
        fs.close();
    }

    /** What another process says that reads the file, without the deployment's key on this node; it logs all that it can. */
    private String read(File tokens, int expected) throws Exception {
        java.nio.file.Path hidden = keyFile.resolveSibling("key-that-a-test-has-hidden");
        File said = folder.newFile();
        File log = folder.newFile();
        Files.write(
                log.toPath(),
                ("log4j.rootLogger=ALL,all\nlog4j.appender.all=org.apache.log4j.ConsoleAppender\n"
                                + "log4j.appender.all.layout=org.apache.log4j.SimpleLayout\n")
                        .getBytes(StandardCharsets.US_ASCII));
        ProcessBuilder builder = new ProcessBuilder(
                Paths.get(System.getProperty("java.home"), "bin", "java").toString(),
                "-cp",
                System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")),
                "-Dlog4j.configuration=" + log.toURI(),
                ReadingProcess.class.getName(),
                path.toString());
        builder.environment().remove("HADOOP_TOKEN_FILE_LOCATION");
        if (tokens != null) {
            builder.environment().put("HADOOP_TOKEN_FILE_LOCATION", tokens.getPath());
        }
        builder.redirectErrorStream(true).redirectOutput(said);
        Files.move(keyFile, hidden, StandardCopyOption.ATOMIC_MOVE);
        try {
            Process process = builder.start();
            assertTrue(process.waitFor(60, TimeUnit.SECONDS));
            String text = new String(Files.readAllBytes(said.toPath()), StandardCharsets.UTF_8);
            assertEquals(text, expected, process.exitValue());
            return text;
        } finally {
            Files.move(hidden, keyFile, StandardCopyOption.ATOMIC_MOVE);
        }
    }

    @Test
    public void aProcessWithoutAKeyAttachesWithATokenAndLogsNothingOfIt() throws Exception {
        Credentials credentials = new Credentials();
        assertEquals(1, fs.addDelegationTokens("nobody", credentials).length);
        assertEquals("it has one", 0, fs.addDelegationTokens("nobody", credentials).length);
        File tokens = folder.newFile();
        credentials.writeTokenStorageFile(new Path(tokens.toURI()), conf);

        String refused = read(null, 1);
        assertFalse(refused, refused.contains("content of it: "));
        String said = read(tokens, 0);
        assertTrue(said, said.contains("content of it: content"));
        assertTrue("it has logged, and shown its configuration", said.contains("DEBUG") && said.contains("fs.defaultFS"));
        assertFalse("the key is not in it", said.contains(key));
    }

    @Test
    public void nothingOfTheKeyIsShown() throws Exception {
        Token<?> token = fs.getDelegationToken(null);
        assertEquals(key, new String(token.getPassword(), StandardCharsets.US_ASCII));
        assertEquals(fs.getCanonicalServiceName(), token.getService().toString());
        assertTrue(token.decodeIdentifier().toString(), token.decodeIdentifier() instanceof BivouacTokenIdentifier);
        StringWriter dump = new StringWriter();
        Configuration.dumpConfiguration(fs.getConf(), dump);
        fs.getConf().writeXml(dump);
        for (String shown : new String[] {
            token.toString(), token.decodeIdentifier().toString(), fs.toString(), dump.toString(),
        }) {
            assertNotEquals("", shown);
            for (int at = 0; at + 16 <= key.length(); at += 8) {
                assertFalse(shown, shown.contains(key.substring(at, at + 16)));
            }
        }
    }

    @Test
    public void theShellWritesTokens() throws Exception {
        File tokens = new File(folder.getRoot(), "tokens");
        assertEquals(0, ToolRunner.run(conf, new DtUtilShell(), new String[] {"get", "bivouac://" + NAME, tokens.getPath()}));
        assertTrue(read(tokens, 0).contains("content of it: content"));
    }
}
