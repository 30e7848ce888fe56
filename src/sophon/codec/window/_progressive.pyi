MAX_BYTES: int

def cut(
    data: bytes | bytearray | memoryview,
    mcus: tuple[int, int],
    components: tuple[tuple[int, int, int, int, int], ...],
    scans: tuple[tuple[int, int, int, tuple[int, ...], tuple[bytes, ...], int, int, int, int], ...],
    region: tuple[int, int, int, int],
    kept: tuple[tuple[int, int, int, int], ...],
) -> tuple[dict[int, bytes], dict[int, bytes], bytes]: ...
def scan_end(data: bytes | bytearray | memoryview, start: int) -> int: ...
