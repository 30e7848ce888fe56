"""The exception tree: as drawn, and as users catch it."""

import pickle

import pytest

import sophon
from sophon import errors
from sophon.errors import (
    Error,
    RetryableError,
    TransportError,
    UnavailableError,
    remote_traceback,
    with_remote_traceback,
)


def _below(root):
    return {
        kind for child in root.__subclasses__() if child.__module__ == errors.__name__ for kind in _below(child)
    } | {root}


def test_the_drawing_shows_every_error_below_its_parent():
    parents, drawn = {}, {}
    for line in errors.__doc__.split("::")[1].split("Every message")[0].splitlines():
        if not line.strip():
            continue
        name = next(word for word in line.replace("sophon.", "").split() if word.isidentifier())
        depth = len(line) - len(line.lstrip("│├└─ "))
        parents[depth] = name
        drawn[name] = parents[max((at for at in parents if at < depth), default=depth)]
    assert set(drawn) == {kind.__name__ for kind in _below(Error)}
    for name, parent in drawn.items():
        assert issubclass(getattr(errors, name), getattr(errors, parent))


def test_a_node_that_is_gone_is_caught_as_any_lost_connection_is():
    assert issubclass(UnavailableError, TransportError)
    assert issubclass(UnavailableError, ConnectionError)
    assert not issubclass(UnavailableError, RetryableError)
    error = UnavailableError("grpc://node: no answer for 6 s")
    assert str(error) == "grpc://node: no answer for 6 s"


@pytest.mark.parametrize("kind", sorted(_below(Error), key=lambda kind: kind.__name__))
def test_errors_cross_process_borders_whole(kind):
    error = with_remote_traceback(kind("what was found"), "there")
    back = pickle.loads(pickle.dumps(error))  # as torch's worker processes send them
    assert type(back) is kind
    assert str(back) == "what was found"
    if kind is not errors.OpError:
        assert remote_traceback(back) == "there"


def test_users_see_every_error_that_they_can_get():
    shown = {name for name in sophon.__all__ if isinstance(getattr(sophon, name), type)}
    assert {kind.__name__ for kind in _below(Error)} - shown == {"RetryableError", "UpstreamError"}
