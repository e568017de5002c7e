"""What every service process is built of: settings, wiring, the consumer loop, request and reply, logs and metrics."""
