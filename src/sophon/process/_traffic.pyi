from array import array

def wait(
    alarm: int,
    numbers: array[int],
    inodes: array[int],
    enough_bytes: int,
    files: int,
    each_s: float,
    most_s: float,
) -> None: ...
