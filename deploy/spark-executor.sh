#!/bin/sh
# Entry point of Spark's executors in Kubernetes, which Spark starts with the argument "executor" and with its own variables
# (SPARK_JAVA_OPT_0 and so on are the JVM's options). It does for this image what the entry point of Spark's images does.
set -eu
if [ "${1:-}" != executor ]; then
  exec "$@"
fi
home=$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
java=$(python -c 'import os; from pathlib import Path; from headgate.pipelines.java import java_home; print(Path(java_home(os.environ) or "/usr", "bin", "java"))')
set --
count=0
while eval "option=\${SPARK_JAVA_OPT_${count}-}" && [ -n "$option" ]; do
  set -- "$@" "$option"
  count=$((count + 1))
done
export SPARK_HOME="$home" PYTHONPATH="$home/python/lib/pyspark.zip${PYTHONPATH:+:$PYTHONPATH}"
exec "$java" "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "${SPARK_CLASSPATH:-}:$home/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
