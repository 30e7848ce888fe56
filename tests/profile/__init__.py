# ruff: noqa: A005 - the room that is tested has this name
