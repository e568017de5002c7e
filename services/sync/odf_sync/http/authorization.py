"""Authentication and authorization of requests: the only module that allows or refuses them (wire-facts §8.6).

On a single-tenant node, everyone may read all datasets that are not private. Its accounts may do everything. So may
programs on this machine, unless ODF_HTTP_INGEST is `off`: they then count as anonymous.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Final

from aiohttp import web

from odf_common.errors import InvalidInput, OdfError
from odf_common.identity.dataset_refs import Alias, DatasetId, parse_alias
from odf_common.ports.store import Catalog, CatalogEntry, new_creation
from odf_common.service.protection import why_another_user, why_not_local
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Action, Caller, Role, Verdict, Visibility, decide, decide_creation

LOOPBACK, ANYWHERE, OFF = "loopback", "anywhere", "off"  # values of ODF_HTTP_INGEST
BEARER: Final = "bearer"
NO_ACCOUNT: Final = "/{dataset}"  # path of a dataset on a single-tenant node
NO_ROUTE: Final = "Not Found"
INVALID_TOKEN: Final = "Authentication token invalid"  # noqa: S105 - a message
IS_PROXIED: Final = web.RequestKey("is_proxied", bool)
"""Whether a request was sent by one of the trusted proxies."""


class HttpRefusal(OdfError):
    """A request is not allowed; has the fields of the response."""

    status: int
    body: str | Mapping[str, str] | None = None
    """The body that clients of other implementations expect: text, JSON, or none."""
    name: str = ""
    """The name of the error, for clients of this node's own endpoints."""
    text: str = ""
    hint: str = ""
    headers: Mapping[str, str] = MappingProxyType({})

    def response(self, *, is_explained: bool) -> web.Response:
        """Return the response.

        With `is_explained`, its JSON has the reason even where other implementations send no body.
        """
        plain = {"message": self.text, "code": self.name, "advice": self.hint}
        reasons = {key: value for key, value in plain.items() if value} if is_explained else {}
        if isinstance(self.body, str) and not reasons:
            return web.Response(status=self.status, text=self.body, headers=self.headers)
        json = reasons if isinstance(self.body, str) else self.body or reasons
        return web.json_response(json, status=self.status) if json else web.Response(status=self.status)


class Authorizer:
    """Identifies the caller of a request, and allows or refuses the request by `access.rules`."""

    def __init__(self, *, catalog: Catalog, local_writers: str, directory: Directory | None = None) -> None:
        """Protect the datasets of a catalog; `local_writers` is the value of ODF_HTTP_INGEST.

        Without a directory, the node is single-tenant and has no accounts.
        """
        self.directory = directory or Directory(AccessStore(None), is_multi_tenant=False)
        self._catalog = catalog
        self._local_writers = local_writers

    @property
    def dataset_paths(self) -> tuple[str, ...]:
        """Return the path patterns of datasets: with an account, and on a single-tenant node without one, too."""
        with_account = "/{account}/{dataset}"
        return (with_account,) if self.directory.is_multi_tenant else (NO_ACCOUNT, with_account)

    def caller(self, request: web.Request) -> Caller:
        """Return the caller of a request; raises `HttpRefusal` for an `Authorization` header without a bearer token."""
        header = request.headers.get("Authorization")
        if header is None:
            return Caller(why_not_local=_why_not_local(request))
        scheme, _, token = header.partition(" ")
        if scheme.lower() != BEARER or not token.strip():
            raise HttpRefusal(status=400, body="Invalid Bearer token header")
        return self.directory.caller(token.strip())

    def require(self, caller: Caller, name: str, action: Action) -> CatalogEntry | None:
        """Return the dataset with a name, or None if it is to be created.

        Raises `HttpRefusal` if the action is not allowed.
        """
        if caller.has_invalid_token:
            raise HttpRefusal(status=401, body=INVALID_TOKEN)
        try:
            alias = parse_alias(name)
        except InvalidInput as error:
            raise self._unknown_dataset(name) from error
        entry = self._catalog.by_alias(str(alias))
        if entry is None and action is not Action.CREATE:
            raise self._unknown_dataset(name)
        verdict = self._may_create(caller, alias) if entry is None else self.verdict(caller, entry, action)
        if verdict is not Verdict.ALLOWED:
            raise self._refusal(verdict, caller, name)
        return entry

    def verdict(self, caller: Caller, entry: CatalogEntry, action: Action) -> Verdict:
        """Return the decision on an action on an existing dataset."""
        visibility = self.directory.visibility(entry.incarnation)
        return decide(action, self._role(caller, entry, visibility), visibility)

    def may_read(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Return whether a caller may read a dataset, and so may learn that it exists."""
        return self.verdict(caller, entry, Action.READ) is Verdict.ALLOWED

    def may_find(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Return whether a caller may read a dataset over HTTP.

        A multi-tenant node serves only datasets with an account.
        """
        if self.directory.is_multi_tenant and parse_alias(entry.alias).account is None:
            return False
        return self.may_read(caller, entry)

    def is_public(self, entry: CatalogEntry) -> bool:
        """Return whether everyone may read a dataset."""
        return self.directory.visibility(entry.incarnation) is Visibility.PUBLIC

    def keeps_private(self, caller: Caller) -> bool:
        """Return whether a caller who creates a private dataset can read it afterwards."""
        return self.directory.is_multi_tenant or caller.account is not None or caller.why_not_local is None

    def trusts_local(self, caller: Caller) -> bool:
        """Return whether an anonymous caller acts for the node: a program on its machine, if these are trusted."""
        is_local = self._local_writers == LOOPBACK and caller.why_not_local is None
        return not self.directory.is_multi_tenant and (is_local or self._local_writers == ANYWHERE)

    def creating(
        self, dataset: DatasetId, visibility: Visibility, *, is_chosen: bool
    ) -> AbstractContextManager[str]:
        """Return the context of `Directory.creating` for a new dataset.

        A single-tenant node ignores the visibility unless the user has chosen it, because other implementations send
        "private" by default. A dataset that may have been private on this node before stays private.
        """
        if self.directory.is_multi_tenant or is_chosen:
            return self.directory.creating(dataset, visibility)
        if self.directory.is_marked(dataset):
            return self.directory.creating(dataset, Visibility.PRIVATE)
        return nullcontext(new_creation())

    def _role(self, caller: Caller, entry: CatalogEntry, visibility: Visibility) -> Role | None:
        if caller.account is not None:
            return caller.limit_role(self.directory.role(caller.account, entry), entry.incarnation)
        if self.directory.is_multi_tenant:
            return None
        if self._local_writers == ANYWHERE and visibility is Visibility.PUBLIC:
            return Role.OWNER
        return None if self._local_writers == OFF or caller.why_not_local is not None else Role.OWNER

    def _may_create(self, caller: Caller, alias: Alias) -> Verdict:
        if self.directory.is_multi_tenant:
            return decide_creation(caller, alias.account)
        if caller.account is not None:
            return decide_creation(caller, caller.account.name)
        is_local = self._local_writers == LOOPBACK and caller.why_not_local is None
        return Verdict.ALLOWED if is_local or self._local_writers == ANYWHERE else Verdict.UNAUTHENTICATED

    def _refusal(self, verdict: Verdict, caller: Caller, name: str) -> HttpRefusal:
        if verdict is Verdict.HIDDEN:
            return self._unknown_dataset(name)
        if verdict is Verdict.UNAUTHENTICATED:
            return HttpRefusal(status=401, body={"message": "Unauthenticated"})
        if verdict is Verdict.NOT_OWN_ACCOUNT:
            return HttpRefusal(status=403, body={"message": "Unauthorized"})
        if self.directory.is_multi_tenant:
            return HttpRefusal(status=403)
        text, hint = self._why(caller)
        return HttpRefusal(status=403, name="PushForbidden", text=text, hint=hint)

    def _why(self, caller: Caller) -> tuple[str, str]:
        """Return the reason why a caller may not write to a single-tenant node, and the remedy."""
        if caller.account is not None:
            return "the token does not allow it", "create one with `odf token create --scope`"
        if self._local_writers == OFF:
            hint = "set ODF_HTTP_INGEST=loopback, send a token, or use `odf ingest`"
            return "this node takes no pushes over HTTP without a token", hint
        text = (
            f"only programs on the node's machine may push over HTTP without a token: {caller.why_not_local}"
        )
        hint = "push there; or send a token; or, on a trusted network, set ODF_HTTP_INGEST=anywhere"
        return text, hint

    def _unknown_dataset(self, name: str) -> HttpRefusal:
        if self.directory.is_multi_tenant:
            return HttpRefusal(status=404)
        # Other single-tenant nodes have no route with an account, and say so.
        body = NO_ROUTE if "/" in name else None
        return HttpRefusal(status=404, body=body, name="NotFound", text=f"dataset {name} does not exist")


def _why_not_local(request: web.Request) -> str | None:
    if request.get(IS_PROXIED):
        return "a proxy of ODF_HTTP_TRUSTED_PROXIES sent it"
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    why = why_not_local(
        peer=None if peer is None else str(peer[0]), host=request.host, headers=request.headers
    )
    if why is not None or transport is None:
        return why
    return why_another_user(peer, transport.get_extra_info("sockname"))
