"""Read-side views over HTTP (Faust): heads, watermarks, lag and throughput, folded from notifications."""
