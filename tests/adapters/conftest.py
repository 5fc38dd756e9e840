"""What the room's files share."""

import pytest


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Eight clients, the fourth contaminated, refined and saved once."""
    pytest.importorskip("safetensors")
    from folders import write_all

    import clairjax as cj

    root = tmp_path_factory.mktemp("adapters")
    found = cj.adapters.refine(cj.adapters.load(write_all(root / "in")))
    return root, found, cj.adapters.save(found, root / "out")
