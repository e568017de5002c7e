"""The server's end of the Smart Transfer Protocol: the routes `pull` and `push`, upgraded to WebSocket."""
