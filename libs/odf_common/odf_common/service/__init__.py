"""The parts that every service process shares: settings, wiring, consumer loop, request and reply, logs and metrics."""
