import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools in one JVM, which takes a second to start. Each line of the input is the class
 * of a tool and its arguments, separated by blanks. After what the tool prints comes a line with
 * DONE, or with FAILED and the error.
 */
public class RepeatedTools {
    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((status, message) -> {
            throw new IllegalStateException("exit status " + status + ": " + message);
        });
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            String[] rest = java.util.Arrays.copyOfRange(words, 1, words.length);
            try {
                Class.forName(words[0]).getMethod("main", String[].class)
                    .invoke(null, (Object) rest);
                System.out.println("DONE");
            } catch (java.lang.reflect.InvocationTargetException failure) {
                System.out.println("FAILED " + String.valueOf(failure.getCause())
                    .replace('\n', ' '));
            }
            System.out.flush();
        }
    }
}
