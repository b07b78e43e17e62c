// Runs Kafka's command line tools one after another in one JVM, because each start of a JVM costs a second. A line of standard input is
// a class and its arguments, separated by the character 31. Each tool's output is followed by a line with the character 30 and its exit
// code.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.internals.Exit;

public final class Tools {
    private static final class Ended extends RuntimeException {
        Ended(int code) {
            super("exit " + code);
        }
    }

    private static final ByteArrayOutputStream output = new ByteArrayOutputStream();
    private static Integer code;
    private static int end;

    public static void main(String[] args) throws Exception {
        // Some tools catch what an exit throws here, print it, and exit again. The first exit counts.
        Exit.Procedure end = (number, message) -> {
            if (message != null) System.out.println(message);
            System.out.flush();
            if (code == null) {
                code = number;
                Tools.end = output.size();
            }
            throw new Ended(number);
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\u001f", -1);
            output.reset();
            code = null;
            PrintStream printed = new PrintStream(output, true, StandardCharsets.UTF_8);
            System.setOut(printed);
            System.setErr(printed);
            int failed = run(words[0], Arrays.copyOfRange(words, 1, words.length));
            printed.flush();
            answers.write(output.toByteArray(), 0, code == null ? output.size() : Tools.end);
            answers.println("\u001e" + (code == null ? failed : code));
            answers.flush();
        }
    }

    private static int run(String tool, String[] arguments) throws Exception {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException error) {
            if (code == null) error.getCause().printStackTrace(System.out);
            return 1;
        }
    }
}
