"""What KafkaSink and KafkaSource share: librdkafka for rows, kafka-python for control, and the settings of both."""
