"""Webhooks: posts where a dataset's head is to URLs that the node's operator gave (docs/formats/notifications.md).

`store` remembers them, `sender` delivers, `signatures` signs.
"""
