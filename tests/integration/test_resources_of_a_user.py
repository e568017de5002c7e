"""Resources as users apply them, by files, commands and HTTP: changed, refused, renamed, kept secret and deleted."""

import json
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import UUID

import pytest
from odf_testing.absence import assert_absent
from odf_testing.embedded import PATIENCE, EmbeddedNode

SETS = "/config/v1alpha1/variableset"
APPLY = "/resource/v1alpha1/apply"
SECRET = "swordfish of a user"
ERROR = "https://opendatafabric.org/schemas/resource/v1alpha1/ReconciliationError"
REFUSED = """\
$schema: https://opendatafabric.org/schemas/config/v1alpha1/Variables
headers: {name: unknown}
spec: {}
---
$schema: VariableSet
headers: {name: with-status}
spec: {variables: {}}
status: {phase: Ready}
---
$schema: VariableSet
headers: {name: a_b}
spec: {variables: {}}
---
$schema: Source
headers: {name: misspelt}
spec:
  read:
    kind: Csv
    heeder: true
---
$schema: Flow
headers: {name: misspelt}
spec:
  target: Dataset:%
  triggers:
    - kind: Cron
  tasks: []
---
$schema: VariableSet
headers: {name: good}
spec: {variables: {}}
"""


def a_set(name: str, value: str = "1", headers: str = "") -> str:
    return f"{{$schema: VariableSet, headers: {{name: {name}{headers}}}, spec: {{variables: {{a: '{value}', b: x}}}}}}"


class User:
    """A user of a node, with files."""

    def __init__(self, node: EmbeddedNode, folder: Path) -> None:
        self.node, self.folder = node, folder

    def apply(self, text: str) -> list[dict[str, Any]]:
        applied: list[dict[str, Any]] = self.node.run(f"apply -f {self.file(text)} --wait -o json")
        return applied

    def file(self, text: str) -> Path:
        file = self.folder / "resources.yaml"
        file.write_text(text)
        return file

    def ask(self, method: str, path: str, text: str = "", **headers: str) -> tuple[int, dict[str, str], Any]:
        sent = {"Content-Type": "application/yaml", **headers}
        request = Request(f"{self.node.node.http}{path}", text.encode() or None, sent, method=method)
        try:
            with urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, dict(answer.headers), json.loads(answer.read() or b"null")
        except HTTPError as error:
            with error:
                return error.code, dict(error.headers), json.loads(error.read() or b"null")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.node.run(f"get {kind} {name} -o json")
        return found


@pytest.fixture
def user(node: EmbeddedNode, tmp_path: Path) -> User:
    return User(node, tmp_path)


def test_a_set_is_created_unchanged_and_updated(user: User) -> None:
    (created,) = user.apply(a_set("User.env"))
    assert (created["outcome"], created["generation"]) == ("created", 1)
    assert UUID(created["id"]).version == 4
    first, (status, headers, _) = user.get("VariableSet", "user.env"), user.ask("GET", f"{SETS}/user.env")
    assert (status, first["status"]["phase"], first["status"]["observedGeneration"]) == (200, "Ready", 1)

    (again,) = user.apply(a_set("User.env"))
    assert (again["outcome"], again["id"]) == ("unchanged", created["id"])
    assert user.get("VariableSet", "user.env") == first
    assert user.ask("GET", f"{SETS}/user.env")[1]["ETag"] == headers["ETag"]

    (changed,) = user.apply(a_set("User.env", "2"))
    assert (changed["outcome"], changed["generation"]) == ("updated", 2)
    history = user.node.run("history VariableSet:user.env -o json")
    attempt = ["ReconcileStarted", "ReconcileSucceeded"]
    assert [event["event"] for event in history] == ["Created", *attempt, "SpecChanged", *attempt]
    assert [event["by"] for event in history if event["event"] in {"Created", "SpecChanged"}] == ["odf"] * 2
    _, _, events = user.ask("GET", f"{SETS}/user.env/history")
    phases = [
        event["payload"]["status"]["phase"] for event in events["items"] if "status" in event["payload"]
    ]
    assert phases == ["Reconciling", "Ready"] * 2


def test_every_error_of_a_file_is_told_with_its_place_and_nothing_is_stored(user: User) -> None:
    before = user.node.run("get --all -o json")
    file = user.file(REFUSED)
    said = user.node.fails(f"apply -f {file}").splitlines()
    assert [line.removeprefix(f"{file}:").partition(":")[0] for line in said[:-1]] == [
        "1",
        "8",
        "11",
        "19",
        "26",
    ]
    assert [line.rpartition("[")[2].rstrip("]") for line in said[:-1]] == [
        "UnknownType",
        "SystemField",
        "InvalidName",
        "SchemaViolation",
        "SchemaViolation",
    ]
    assert "did you mean VariableSet?" in said[0]
    assert "Schedule" in said[4]
    assert said[-1] == "nothing was changed"
    status, headers, problem = user.ask("POST", APPLY, REFUSED)
    assert (status, headers["Content-Type"]) == (422, "application/problem+json; charset=utf-8")
    places = [(one["document"], one["line"], one["code"]) for one in problem["errors"]]
    assert [place[:2] for place in places] == [(1, 1), (2, 8), (3, 11), (4, 19), (5, 26)]
    assert user.node.run("get --all -o json") == before


def test_resources_are_renamed_and_swap_their_names(user: User) -> None:
    source = (
        "{$schema: Source, headers: {name: swap}, spec: {config: {a: 'VariableSet:swap.one#a'}, ingress: "
        "{kind: Url, url: 'http://127.0.0.1/${{ config.a }}'}, read: {kind: Csv}}}"
    )
    one, two, _ = user.apply(f"{a_set('swap.one')}\n---\n{a_set('swap.two', '2')}\n---\n{source}")
    (renamed,) = user.apply(a_set("swap.first", headers=f", id: {one['id']}"))
    assert (renamed["outcome"], renamed["id"], renamed["generation"]) == ("renamed", one["id"], 2)
    assert user.ask("GET", f"{SETS}/swap.one")[0] == 404
    assert user.get("Source", "swap")["spec"]["config"]["a"]["name"] == "swap.first"
    first, second = (f", id: {made['id']}" for made in (one, two))
    swapped = user.apply(
        f"{a_set('swap.two', headers=first)}\n---\n{a_set('swap.first', '2', headers=second)}"
    )
    assert [row["outcome"] for row in swapped] == ["renamed", "renamed"]
    assert user.get("VariableSet", "swap.first")["headers"]["id"] == two["id"]
    assert user.get("Source", "swap")["spec"]["config"]["a"]["name"] == "swap.two"

    status, _, problem = user.ask("POST", APPLY, a_set("swap.two", headers=second))
    assert (status, problem["code"]) == (409, "NameConflict")
    assert problem["title"] == "VariableSet swap.two exists already in the account odf"
    unknown = "0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10"
    status, _, problem = user.ask("POST", APPLY, a_set("swap.two", headers=f", id: {unknown}"))
    assert (status, problem["code"]) == (404, "ResourceNotFound")


def test_a_secret_is_never_stored_as_it_was_written(user: User) -> None:
    text = f"{{$schema: SecretSet, headers: {{name: user.keys}}, spec: {{secrets: {{pw: {SECRET}}}}}}}"
    (created,) = user.apply(text)
    stored = user.get("SecretSet", "user.keys")["spec"]["secrets"]["pw"]["value"]
    header, *parts = stored.split(".")
    assert len(parts) == 4
    decoded = json.loads(urlsafe_b64decode(header + "=="))
    assert (decoded["alg"], decoded["enc"]) == ("A256KW", "A256GCM")
    exported = user.node.attempt("get SecretSet user.keys -o yaml --view input").stdout.decode()
    assert [row["outcome"] for row in user.apply(text) + user.apply(exported)] == ["unchanged", "unchanged"]
    encrypted = user.node.run("secret encrypt", stdin=SECRET.encode()).strip()
    jwe = f"{{value: {encrypted}, contentEncoding: jwe}}"
    assert user.apply(text.replace(SECRET, jwe))[0]["outcome"] == "unchanged"
    copied = exported.replace("user.keys", "user.copy").replace(created["id"], "")
    copied = "\n".join(line for line in copied.splitlines() if line.strip() != "id:")
    status, _, problem = user.ask("POST", APPLY, copied)
    assert (status, problem["code"]) == (422, "InvalidJwe")
    patch = json.dumps({"spec": {"secrets": {"pw": f"{SECRET}, changed"}}})
    path, kind = "/config/v1alpha1/secretset/user.keys", {"Content-Type": "application/merge-patch+json"}
    assert user.ask("PATCH", path, patch, **kind)[2]["generation"] == 2
    assert user.ask("PATCH", path, patch, **kind)[2]["outcome"] == "unchanged"
    assert_absent(SECRET, user.node.home, messages=[stored.encode()])


def test_what_others_use_is_deleted_and_they_say_so(user: User) -> None:
    user.apply(
        "{$schema: SecretSet, headers: {name: used}, spec: {secrets: {pw: x}}}\n---\n"
        "{$schema: Source, headers: {name: using}, spec: {config: {pw: 'SecretSet:used#pw'}, ingress: "
        "{kind: Url, url: 'http://127.0.0.1/${{ config.pw }}'}, read: {kind: Csv}}}"
    )
    user.node.run("delete SecretSet:used --yes --wait")

    def is_failed() -> bool:
        status = user.get("Source", "using")["status"]
        return bool(status["conditions"].get(ERROR, {}).get("code") == "unresolved-reference")

    user.node.eventually(is_failed)
    assert "did you mean" not in user.node.fails("delete SecretSet:used --yes")


def test_requests_without_manifests_or_with_a_mistake_say_what_to_do(user: User) -> None:
    status, _, problem = user.ask("POST", APPLY, " ")
    assert (status, problem["code"], problem["title"]) == (400, "EmptyBatch", "there is no manifest")
    said = user.node.fails(f"apply -f {user.file('# nothing yet')}")
    assert f"error: {user.folder}/resources.yaml: there is no manifest" in said
    user.apply(a_set("nearby"))
    assert "hint: did you mean nearby?" in user.node.fails("get VariableSet nearbi")
    assert "hint: did you mean nearby?" in user.node.fails("history VariableSet:nearbi")
    assert "type: unknown type 'VariabelSet'\nhint: did you mean VariableSet?" in user.node.fails(
        "get VariabelSet"
    )
    key = {"Idempotency-Key": "of a user"}
    first = user.ask("POST", APPLY, a_set("nearby", "2"), **key)
    assert user.ask("POST", APPLY, a_set("nearby", "2"), **key)[::2] == first[::2]
    status, _, problem = user.ask("POST", APPLY, a_set("nearby", "3"), **key)
    assert (status, problem["code"]) == (422, "RequestKeyReused")
    assert user.ask("DELETE", f"{SETS}/nearby?cascade=all")[0] == 400
