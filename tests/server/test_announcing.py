"""How a node presents itself to a registry."""

import pytest

from sophon.errors import ConfigError
from sophon.server.announcing import Announcing


def test_a_name_that_registries_refuse_is_an_error_before_a_node_starts():
    Announcing("sophon://host:7070").check(["train", "photos 2024"])
    Announcing("sophon://host:7070", role="relay").check(["train~1"])
    with pytest.raises(ConfigError, match=r"'train~1'.*NAME=PATH"):
        Announcing("sophon://host:7070").check(["train", "train~1"])
