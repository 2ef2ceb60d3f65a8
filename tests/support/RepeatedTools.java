import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after the other in one JVM, which takes a second to start. Each line of
 * the input is what the tool reads, its class and its arguments, in base64 and separated by blanks.
 * The answer is a line with its exit status, its output and its errors.
 */
public class RepeatedTools {
    /** Ends a tool that asks for the end of the JVM. */
    static class Exited extends Error {}

    /** Classes of tools, new for each run: some count in static fields what they did so far. */
    static class FreshTools extends URLClassLoader {
        FreshTools(URL[] jars) {
            super(jars, RepeatedTools.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("kafka.tools.") && !name.startsWith("org.apache.kafka.tools.")) {
                return super.loadClass(name, resolve);
            }
            synchronized (getClassLoadingLock(name)) {
                Class<?> loaded = findLoadedClass(name);
                return loaded == null ? findClass(name) : loaded;
            }
        }
    }

    /** An output that each run redirects: libraries keep the stream that they find first. */
    static class Redirected extends OutputStream {
        volatile ByteArrayOutputStream target = new ByteArrayOutputStream();

        @Override
        public void write(int one) {
            target.write(one);
        }

        @Override
        public void write(byte[] bytes, int from, int count) {
            target.write(bytes, from, count);
        }
    }

    static final Redirected OUTPUT = new Redirected();
    static final Redirected ERRORS = new Redirected();
    static final List<Runnable> HOOKS = new ArrayList<>();
    static Integer status;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        PrintStream answers = System.out;
        System.setOut(new PrintStream(OUTPUT, true));
        System.setErr(new PrintStream(ERRORS, true));
        Exit.setExitProcedure(RepeatedTools::exit);
        Exit.setHaltProcedure(RepeatedTools::exit);
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        URL[] jars = jars();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(words[0])));
            for (int number = 1; number < words.length; number++) {
                words[number] = new String(Base64.getDecoder().decode(words[number]));
            }
            OUTPUT.target = new ByteArrayOutputStream();
            ERRORS.target = new ByteArrayOutputStream();
            run(jars, words[1], Arrays.copyOfRange(words, 2, words.length));
            System.out.flush();
            System.err.flush();
            answers.println(status + " " + encoded(OUTPUT) + " " + encoded(ERRORS));
            answers.flush();
        }
    }

    static void exit(int code, String message) {
        if (status == null) {
            status = code;
        }
        if (message != null) {
            System.err.println(message);
        }
        throw new Exited();
    }

    static void run(URL[] jars, String tool, String[] arguments) throws Exception {
        status = null;
        HOOKS.clear();
        try (FreshTools loader = new FreshTools(jars)) {
            Thread.currentThread().setContextClassLoader(loader);
            try {
                loader.loadClass(tool).getMethod("main", String[].class)
                    .invoke(null, (Object) arguments);
            } catch (InvocationTargetException failure) {
                if (!(failure.getCause() instanceof Exited)) {
                    failure.getCause().printStackTrace();
                    status = status == null ? 1 : status;
                }
            }
            HOOKS.forEach(Runnable::run);
        }
        status = status == null ? 0 : status;
    }

    static URL[] jars() throws Exception {
        List<URL> found = new ArrayList<>();
        for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
            found.add(new File(path).toURI().toURL());
        }
        return found.toArray(new URL[0]);
    }

    static String encoded(Redirected output) {
        return Base64.getEncoder().encodeToString(output.target.toByteArray());
    }
}
