"""A small writer of baseline JPEG files with any sampling, tables and restarts, which no common encoder offers.

It has no pictures to encode: blocks get random coefficients, so that neighbouring samples differ everywhere and a
block put in the wrong place, or a border treated differently, shows.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

Sampling = tuple[tuple[int, int], ...]

JFIF = bytes.fromhex("4a46494600010100000100010000")
JFIF_WITH_DENSITY = bytes.fromhex("4a46494600010101004800480000")
EOB = 0x00
ZRL = 0xF0


def adobe(transform: int) -> bytes:
    return b"Adobe" + struct.pack(">HHHB", 100, 0, 0, transform)


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


@dataclass
class Code:
    """A canonical Huffman code: symbol → length."""

    lengths: dict[int, int]
    codes: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.codes = {}
        code = 0
        for length in range(1, 17):
            for symbol in self.of_length(length):
                self.codes[symbol] = format(code, f"0{length}b")
                code += 1
            assert code < 1 << length or not self.of_length(length), "no code may be all ones"
            code <<= 1

    def of_length(self, length: int) -> list[int]:
        return [symbol for symbol, n in self.lengths.items() if n == length]

    @property
    def spec(self) -> bytes:
        by_length = [self.of_length(length) for length in range(1, 17)]
        return bytes(map(len, by_length)) + bytes(symbol for symbols in by_length for symbol in symbols)


def random_code(symbols: list[int], rng: random.Random, longest: int = 16) -> Code:
    """Return a code of random lengths that leaves the all-ones code free."""
    symbols = rng.sample(symbols, len(symbols))
    lengths = dict.fromkeys(symbols, longest)
    free = (1 << longest) - len(symbols) - 1
    for symbol in symbols:
        length = rng.randrange(2, longest + 1)
        cost = (1 << (longest - length)) - 1
        # Leave some room for the others, or the first few would take all the short codes.
        if cost <= free // 3:
            lengths[symbol] = length
            free -= cost
    return Code(lengths)


def category(value: int) -> int:
    return abs(value).bit_length()


def magnitude(value: int) -> str:
    size = category(value)
    if not size:
        return ""
    return format(value if value > 0 else value + (1 << size) - 1, f"0{size}b")


def stuffed(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    raw = int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""
    return raw.replace(b"\xff", b"\xff\x00")


@dataclass
class Picture:
    """What to write; `write` gives the file.

    `dc_categories` limits the DC code to those that are used, as optimising encoders do.
    """

    width: int
    height: int
    sampling: Sampling = ((2, 2), (1, 1), (1, 1))
    seed: int = 0
    restart: int = 0
    sof: int = 0xC0
    sixteen_bit: bool = False
    application: tuple[tuple[int, bytes], ...] = ((0xE0, JFIF),)
    identifiers: tuple[int, ...] = (1, 2, 3, 4)
    dc_range: int = 60
    all_dc_categories: bool = True
    end_of_block: bool = True
    busy: bool = False

    def write(self) -> bytes:
        rng = random.Random(f"{self.width} {self.height} {self.sampling} {self.seed}")
        count = len(self.sampling)
        blocks = ((1, 1),) if count == 1 else self.sampling
        wide, high = max(h for h, _ in blocks), max(v for _, v in blocks)
        mcus = -(-self.width // (8 * wide)) * -(-self.height // (8 * high))
        ac_symbols = [16 * run + size for run in range(16) for size in range(1, 11)] + [ZRL]
        ac_symbols += [EOB] if self.end_of_block else []
        most = category(2 * self.dc_range)
        dc_symbols = list(range(12 if self.all_dc_categories else most + 1))
        dc = [random_code(dc_symbols, rng, 12) for _ in range(min(count, 2))]
        ac = [random_code(ac_symbols, rng) for _ in range(min(count, 2))]

        scan, bits, predictor = [], [], [0] * count
        for mcu in range(mcus):
            if self.restart and mcu and mcu % self.restart == 0:
                scan.append(stuffed("".join(bits)) + bytes((0xFF, 0xD0 + (mcu // self.restart - 1) % 8)))
                bits, predictor = [], [0] * count
            for i, (h, v) in enumerate(blocks):
                table = min(i, 1)
                for _ in range(h * v):
                    value = rng.randint(-self.dc_range, self.dc_range)
                    difference, predictor[i] = value - predictor[i], value
                    bits.append(dc[table].codes[category(difference)] + magnitude(difference))
                    bits.append(self._ac(ac[table], rng))
        scan.append(stuffed("".join(bits)))

        parts = [b"\xff\xd8"]
        parts += [segment(marker, body) for marker, body in self.application]
        parts += [segment(0xDB, self._quantisation(number, rng)) for number in range(min(count, 2))]
        parts.append(self._frame(count))
        for number in range(min(count, 2)):
            parts.append(segment(0xC4, bytes((number,)) + dc[number].spec))
            parts.append(segment(0xC4, bytes((0x10 | number,)) + ac[number].spec))
        if self.restart:
            parts.append(segment(0xDD, struct.pack(">H", self.restart)))
        selectors = b"".join(bytes((self.identifiers[i], 0x11 * min(i, 1))) for i in range(count))
        parts.append(segment(0xDA, bytes((count,)) + selectors + bytes((0, 63, 0))))
        return b"".join(parts + scan) + b"\xff\xd9"

    def _ac(self, code: Code, rng: random.Random) -> str:
        bits, k = [], 1
        ends = not self.busy and self.end_of_block
        while k < 64:
            if ends and rng.random() < 0.15:
                bits.append(code.codes[EOB])
                break
            run = min(rng.choice((0, 0, 0, 0, 1, 1, 2, 5, 9, 20, 40)), 63 - k)
            while run > 15:
                bits.append(code.codes[ZRL])
                run, k = run - 16, k + 16
            size = rng.choice((1, 1, 1, 2, 2, 3, 4, 6, 10)) if self.busy else rng.choice((1, 1, 1, 2, 3))
            value = rng.randrange(1 << (size - 1), 1 << size) * rng.choice((-1, 1))
            bits.append(code.codes[16 * run + size] + magnitude(value))
            k += run + 1
        return "".join(bits)

    def _quantisation(self, number: int, rng: random.Random) -> bytes:
        values = [rng.randint(1, 12) for _ in range(64)]
        if self.sixteen_bit:
            values[rng.randrange(20, 64)] = 300
            return bytes((0x10 | number,)) + struct.pack(">64H", *values)
        return bytes((number, *values))

    def _frame(self, count: int) -> bytes:
        body = struct.pack(">BHHB", 8, self.height, self.width, count)
        for i, (h, v) in enumerate(self.sampling):
            body += bytes((self.identifiers[i], 16 * h + v, min(i, 1)))
        return segment(self.sof, body)


@dataclass
class Gray:
    """A picture of one component, of which every bit of the entropy-coded data is given."""

    dc: Code
    ac: Code

    def block(self, difference: int, *symbols: int) -> str:
        """Return the bits of a block: a DC difference, and AC symbols with magnitudes of all ones."""
        bits = self.dc.codes[category(difference)] + magnitude(difference)
        return bits + "".join(self.ac.codes[symbol] + "1" * (symbol & 15) for symbol in symbols)

    def write(self, width: int, height: int, *parts: str | bytes, restart: int = 0) -> bytes:
        """Return a file whose scan is the parts: bits, padded to bytes, and bytes as they are."""
        scan = b"".join(stuffed(part) if isinstance(part, str) else part for part in parts)
        segments = [
            segment(0xDB, bytes((0, *[4] * 64))),
            segment(0xC0, struct.pack(">BHHB", 8, height, width, 1) + bytes((1, 0x11, 0))),
            segment(0xC4, b"\x00" + self.dc.spec),
            segment(0xC4, b"\x10" + self.ac.spec),
            segment(0xDD, struct.pack(">H", restart)),
            segment(0xDA, bytes((1, 1, 0, 0, 63, 0))),
        ]
        return b"\xff\xd8" + b"".join(segments) + scan + b"\xff\xd9"
