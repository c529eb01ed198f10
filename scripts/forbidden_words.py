"""Fails on text that has no place here: machine paths, package hosts, addresses in lock files, vague names.

Reads every file that git tracks or would track. A line with `forbidden-words: allow` is let through, with its reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ALLOW = "forbidden-words: allow"
RULES: list[tuple[str, re.Pattern[str], str]] = [
    (
        "an absolute path of somebody's machine",
        re.compile(r"(?<![\w.:/-])/(?:work|root|Users|home/(?!user\b)\w+)/\w"),
        "",
    ),
    (
        "the address of a package host",
        re.compile(r"https?://(?:\w+\.)?(?:files|registry|index|deb|pypi|proxy|packages|simple)\w*\.\w+"),
        "",
    ),
    ("an address in a lock file", re.compile(r"https?://|--(?:extra-)?index-url|--find-links"), r"^requirements/"),
    ("unittest.mock", re.compile(r"^\s*(?:from|import) unittest(?:\.| import )mock"), r"^(?:tests|src)/"),
]
VAGUE = re.compile(r"(?:^|/)(?:utils?|helpers?|common|managers?|types|misc)(?:\.py|/)")


def tracked() -> list[str]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    out = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    return sorted(set(filter(None, out.split("\0"))))


def findings(name: str, text: str) -> list[str]:
    """Every breach in one file, as `place: what: line`."""
    out = [f"{name}: a vague file name; name the concept"] if VAGUE.search(name) else []
    for number, line in enumerate(text.splitlines(), 1):
        if ALLOW in line:
            continue
        for what, pattern, where in RULES:
            if re.search(where, name) and pattern.search(line):
                out.append(f"{name}:{number}: {what}: {line.strip()[:120]}")
    return out


def main() -> int:
    found: list[str] = []
    for name in tracked():
        path = Path(name)
        if not path.is_file() or name == "scripts/forbidden_words.py":
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a picture or a captured binary
        found += findings(name, text)
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
