"""Write down size and CRC-32 of each installed library, which the guard compares before it loads.

usage: record.py DIRECTORY
"""

import sys
import zlib
from pathlib import Path

if __name__ == "__main__":
    directory = Path(sys.argv[1])
    lines = []
    for path in sorted(directory.glob("*.so")):
        content = path.read_bytes()
        lines.append(f"{zlib.crc32(content):08x} {len(content)} {path.name}\n")
    (directory / "libraries.crc32").write_text("".join(lines))
