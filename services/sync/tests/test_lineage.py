"""Any graph of datasets gives each the private ones that reach it on a way on which nobody has published them."""

from collections import Counter
from random import Random

import pytest
from odf_testing.builders import a_dataset

from odf_common.identity.did import DatasetId
from odf_sync.access.directory import Ancestor, Lineage

IDS = [a_dataset(f"dataset {number}") for number in range(12)]


def a_graph(random: Random) -> dict[DatasetId, Ancestor]:
    """Return datasets that read any others, in circles too."""
    return {
        dataset: Ancestor(
            inputs=tuple(random.sample(IDS, random.choice([0, 1, 1, 2, 3]))),
            is_private=random.random() < 0.2,
            is_known=random.random() < 0.95,
            published=frozenset(random.sample(IDS, random.choice([0, 0, 1, 3]))),
        )
        for dataset in IDS
    }


def reaches(graph: dict[DatasetId, Ancestor], origin: DatasetId, target: DatasetId) -> bool:
    """Return whether a private or unknown dataset reaches another, by following its readers."""

    def readers(read: DatasetId) -> list[DatasetId]:
        stops = IDS if graph[origin].is_known else ()  # damage cannot be published
        return [
            reader
            for reader in IDS
            if read in graph[reader].inputs and not (origin in graph[reader].published and reader in stops)
        ]

    seen = set[DatasetId]()
    waiting = [] if graph[origin].is_known else [origin]
    if graph[origin].is_private:
        waiting += readers(origin)
    while waiting:
        if (current := waiting.pop()) not in seen:
            seen.add(current)
            waiting += readers(current)
    return target in seen


@pytest.mark.parametrize("seed", range(60))
def test_a_dataset_has_the_sources_that_reach_it_and_each_is_looked_at_once(seed: int) -> None:
    random = Random(seed)
    graph, looks = a_graph(random), Counter[DatasetId]()

    def look(dataset: DatasetId) -> Ancestor:
        looks[dataset] += 1
        return graph[dataset]

    lineage = Lineage(look)
    for target in random.sample(IDS, len(IDS)):
        expected = {origin for origin in IDS if reaches(graph, origin, target)}
        assert lineage.sources(target) == expected
        assert all(graph[origin].is_private for origin in lineage.to_publish(target))
    assert set(looks.values()) == {1}


@pytest.mark.parametrize("seed", range(60))
def test_what_is_published_leaves_only_what_nobody_knows(seed: int) -> None:
    graph = a_graph(Random(seed))
    for target in IDS:
        published = Lineage(graph.__getitem__).to_publish(target)
        after = graph | {target: Ancestor(inputs=graph[target].inputs, published=published)}
        assert all(not graph[origin].is_known for origin in Lineage(after.__getitem__).sources(target))


def test_an_error_leaves_what_can_be_known() -> None:
    first, second, third = IDS[:3]
    graph = {first: Ancestor(is_private=True), second: Ancestor(inputs=(first, third))}
    lineage = Lineage(graph.__getitem__)
    for _ in range(2):
        with pytest.raises(KeyError):
            lineage.sources(second)
    assert lineage.sources(first) == frozenset()
    graph[third] = Ancestor()
    assert lineage.sources(second) == {first}
