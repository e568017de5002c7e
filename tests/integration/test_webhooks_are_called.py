"""A remote server is called by a webhook for each commit, and when the dataset is deleted."""

import base64
import hmac
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from odf_testing.embedded import PATIENCE
from odf_testing.story import Story, root

NAME = "posted.to.others"
Posts = queue.Queue[tuple[dict[str, str], dict[str, Any]]]


@contextmanager
def receiving(posts: Posts) -> Iterator[str]:
    """Accept posts; yield the URL for them."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204)
            self.end_headers()
            posts.put(({name.lower(): value for name, value in self.headers.items()}, json.loads(body)))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_webhook_is_called_until_its_dataset_is_deleted(story: Story) -> None:
    story.add(root(NAME, ["n BIGINT"]))
    node, posts = story.node, Posts()
    with receiving(posts) as url:
        added = node.run(f"webhook add {NAME} {url} --sign hmac-sha256 -o json")
        headers, event = posts.get(timeout=PATIENCE)
        assert (event["event"], event["lastOffset"]) == ("head", None)
        require_signed(headers, url, added["secret"])
        story.ingest(NAME, [{"n": 1}, {"n": 2}])
        while (event := posts.get(timeout=PATIENCE)[1])["lastOffset"] is None:
            """The schema may be committed in an event of its own."""
        assert (event["lastOffset"], event["head"]) == (1, story.summary(NAME)["head"])
        (row,) = (row for row in node.run("webhook list -o json") if row["id"] == added["id"])
        assert (row["dataset"], row["url"], row["error"]) == (NAME, url, None)
        assert added["secret"] not in json.dumps(row)
        node.run(f"delete {NAME} --yes")
        assert posts.get(timeout=PATIENCE)[1]["event"] == "gone"
        assert added["secret"] not in node.logs()


def require_signed(headers: dict[str, str], url: str, secret: str) -> None:
    parameters = headers["signature-input"].removeprefix("odf=")
    message = (
        f'"@method": POST\n"@target-uri": {url}\n"content-type": {headers["content-type"]}\n'
        f'"content-digest": {headers["content-digest"]}\n"@signature-params": {parameters}'
    )
    digest = hmac.new(secret.encode(), message.encode(), "sha256").digest()
    assert headers["signature"] == f"odf=:{base64.b64encode(digest).decode()}:"
