"""Ed25519 signatures in the strict sense (RFC 8032)."""

from __future__ import annotations

import hashlib

from privlearn_verify.verdicts import demand

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE = -121665 * pow(121666, -1, PRIME) % PRIME
NEUTRAL = (0, 1)
Point = tuple[int, int]


def add_points(p: Point, q: Point) -> Point:
    """Return the sum of two points of Ed25519."""
    product = CURVE * p[0] * q[0] * p[1] * q[1]
    x = (p[0] * q[1] + q[0] * p[1]) * pow(1 + product, -1, PRIME)
    y = (p[1] * q[1] + p[0] * q[0]) * pow(1 - product, -1, PRIME)
    return x % PRIME, y % PRIME


def multiply_point(number: int, p: Point) -> Point:
    """Return a multiple of a point."""
    total = NEUTRAL
    for bit in bin(number)[2:]:
        total = add_points(total, total)
        if bit == "1":
            total = add_points(total, p)
    return total


def decode_point(data: bytes) -> Point:
    """Return the point that 32 bytes encode."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y % 2**255
    demand(y < PRIME, "the encoding of a point is not canonical")
    square = (y * y - 1) * pow(CURVE * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if x * x % PRIME != square:
        x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    demand(x * x % PRIME == square, "a point is not on the curve")
    demand(x != 0 or sign == 0, "the encoding of a point is not canonical")
    return (x if x % 2 == sign else PRIME - x), y


def verify_ed25519(key: bytes, message: bytes, signature: bytes) -> None:
    """Raise unless the signature of a message is valid in the strict sense."""
    public, commitment = decode_point(key), decode_point(signature[:32])
    demand(multiply_point(8, public) != NEUTRAL, "the public key is of small order")
    scalar = int.from_bytes(signature[32:], "little")
    demand(scalar < ORDER, "the signature is not canonical")
    hashed = hashlib.sha512(signature[:32] + key + message).digest()
    challenge = int.from_bytes(hashed, "little") % ORDER
    base_y = 4 * pow(5, -1, PRIME) % PRIME
    left = multiply_point(scalar, decode_point(base_y.to_bytes(32, "little")))
    right = add_points(commitment, multiply_point(challenge, public))
    demand(left == right, "the signature is not that of this certificate")
