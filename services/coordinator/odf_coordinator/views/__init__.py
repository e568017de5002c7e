"""Read-only views over HTTP (Faust): heads, watermarks, lag and throughput, computed from notifications."""
