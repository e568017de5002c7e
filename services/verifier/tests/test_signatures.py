"""Signatures of blocks: a missing one is not damage, a wrong one is reported by dataset, block and kind."""

import shutil
from pathlib import Path

import pytest
from odf_testing.chains import flip, overwrite

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.codec.signature import SIZE_LIMIT, encode_signature
from odf_common.dataset.signature_check import stored_signature
from odf_common.hashing.multihash import Multihash
from odf_common.identity.keys import SignerId, generate, sign_block
from odf_common.ports.store import ObjectKind
from odf_verifier.integrity import Link, check_chain, check_signatures
from odf_verifier.targets import Damage, Problem, Target, seed_of

VECTOR = Path(__file__).parents[3] / "tests" / "vectors" / "datasets" / "cities.population"
KEY = generate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "cities"
    shutil.copytree(VECTOR, copy)
    return copy


def sign(folder: Path) -> list[Path]:
    (folder / "signatures").mkdir()
    for block in (folder / "blocks").iterdir():
        signature = encode_signature(sign_block(KEY, Multihash.parse(block.name)))
        (folder / "signatures" / block.name).write_bytes(signature)
    return sorted((folder / "signatures").iterdir())


def looked_at(folder: Path) -> tuple[list[Link], list[Problem]]:
    store = FolderDataset(folder)
    target = Target(name="cities", dataset=seed_of(store), reader=store, is_local=False)
    links, problems = check_chain(target)
    return links, [*problems, *check_signatures(target, links)]


def test_without_signatures_nothing_is_wrong(folder: Path) -> None:
    assert looked_at(folder)[1] == []


def test_right_signatures_are_right_and_some_may_be_missing(folder: Path) -> None:
    files = sign(folder)
    assert looked_at(folder)[1] == []
    files[0].unlink()
    assert looked_at(folder)[1] == []


def test_every_flipped_signature_is_named_with_its_block(folder: Path) -> None:
    for file in sign(folder):
        for position in range(0, file.stat().st_size, 25):
            flip(file, position)
            links, (problem,) = looked_at(folder)
            assert problem.kind is Damage.SIGNATURE_INVALID
            assert str(problem.block) == str(problem.object) == file.name
            link = next(link for link in links if str(link.hash) == file.name)
            assert problem.sequence_number == link.block.sequence_number
            assert problem.text.startswith(f"signatures/{file.name}: ")
            flip(file, position)


def test_the_signature_of_another_block_is_named_with_who_claims_it(folder: Path) -> None:
    one, other, *_ = sign(folder)
    overwrite(one, other.read_bytes())
    _, (problem,) = looked_at(folder)
    assert str(problem.block) == one.name
    assert str(SignerId.of_key(KEY)) in problem.text


@pytest.mark.parametrize("content", [b"", b"\0" * (SIZE_LIMIT + 1), b"{}", "{\u2028}".encode(), b"\xff"])
def test_what_is_no_signature_is_named(folder: Path, content: bytes) -> None:
    one, *_ = sign(folder)
    overwrite(one, content)
    _, (problem,) = looked_at(folder)
    assert (problem.kind, str(problem.block)) == (Damage.SIGNATURE_INVALID, one.name)


def test_a_folder_in_place_of_a_signature_is_named(folder: Path) -> None:
    one, *_ = sign(folder)
    one.unlink()
    one.mkdir()
    _, (problem,) = looked_at(folder)
    assert (problem.kind, str(problem.block)) == (Damage.SIGNATURE_INVALID, one.name)
    assert problem.text == f"signatures/{one.name}: it is not a regular file"


def test_a_file_that_is_too_long_is_read_only_up_to_the_limit(folder: Path) -> None:
    one, other, *_ = sign(folder)
    overwrite(one, bytes(2 * SIZE_LIMIT))
    other.unlink()
    found = [stored_signature(FolderDataset(folder), Multihash.parse(file.name)) for file in (one, other)]
    assert found == [bytes(SIZE_LIMIT + 1), None]


def test_signatures_are_listed_by_their_blocks(folder: Path) -> None:
    files = sign(folder)
    store = FolderDataset(folder)
    assert {str(name) for name in store.names(ObjectKind.SIGNATURE)} == {one.name for one in files}
