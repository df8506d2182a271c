package org.apache.spark.kafka010;

import scala.collection.immutable.Seq;

/** What is logged of settings: all of it, since there are no secrets. The name is that of a Scala object's class. */
public final class KafkaRedactionUtil$ {
  public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

  public Seq<?> redactParams(Seq<?> settings) {
    return settings;
  }
}
