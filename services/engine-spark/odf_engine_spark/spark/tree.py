"""Spark's plans as plain trees, read from the JSON of `TreeNode.toJSON`, which lists the nodes in pre-order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

_NO_MEANING: Final = frozenset({"exprId", "metadata", "name", "qualifier"})


@dataclass(frozen=True, slots=True)
class Tree:
    """A node of a plan or expression: its class, its children, and its other fields as in the JSON."""

    name: str  # full class name
    children: tuple["Tree", ...]
    fields: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Return the class name without its package."""
        return self.name.rsplit(".", 1)[-1].removesuffix("$")

    @property
    def id(self) -> int:
        """Return the expression id of an attribute or alias."""
        return int(self.fields["exprId"]["id"])

    @property
    def meaning(self) -> object:
        """Return a value that is equal for expressions that compute the same from the same columns."""
        if self.kind == "AttributeReference":
            return self.id
        fields = {name: value for name, value in self.fields.items() if name not in _NO_MEANING}
        return self.name, fields, [child.meaning for child in self.children]

    def with_children(self, more: tuple["Tree", ...]) -> "Tree":
        """Return the node with additional children."""
        return replace(self, children=(*self.children, *more))

    def part(self, field: str) -> tuple["Tree", ...]:
        """Return the trees in a field, which has one expression or a list of expressions."""
        return tuple(_trees(self.fields.get(field)))

    def inner(self) -> Iterator["Tree"]:
        """Yield the trees in all fields, such as the expressions of a node or the plan of a subquery."""
        for value in self.fields.values():
            yield from _trees(value)

    def walk(self) -> Iterator["Tree"]:
        """Yield this node and all nodes below it, including those in fields, in pre-order."""
        waiting = [self]
        while waiting:
            tree = waiting.pop()
            yield tree
            waiting.extend(reversed((*tree.inner(), *tree.children)))


def read_tree(nodes: Sequence[Mapping[str, Any]]) -> Tree:
    """Return the tree of nodes that are given in pre-order with their numbers of children."""
    tree, rest = _read(nodes, 0)
    assert rest == len(nodes), "a plan's JSON is one tree"
    return tree


def _read(nodes: Sequence[Mapping[str, Any]], position: int) -> tuple[Tree, int]:
    node = nodes[position]
    position += 1
    children = []
    for _ in range(node["num-children"]):
        child, position = _read(nodes, position)
        children.append(child)
    return Tree(node["class"], tuple(children), node), position


def _trees(value: object) -> Iterator[Tree]:
    if not isinstance(value, list) or not value:
        return
    if isinstance(value[0], dict) and "num-children" in value[0]:
        yield read_tree(value)
        return
    for item in value:
        yield from _trees(item)
