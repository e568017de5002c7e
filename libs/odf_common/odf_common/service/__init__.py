"""The parts of every service process: settings, wiring, the consumer loop, request and reply, logs and metrics."""
