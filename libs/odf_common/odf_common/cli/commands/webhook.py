"""`odf webhook`: URLs to which this node posts where a dataset's head is."""

from typing import Final

import click

from odf_common.cli import clients
from odf_common.cli.output import output_option, print_object, print_rows, remark
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.webhooks_pb2 import (
    AddWebhookRequest,
    DeleteWebhookRequest,
    ListWebhooksRequest,
    WebhookItem,
)

EVENTS: Final = ("head", "gone")
ALGORITHMS: Final = ("ed25519", "hmac-sha256")
COLUMNS: Final = (
    "id",
    "dataset",
    "url",
    "state",
    "delivered",
    "failures",
    "next",
    "error",
    "events",
    "sign",
    "key",
)


@click.group("webhook")
def command() -> None:
    """Post where a dataset's head is to URLs, signed, whenever it moves.

    \b
    Example:
      odf webhook add orders https://example.org/hook
      odf webhook list
      odf webhook delete 0c5d8f1f6f2f4c1b
    """  # noqa: D301 - click's marker for text that must not be wrapped


@command.command("add")
@click.argument("dataset")
@click.argument("url")
@click.option(
    "--event",
    "events",
    type=click.Choice(EVENTS),
    multiple=True,
    help="What to post: head, the head is at another block; gone, the dataset was deleted. Repeatable; default: all.",
)
@click.option(
    "--sign",
    type=click.Choice(ALGORITHMS),
    default="ed25519",
    show_default=True,
    help="With the node's key, or with a new secret, which is printed once.",
)
@output_option
def add_webhook(*, dataset: str, url: str, events: tuple[str, ...], sign: str, output: str) -> None:
    """Post the events of DATASET to URL, beginning with where its head is now.

    \b
    Example:
      odf webhook add orders https://example.org/hook
      odf webhook add orders https://example.org/hook --event head --sign hmac-sha256
    """  # noqa: D301
    request = AddWebhookRequest(dataset=dataset, url=url, events=events, algorithm=sign)
    with clients.webhooks() as webhooks:
        reply = webhooks.AddWebhook(request, timeout=clients.CALL_TIMEOUT_SECONDS)
    item = reply.item
    facts = {"id": item.id, "dataset": item.dataset, "url": item.url, "events": list(item.events)}
    facts |= {"sign": item.algorithm, "key": item.key}
    print_object({**facts, "secret": reply.secret} if reply.secret else facts, output)
    if reply.secret:
        remark("give the secret to the receiver now: it cannot be shown again")


@command.command("list")
@output_option
def list_webhooks(*, output: str) -> None:
    """List the webhooks, and what became of the newest event of each.

    \b
    Example:
      odf webhook list
    """  # noqa: D301
    with clients.webhooks() as webhooks:
        reply = webhooks.ListWebhooks(ListWebhooksRequest(), timeout=clients.CALL_TIMEOUT_SECONDS)
    print_rows([_row(item) for item in reply.webhooks], output, columns=COLUMNS)


@command.command("delete")
@click.argument("webhook", metavar="ID")
def delete_webhook(*, webhook: str) -> None:
    """Delete the webhook with ID, as `odf webhook list` prints it.

    \b
    Example:
      odf webhook delete 0c5d8f1f6f2f4c1b
    """  # noqa: D301
    with clients.webhooks() as webhooks:
        webhooks.DeleteWebhook(DeleteWebhookRequest(id=webhook), timeout=clients.CALL_TIMEOUT_SECONDS)


def _row(item: WebhookItem) -> dict[str, object]:
    return {
        "id": item.id,
        "dataset": item.dataset,
        "url": item.url,
        "state": item.state,
        "delivered": Timestamp.from_ms(item.delivered) if item.HasField("delivered") else None,
        "failures": item.failures,
        "next": Timestamp.from_ms(item.next_attempt) if item.HasField("next_attempt") else None,
        "error": item.error or None,
        "events": ", ".join(item.events),
        "sign": item.algorithm,
        "key": item.key,
    }
