"""The Smart Transfer Protocol: messages, the order they come in, archives of blocks, and the client's end.

The server's end is `odf_sync.http.smart_routes`.
"""
