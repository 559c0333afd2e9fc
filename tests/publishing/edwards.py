"""Points of the curve of Ed25519 (RFC 8032, section 5.1), written down again to check the library's
constants.
"""

from __future__ import annotations

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, PRIME) % PRIME

Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def add(one: Point, other: Point) -> Point:
    (a, b), (c, d) = one, other
    product = _D * a * b * c * d % PRIME
    x = (a * d + b * c) * pow(1 + product, -1, PRIME) % PRIME
    y = (b * d + a * c) * pow(1 - product, -1, PRIME) % PRIME
    return x, y


def multiply(times: int, point: Point) -> Point:
    total = NEUTRAL
    while times:
        if times & 1:
            total = add(total, point)
        point, times = add(point, point), times >> 1
    return total


def at_height(y: int) -> Point | None:
    """A point with this y, if there is one."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if (x * x - square) % PRIME:
        x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    return (x, y) if (x * x - square) % PRIME == 0 else None


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def of_small_order() -> set[Point]:
    """The eight points whose order divides 8: what is left of any point after multiplying by the
    large prime order.
    """
    found = {multiply(ORDER, point) for y in range(2, 40) if (point := at_height(y))}
    return {add(one, other) for one in found for other in found} | {NEUTRAL}
