"""Webhooks: notify URLs, chosen by the node's operator, when a dataset's head moves (docs/formats/notifications.md).

`store` stores them, `sender` delivers, `signatures` signs.
"""
