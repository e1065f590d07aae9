package org.bivouac.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;
import static org.junit.Assume.assumeTrue;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.security.token.DtUtilShell;
import org.apache.hadoop.tools.DistCp;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/**
 * The commands that docs/hadoop.md shows, as they are shown, but for the names of the deployment and of its hosts. {@code hadoop} is a
 * script here, which runs the class that Hadoop's own script of this name runs, with the jar only where {@code HADOOP_CLASSPATH} says.
 */
public class ManualTest {
    private static final Pattern SNIPPET = Pattern.compile("```(sh|python)\n(.*?)```", Pattern.DOTALL);

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private final String name = "hadoop-manual-" + System.nanoTime();
    private final List<String> commands = new ArrayList<>();
    private String python;

    @Before
    public void readManual() throws IOException {
        String text = new String(Files.readAllBytes(Paths.get(property("bivouac.manual"))), StandardCharsets.UTF_8);
        for (Matcher found = SNIPPET.matcher(text); found.find(); ) {
            if (found.group(1).equals("python")) {
                python = found.group(2);
            } else {
                commands.add(found.group(2)
                        .replace("--hosts node1,node2,node3", "--servers 3")
                        .replaceAll("\\b(up|preload|flush|down|key) job\\b", "$1 " + name)
                        .replace("//job", "//" + name));
            }
        }
    }

    @After
    public void takeDown() throws Exception {
        // What a snippet has not taken down because it failed.
        run("bivouac down " + name + " > /dev/null 2>&1 || true");
    }

    private static String property(String name) {
        String value = System.getProperty(name);
        assertTrue(name + " has to be given", value != null);
        return value;
    }

    private String run(String script) throws Exception {
        Path jar = Paths.get(property("bivouac.jar"));
        Path bin = folder.getRoot().toPath().resolve("bin");
        Path home = folder.getRoot().toPath().resolve("home");
        if (!Files.isDirectory(bin)) {
            Files.createDirectories(bin);
            Files.createDirectories(home.resolve("texts"));
            Files.write(home.resolve("texts/one"), "a word and a word\n".getBytes(StandardCharsets.US_ASCII));
            Files.createSymbolicLink(folder.getRoot().toPath().resolve(jar.getFileName()), jar);
            Files.createSymbolicLink(bin.resolve("bivouac"), Paths.get(property("bivouac.program")));
            // What Hadoop's own script finds in its configuration.
            Files.write(bin.resolve("core-site.xml"), "<configuration/>".getBytes(StandardCharsets.US_ASCII));
            Path hadoop = bin.resolve("hadoop");
            Files.write(hadoop, hadoop().getBytes(StandardCharsets.UTF_8));
            Files.setPosixFilePermissions(hadoop, PosixFilePermissions.fromString("rwx------"));
        }
        if (python != null) {
            Files.write(folder.getRoot().toPath().resolve("wordcount.py"), python.getBytes(StandardCharsets.UTF_8));
        }
        File said = folder.newFile();
        ProcessBuilder builder = new ProcessBuilder("sh", "-eu", "-c", script);
        builder.directory(folder.getRoot()).redirectErrorStream(true).redirectOutput(said);
        String spark = System.getProperty("bivouac.spark", "");
        builder.environment().merge("PATH", bin + ":" + spark, (old, own) -> own + ":" + old);
        builder.environment().put("HOME", home.toString());
        builder.environment().put("JAVA_HOME", System.getProperty("java.home"));
        Process process = builder.start();
        assertTrue(script, process.waitFor(300, TimeUnit.SECONDS));
        String text = new String(Files.readAllBytes(said.toPath()), StandardCharsets.UTF_8);
        assertEquals(script + text, 0, process.exitValue());
        return text;
    }

    private static String hadoop() {
        String all = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
        String classPath = Arrays.stream(all.split(File.pathSeparator))
                .filter(entry -> entry.endsWith(".jar"))
                .collect(Collectors.joining(File.pathSeparator));
        return "#!/bin/sh\ncase $1 in\nfs) class=" + FsShell.class.getName() + " ;;\ndtutil) class=" + DtUtilShell.class.getName()
                + " ;;\ndistcp) class=" + DistCp.class.getName() + " ;;\nesac\nshift\nexec '"
                + Paths.get(System.getProperty("java.home"), "bin", "java") + "' -cp \"$(dirname \"$0\"):$HADOOP_CLASSPATH:" + classPath
                + "\" $class \"$@\"\n";
    }

    private List<String> with(String word, boolean wanted) {
        return commands.stream().filter(one -> one.contains(word) == wanted).collect(Collectors.toList());
    }

    @Test
    public void theCommandsWithoutSparkRun() throws Exception {
        List<String> some = with("spark-submit", false);
        assertTrue("there are some", some.size() >= 2);
        for (String script : some) {
            run(script);
        }
    }

    @Test
    public void theCommandsWithSparkRun() throws Exception {
        List<String> some = with("spark-submit", true);
        assertTrue("there are some", !some.isEmpty());
        assumeTrue("scripts/spark-test.sh has installed Spark", System.getProperty("bivouac.spark") != null);
        for (String script : some) {
            assertTrue(run(script).contains("_SUCCESS"));
            String counts = Files.walk(folder.getRoot().toPath().resolve("home/counts"))
                    .filter(path -> path.getFileName().toString().startsWith("part-"))
                    .map(ManualTest::content)
                    .collect(Collectors.joining());
            assertTrue(counts, counts.contains("('word', 2)"));
        }
    }

    private static String content(Path path) {
        try {
            return new String(Files.readAllBytes(path), StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }
}
