"""Webhooks: POST requests to URLs of the operator's choice about a dataset's head (docs/formats/notifications.md).

`webhook_store` stores the webhooks, `deliveries` prepares and signs their events, `sender` posts them.
"""
