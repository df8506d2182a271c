package org.apache.spark.kafka010;

import java.util.HashMap;
import java.util.Map;
import scala.Option;

/** Settings of a client, put together; nothing is added for authentication. */
public class KafkaConfigUpdater {
  private final Map<String, Object> settings = new HashMap<>();

  public KafkaConfigUpdater(String module, scala.collection.immutable.Map<String, Object> given) {
    given.foreachEntry(settings::put);
  }

  public KafkaConfigUpdater set(String key, Object value) {
    settings.put(key, value);
    return this;
  }

  public KafkaConfigUpdater setIfUnset(String key, Object value) {
    settings.putIfAbsent(key, value);
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded() {
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded(Option<?> token) {
    return this;
  }

  public Map<String, Object> build() {
    return settings;
  }
}
