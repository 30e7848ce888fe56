"""A plug-in that makes a node at work say so often, as `sophon serve --import` takes it: for tests on busy machines."""

from sophon.server import service

service.HEARTBEAT_S = 0.1
