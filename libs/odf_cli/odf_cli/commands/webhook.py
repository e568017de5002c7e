"""`odf webhook`: URLs that this node notifies when a dataset's head moves."""

from typing import Final

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_object, print_rows, remark
from odf_cli.suggestions import CommandGroup
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.webhooks_pb2 import (
    AddWebhookRequest,
    DeleteWebhookRequest,
    ListWebhooksRequest,
    WebhookItem,
)

WEBHOOK_EVENTS: Final = ("head", "gone")
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


@click.group("webhook", cls=CommandGroup)
def webhook_command() -> None:
    """Notify URLs, by a signed POST, whenever a dataset's head moves.

    \b
    Example:
      odf webhook add orders https://example.org/hook
      odf webhook list
      odf webhook delete 0c5d8f1f6f2f4c1b
    """


@webhook_command.command("add")
@dataset_argument
@click.argument("url")
@click.option(
    "--event",
    "events",
    type=click.Choice(WEBHOOK_EVENTS),
    multiple=True,
    help="Event to post: head, the head moved; gone, the dataset was deleted. May be repeated. Default: all.",
)
@click.option(
    "--sign",
    type=click.Choice(ALGORITHMS),
    default="ed25519",
    show_default=True,
    help="Sign with the node's key, or with a new secret, which is printed once.",
)
@output_option
def add_webhook(*, dataset: str, url: str, events: tuple[str, ...], sign: str, output: str) -> None:
    """Post the events of DATASET to URL, starting with its current head.

    \b
    Example:
      odf webhook add orders https://example.org/hook
      odf webhook add orders https://example.org/hook --event head --sign hmac-sha256
    """
    request = AddWebhookRequest(dataset=dataset, url=url, events=events, algorithm=sign)
    with clients.webhooks() as webhooks:
        reply = webhooks.AddWebhook(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    item = reply.item
    facts = {"id": item.id, "dataset": item.dataset, "url": item.url, "events": list(item.events)}
    facts |= {"sign": item.algorithm, "key": item.key}
    print_object({**facts, "secret": reply.secret} if reply.secret else facts, output)
    if reply.secret:
        remark("give the secret to the receiver now: it cannot be shown again")


@webhook_command.command("list")
@output_option
def list_webhooks(*, output: str) -> None:
    """List the webhooks, each with the delivery of its newest event.

    \b
    Example:
      odf webhook list
    """
    with clients.webhooks() as webhooks:
        reply = webhooks.ListWebhooks(ListWebhooksRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_rows([_row(item) for item in reply.webhooks], output, columns=COLUMNS)


@webhook_command.command("delete")
@click.argument("webhook", metavar="ID")
def delete_webhook(*, webhook: str) -> None:
    """Delete the webhook with this ID, as printed by `odf webhook list`.

    \b
    Example:
      odf webhook delete 0c5d8f1f6f2f4c1b
    """
    with clients.webhooks() as webhooks:
        webhooks.DeleteWebhook(DeleteWebhookRequest(id=webhook), timeout=clients.COMMAND_TIMEOUT_SECONDS)


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
