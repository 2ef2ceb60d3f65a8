import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.BinaryNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Has kafka-clients encode messages. Each line of standard input is a name, a version, a variant
 * and the message as JSON, separated by tabs; bytes are {"binary": "base64"}. Each line of standard output is
 * name, version, variant and the encoded bytes in hexadecimal.
 */
public class KafkaVectors {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] columns = line.split("\t", 4);
            short version = Short.parseShort(columns[1]);
            Message message = (Message) Class
                .forName("org.apache.kafka.common.message." + columns[0] + "DataJsonConverter")
                .getMethod("read", JsonNode.class, short.class)
                .invoke(null, withBinaryNodes(mapper.readTree(columns[3])), version);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(buffer), cache, version);
            StringBuilder text = new StringBuilder();
            for (byte item : buffer.array()) {
                text.append(String.format("%02x", item));
            }
            System.out.println(columns[0] + " " + version + " " + columns[2] + " " + text);
        }
    }

    private static JsonNode withBinaryNodes(JsonNode node) throws Exception {
        if (node.isArray()) {
            ArrayNode array = (ArrayNode) node;
            for (int index = 0; index < array.size(); index++) {
                array.set(index, withBinaryNodes(array.get(index)));
            }
        } else if (node.has("binary")) {
            return BinaryNode.valueOf(node.get("binary").binaryValue());
        } else if (node.isObject()) {
            List<String> names = new ArrayList<>();
            node.fieldNames().forEachRemaining(names::add);
            for (String name : names) {
                ((ObjectNode) node).set(name, withBinaryNodes(node.get(name)));
            }
        }
        return node;
    }
}
