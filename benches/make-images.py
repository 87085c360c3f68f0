#!/usr/bin/env python3
"""Makes a folder of images that take a while to decode: 1,600 PNG files of 400 × 320 to train on and 16 to validate.

    benches/make-images.py FOLDER

Needs numpy. The same files each time.
"""
import os
import struct
import sys
import zlib

import numpy


def png(pixels):
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 6)) + chunk(b"IEND", b"")


def main():
    random = numpy.random.default_rng(1)
    y, x = numpy.mgrid[0:320, 0:400]
    for part, count in (("train", 1600), ("valid", 16)):
        for number in range(count):
            kind = number % 4
            folder = os.path.join(sys.argv[1], part, f"class-{kind}")
            os.makedirs(folder, exist_ok=True)
            waves = numpy.stack([numpy.sin(x / (9 + 4 * kind) + c + number) + numpy.cos(y / (13 + 3 * kind)) for c in range(3)], -1)
            pixels = numpy.clip(128 + 45 * waves + random.normal(0, 6, waves.shape), 0, 255).astype(numpy.uint8)
            with open(os.path.join(folder, f"{number:05}.png"), "wb") as file:
                file.write(png(pixels))


main()
