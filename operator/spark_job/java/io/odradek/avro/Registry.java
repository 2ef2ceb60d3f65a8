package io.odradek.avro;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.Schema;

/**
 * A schema registry as Confluent's: `GET /schemas/ids/ID`. A schema of an id never changes, so each is
 * asked for once per process. Without an answer it asks again, for about half a minute.
 */
public final class Registry {
  private static final Map<String, Registry> ALL = new ConcurrentHashMap<>();
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int ATTEMPTS = 6;

  private final Map<Integer, Schema> schemas = new ConcurrentHashMap<>();
  private final HttpClient client =
      HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(5)).build();
  private final String url;

  private Registry(String url) {
    this.url = url;
  }

  /** Returns the registry at a URL without a slash at its end. */
  public static Registry at(String url) {
    return ALL.computeIfAbsent(url, Registry::new);
  }

  /** Returns the Avro schema of an id. Throws RegistryException. */
  public Schema schema(int id) {
    // Tasks that need the same one wait for one request.
    return schemas.computeIfAbsent(id, this::fetch);
  }

  private Schema fetch(int id) {
    JsonNode answer = ask(id);
    String type = answer.path("schemaType").asText("AVRO");
    if (!type.equals("AVRO")) {
      throw new RegistryException(url, "schema " + id + " is of type " + type + ", not AVRO");
    }
    if (!answer.path("references").isEmpty()) {
      throw new RegistryException(url, "schema " + id + " has references, which are not supported");
    }
    try {
      return new Schema.Parser().parse(answer.path("schema").asText());
    } catch (AvroRuntimeException e) {
      throw new RegistryException(url, "schema " + id + " is no Avro schema: " + e.getMessage());
    }
  }

  private JsonNode ask(int id) {
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(url + "/schemas/ids/" + id))
            .timeout(Duration.ofSeconds(10))
            .build();
    String why = "";
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
      pause(attempt);
      try {
        HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() == 404) {
          throw new RegistryException(url, "there is no schema " + id);
        }
        if (answer.statusCode() == 200) {
          return JSON.readTree(answer.body());
        }
        why = "HTTP status " + answer.statusCode();
        if (answer.statusCode() < 500 && answer.statusCode() != 429) {
          break;
        }
      } catch (IOException e) {
        why = String.valueOf(e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage());
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        why = "interrupted";
        break;
      }
    }
    throw new RegistryException(url, "no answer for schema " + id + ": " + why);
  }

  private static void pause(int attempt) {
    if (attempt == 0) {
      return;
    }
    try {
      Thread.sleep(500L << attempt);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  /** What the registry lacks, or why it does not answer. */
  public static final class RegistryException extends RuntimeException {
    RegistryException(String url, String why) {
      super("schema registry " + url + ": " + why);
    }
  }
}
