package io.odradek.avro;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.spark.sql.api.java.UDF3;

/**
 * Turns a record with a schema registry's header into plain Avro of one schema: (record, URL, schema).
 *
 * <p>The header is a byte 0 and the id of the schema with which the record was written. Null for what
 * does not begin so, and for what cannot be read by the schema that is wanted.
 */
public final class RegistryDecoder implements UDF3<byte[], String, String, byte[]> {
  private static final int HEADER = 5;
  private static final Map<String, Schema> WANTED = new ConcurrentHashMap<>();

  @Override
  public byte[] call(byte[] value, String url, String schema) throws IOException {
    if (value == null || value.length < HEADER || value[0] != 0) {
      return null;
    }
    int id = ByteBuffer.wrap(value, 1, 4).getInt();
    if (id < 0) {
      return null; // no registry has such an id
    }
    Schema wanted = WANTED.computeIfAbsent(schema, text -> new Schema.Parser().parse(text));
    Schema written = Registry.at(url).schema(id);
    try {
      BinaryDecoder decoder =
          DecoderFactory.get().binaryDecoder(value, HEADER, value.length - HEADER, null);
      Object datum = new GenericDatumReader<>(written, wanted).read(null, decoder);
      if (!decoder.isEnd()) {
        return null;
      }
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
      new GenericDatumWriter<>(wanted).write(datum, encoder);
      encoder.flush();
      return bytes.toByteArray();
    } catch (IOException | RuntimeException e) {
      return null; // whoever may write to the topic chooses the bytes, and so what they lead Avro to
    }
  }
}
