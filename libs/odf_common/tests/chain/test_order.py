from odf_common.chain.dependency_order import in_order


def test_each_comes_after_what_it_names() -> None:
    assert list(in_order({"c": ["b"], "a": [], "b": ["a"]})) == ["a", "b", "c"]


def test_a_cycle_comes_last_and_terminates() -> None:
    found = list(in_order({"x": ["y"], "y": ["x", "a"], "after": ["x"], "self": ["self"], "a": []}))
    assert found[0] == "a"
    assert sorted(found[1:]) == ["after", "self", "x", "y"]
