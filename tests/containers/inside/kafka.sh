# Starts a broker with the settings of its variables: KAFKA_LOG_DIRS becomes log.dirs.
set -euf  # without globs: Java itself expands the * of its class path
env | sed -n 's/^KAFKA_//p' | while IFS='=' read -r name value; do
    echo "$(echo "$name" | tr 'A-Z_' 'a-z.')=$value"
done > /tmp/server.properties
java="java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp /opt/kafka/libs/*"
$java kafka.tools.StorageTool format --ignore-formatted -t MkU3OEVBNTcwNTJENDM2Qg -c /tmp/server.properties
exec $java kafka.Kafka /tmp/server.properties
