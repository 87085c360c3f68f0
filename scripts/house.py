#!/usr/bin/env python3
"""Counts properties of the code that affect how readable it is, for each package and in total: code lines,
length of functions and files, possible panics, type names that are defined more than once, and files
of a package that import each other in a circle. Tests, comments and blank lines do not count.

    scripts/house.py             the table
    scripts/house.py --names     type names defined more than once, with their files
    scripts/house.py --circles   the files of each circle
    scripts/house.py --long      files over 500 lines and functions over 60
"""

import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = {
    "units": "crates/units/src", "core": "crates/core/src", "data": "crates/data/src", "hardware": "crates/hardware/src", "trial": "crates/trial/src",
    "kiln": "src",
}
LONGEST_FILE = 500
LONGEST_FUNCTION = 60
PANICS = re.compile(r"\.unwrap\(\)|\.expect\(|\b(?:panic|unreachable|todo|unimplemented)!|(?<!debug_)\bassert(?:_eq|_ne)?!")
# An indented `type` belongs to a trait, which names it.
DEFINED = re.compile(
    r"^(?:\s*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|trait|union)|(?:pub(?:\([^)]*\))?\s+)?type)\s+([A-Z]\w*)", re.M
)

def blanked(text):
    """The text with comments, strings and characters replaced by blanks; lines stay, so braces and words can be counted."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\\n])\'', re.S
    )
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)

def block_end(text, start):
    """The position after the brace that closes the first brace after `start`."""
    depth = 0
    for at in range(text.index("{", start), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return len(text)

def without_tests(text):
    """The blanked text without items that are compiled only for tests."""
    while found := re.search(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*", text):
        rest = text[found.end():]
        brace, end = rest.find("{"), rest.find(";")
        cut = found.end() + end + 1 if 0 <= end < brace or brace < 0 else block_end(text, found.end())
        text = text[: found.start()] + re.sub(r"[^\n]", " ", text[found.start(): cut]) + text[cut:]
    return text

def test_modules(folder):
    """Files of modules that are compiled only for tests, whatever their names."""
    found = set()
    for path in folder.rglob("*.rs"):
        for name in re.findall(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+);", path.read_text()):
            own = path.parent if path.stem in ("mod", "lib", "main") else path.with_suffix("")
            found.update((own / f"{name}.rs", own / name / "mod.rs"))
    return found

def is_test(path):
    return path.stem in ("tests", "published") or path.stem.endswith("_tests") or "tests" in path.parts

class File:
    def __init__(self, package, path):
        self.package, self.path = package, path
        source = path.read_text()
        # Code that is compiled only for tests does not count in any figure.
        kept = without_tests(blanked(source))
        self.code = kept
        self.lines = sum(1 for line in kept.splitlines() if line.strip())
        self.panics = len(PANICS.findall(kept))
        self.types = DEFINED.findall(kept)
        self.functions = [self.lines_of(found) for found in re.finditer(r"\bfn\s+\w+", kept) if self.has_body(found)]

    def has_body(self, found):
        rest = self.code[found.end():]
        brace, end = rest.find("{"), rest.find(";")
        return brace >= 0 and not 0 <= end < brace

    def lines_of(self, found):
        start = self.code.rfind("\n", 0, found.start()) + 1
        body = self.code[start: block_end(self.code, found.end())]
        return sum(1 for line in body.splitlines() if line.strip())

    @property
    def module(self):
        relative = self.path.relative_to(ROOT / PACKAGES[self.package]).with_suffix("")
        parts = relative.parts
        return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts

def used_paths(code):
    """All paths in the code's `use` items and expressions, as tuples."""
    found = set()

    def walk(prefix, text):
        text = text.strip()
        if "{" in text:
            head, inner = text.split("{", 1)
            prefix = (*prefix, *[part for part in head.split("::") if part.strip()])
            depth, part = 0, ""
            for letter in inner[: inner.rfind("}")] + ",":
                depth += {"{": 1, "}": -1}.get(letter, 0)
                if letter == "," and depth == 0:
                    if part.strip():
                        walk(prefix, part)
                    part = ""
                else:
                    part += letter
        else:
            found.add((*prefix, *[part.strip().split(" as ")[0] for part in text.split("::") if part.strip()]))

    for item in re.findall(r"\buse\s+([^;]+);", code):
        walk((), re.sub(r"\s+", " ", item))
    for path in re.findall(r"\b(?:crate|super|self)(?:::\w+)+", code):
        found.add(tuple(path.split("::")))
    return found

def imports(file, by_module):
    """The files of the same package that this file names in paths, except its parent modules."""
    targets = set()
    for path in used_paths(file.code):
        at = list(file.module)
        parts = list(path)
        if parts[0] == "crate":
            at, parts = [], parts[1:]
        elif parts[0] not in ("super", "self") and (*at, parts[0]) not in by_module:
            continue
        while parts and parts[0] in ("super", "self"):
            if parts[0] == "super" and at:
                at.pop()
            parts = parts[1:]
        target = (*at, *parts)
        while target and target not in by_module:
            target = target[:-1]
        # A module and its parent belong together: items that a parent re-exports are named through it.
        if target and by_module[target] is not file and file.module[: len(target)] != target:
            targets.add(by_module[target])
    return targets

def circles(files):
    """Strongly connected groups of more than one file (Tarjan)."""
    by_module = {file.module: file for file in files if file.module}
    edges = {file: imports(file, by_module) for file in files}
    index, low, stack, found = {}, {}, [], []

    def visit(file):
        index[file] = low[file] = len(index)
        stack.append(file)
        for other in edges[file]:
            if other not in index:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], index[other])
        if low[file] == index[file]:
            group = []
            while not group or group[-1] is not file:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(group)

    sys.setrecursionlimit(10_000)
    for file in files:
        if file not in index:
            visit(file)
    return found

def main():
    only_tests = {path for folder in PACKAGES.values() for path in test_modules(ROOT / folder)}
    files = [
        File(package, path)
        for package, folder in PACKAGES.items()
        for path in sorted((ROOT / folder).rglob("*.rs"))
        if not is_test(path.relative_to(ROOT)) and path not in only_tests
    ]
    names = {}
    for file in files:
        for name in file.types:
            names.setdefault(name, []).append(file)
    repeated = {name: places for name, places in names.items() if len(places) > 1}
    groups = {package: circles([file for file in files if file.package == package]) for package in PACKAGES}
    if "--names" in sys.argv:
        for name, places in sorted(repeated.items(), key=lambda item: -len(item[1])):
            print(len(places), name, " ".join(str(file.path.relative_to(ROOT)) for file in places))
    elif "--circles" in sys.argv:
        for package, found in groups.items():
            for group in found:
                print(package, " ".join(sorted(str(file.path.relative_to(ROOT)) for file in group)))
    elif "--long" in sys.argv:
        for file in files:
            if file.lines > LONGEST_FILE:
                print(file.lines, file.path.relative_to(ROOT))
            longest = max(file.functions, default=0)
            if longest > LONGEST_FUNCTION:
                print(f"{longest} in one function: {file.path.relative_to(ROOT)}")
    else:
        print(f"{'package':<10}{'files':>6}{'lines':>8}{'over 500':>9}{'functions':>10}{'median':>7}{'longest':>8}{'panics/1000':>12}{'circles':>8}")
        for package in [*PACKAGES, "all"]:
            own = [file for file in files if package in (file.package, "all")]
            lines, functions = sum(file.lines for file in own), [length for file in own for length in file.functions]
            panics = sum(file.panics for file in own) / max(lines, 1) * 1000
            count = sum(len(found) for name, found in groups.items() if package in (name, "all"))
            over = sum(file.lines > LONGEST_FILE for file in own)
            print(
                f"{package:<10}{len(own):>6}{lines:>8}{over:>9}{len(functions):>10}{statistics.median(functions):>7.0f}{max(functions):>8}"
                f"{panics:>12.1f}{count:>8}"
            )
        print(f"type names defined more than once: {len(repeated)} of {len(names)}")

if __name__ == "__main__":
    main()
