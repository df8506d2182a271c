package org.apache.spark.kafka010;

import java.util.Map;
import org.apache.spark.SparkConf;
import scala.Option;

/** Delegation tokens: there are none. The name is that of a Scala object's class. */
public final class KafkaTokenUtil$ {
  public static final KafkaTokenUtil$ MODULE$ = new KafkaTokenUtil$();

  public Option<?> findMatchingTokenClusterConfig(SparkConf conf, String servers) {
    return Option.empty();
  }

  public boolean needTokenUpdate(Map<String, Object> settings, Option<?> token) {
    return false;
  }
}
