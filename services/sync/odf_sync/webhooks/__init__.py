"""Webhooks: notify URLs, chosen by the node's operator, when a dataset's head moves (docs/formats/notifications.md).

`webhook_store` stores them, `deliveries` signs their events, `sender` delivers.
"""
