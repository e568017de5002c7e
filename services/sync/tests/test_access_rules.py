"""The complete table of permissions, written independently of the code."""

from itertools import product

import pytest
from odf_testing.builders import a_dataset

from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import incarnation
from odf_sync.access.rules import (
    Account,
    Action,
    Caller,
    Role,
    Scope,
    Verdict,
    Visibility,
    decide,
    decide_creation,
)

ONE, OTHER = incarnation(a_dataset("one"), ""), incarnation(a_dataset("other"), "")
ALICE = Account(id=a_dataset("alice"), name=Name("alice"))
READS, WRITES, MANAGES = {Action.READ}, {Action.READ, Action.WRITE, Action.CREATE}, set(Action)
MAY = {Role.READER: READS, Role.EDITOR: WRITES, Role.MAINTAINER: MANAGES, Role.OWNER: MANAGES}


@pytest.mark.parametrize(("action", "visibility"), tuple(product(Action, Visibility)))
def test_a_role_allows_what_lesser_ones_do_and_more(action: Action, visibility: Visibility) -> None:
    for role, allowed in MAY.items():
        is_allowed = action in allowed or (visibility is Visibility.PUBLIC and action is Action.READ)
        assert decide(action, role, visibility) is (Verdict.ALLOWED if is_allowed else Verdict.FORBIDDEN)


@pytest.mark.parametrize("action", Action)
def test_without_a_role_a_private_dataset_is_hidden_and_a_public_one_read(action: Action) -> None:
    assert decide(action, None, Visibility.PRIVATE) is Verdict.HIDDEN
    public = Verdict.ALLOWED if action is Action.READ else Verdict.FORBIDDEN
    assert decide(action, None, Visibility.PUBLIC) is public


@pytest.mark.parametrize(
    ("scope", "most"), [(Scope.READ, Role.READER), (Scope.WRITE, Role.EDITOR), (Scope.MANAGE, Role.OWNER)]
)
def test_a_token_restricts_a_role_and_grants_none(scope: Scope, most: Role) -> None:
    for role in Role:
        assert Caller(account=ALICE, scope=scope).limit_role(role, ONE) is (min(role, most))
        assert Caller(account=ALICE, scope=scope, only=ONE).limit_role(role, ONE) is min(role, most)
        assert Caller(account=ALICE, scope=scope, only=ONE).limit_role(role, OTHER) is None
        assert Caller(account=ALICE, scope=scope, only=ONE).limit_role(role, None) is None
    assert Caller(account=ALICE, scope=scope).limit_role(None, ONE) is None


@pytest.mark.parametrize(
    ("caller", "owner", "verdict"),
    [
        (Caller(), Name("alice"), Verdict.UNAUTHENTICATED),
        (Caller(), None, Verdict.UNAUTHENTICATED),
        (Caller(account=ALICE), Name("Alice"), Verdict.ALLOWED),
        (Caller(account=ALICE), Name("bob"), Verdict.NOT_OWN_ACCOUNT),
        (Caller(account=ALICE), None, Verdict.NOT_OWN_ACCOUNT),
        (Caller(account=ALICE, scope=Scope.WRITE), Name("alice"), Verdict.ALLOWED),
        (Caller(account=ALICE, scope=Scope.READ), Name("alice"), Verdict.NOT_OWN_ACCOUNT),
        (Caller(account=ALICE, only=ONE), Name("alice"), Verdict.NOT_OWN_ACCOUNT),
    ],
)
def test_a_dataset_is_created_in_the_callers_account_with_a_token_that_may_write(
    caller: Caller, owner: Name | None, verdict: Verdict
) -> None:
    assert decide_creation(caller, owner) is verdict


def test_a_caller_without_an_account_has_no_name() -> None:
    assert (Caller().name, Caller(account=ALICE).name) == ("", "alice")
