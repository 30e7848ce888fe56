class Scan:
    def __init__(
        self,
        start: int,
        per_row: int,
        rows: int,
        interval: int,
        components: tuple[tuple[int, int, int, int, int], ...],
        dc_tables: dict[int, bytes],
        ac_tables: dict[int, bytes],
        look_bits: int,
    ) -> None: ...
    def index(self, data: bytes | bytearray | memoryview, stride: int) -> bytes: ...
    def cut(
        self,
        data: bytes | bytearray | memoryview,
        region: tuple[int, int, int, int],
        kept: tuple[tuple[int, int, int, int], ...],
        dc_targets: dict[int, bytes],
        head: bytes,
        points: bytes | None = None,
        stride: int = 0,
    ) -> bytes: ...

def fingerprint(data: bytes | bytearray | memoryview) -> int: ...
def condensed(data: bytes | bytearray | memoryview, key: bytes) -> bytes: ...
