import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import kafka.server.ControllerMutationQuotaManager;
import kafka.utils.QuotaUtils;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;

/**
 * Has Kafka compute throttle times. Each line of standard input is a kind (rate, bucket or strict), a limit, and
 * time:value pairs; standard output repeats it with the throttle time after each pair, which is x where a strict
 * bucket refused the value.
 */
public class QuotaVectors {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            boolean isRate = words[0].equals("rate");
            Metrics metrics = new Metrics();
            Sensor sensor = metrics.sensor("sensor");
            MetricConfig config = new MetricConfig().samples(11).timeWindow(1, TimeUnit.SECONDS)
                .quota(Quota.upperBound(Double.parseDouble(words[1])));
            sensor.add(metrics.metricName("metric", "group"), isRate ? new Rate() : new TokenBucket(), config);
            StringBuilder text = new StringBuilder(words[0] + " " + words[1]);
            for (int index = 2; index < words.length; index++) {
                String[] pair = words[index].split(":");
                text.append(" ").append(words[index]).append(":");
                text.append(throttle(words[0], sensor, Double.parseDouble(pair[1]), Long.parseLong(pair[0])));
            }
            System.out.println(text);
        }
    }

    private static String throttle(String kind, Sensor sensor, double value, long time) {
        try {
            if (kind.equals("strict")) {
                sensor.checkQuotas(time);
                sensor.record(value, time, false);
            } else {
                sensor.record(value, time, true);
            }
            return "0";
        } catch (QuotaViolationException violation) {
            if (kind.equals("rate")) {
                return Long.toString(QuotaUtils.throttleTime(violation, time));
            }
            long wait = ControllerMutationQuotaManager.throttleTimeMs(violation, time);
            return (kind.equals("strict") ? "x" : "") + wait;
        }
    }
}
