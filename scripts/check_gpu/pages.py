"""Two printed answers of one moment, nvidia-smi's and kiln's: the values that differ, each with the reason why it may, or as a fault.

What may differ is in `docs/nvidia-smi-labels.csv`, the map between driver branches, and in MOVING, the readings that are another at each look.
"""

import csv
import math
import re

FAULT, MOVING, KNOWN = "fault", "moving", "known"

# Readings that move between two looks a second apart: a label or property, and by how much of its unit, or of the larger value, it may.
# A sample of the link takes 20 ms, and clocks follow each program that starts: of those, only number and unit must be there.
TOLERANCES = (
    (r"(GPU|GPU Memory|Module) Power Readings > (Average|Instantaneous) Power Draw", 100, 0.5),
    (r"(gpu\.|module\.)?power\.draw(\.average|\.instant)?", 100, 0.5),
    (r"PCI > [TR]x Throughput", math.inf, 0),
    (r"PCI > GPU Link Info > (PCIe Generation > (Device )?Current|Link Width > Current)", math.inf, 0),
    (r"pcie\.link\.(gen\.(gpu)?current|width\.current)", math.inf, 0),
    (r"PCI > (Replays Since Reset|Replay Number Rollovers)", 10, 0),
    (r"Fan Speed|fan\.speed", 10, 0),
    (r"Performance State|pstate", math.inf, 0),
    (r"Clocks Event Reasons > .*|clocks_event_reasons\.(?!supported).*", 0, 0),
    (r"Clocks Event Reasons Counters > .*|clocks_event_reasons_counters\..*", 10_000_000, 0),
    (r"(FB|BAR1) Memory Usage > (Used|Free)|memory\.(used|free)", 64, 0),
    (r"Utilization > .*|utilization\..*", 100, 0),
    (r"Temperature > (GPU Current Temp|GPU T\.Limit Temp|Memory Current Temp)|temperature\..*", 5, 0),
    (r"Clocks > .*|clocks\.current\..*", math.inf, 0),
)
FLAGS = {"active", "not active"}

# Properties that are kiln's own: its time, and what no public call answers.
OWN_PROPERTIES = ("timestamp", "pcie.link.gen.hostmax")


class Labels:
    """The lines of the map for one driver branch. What each action means is in docs/nvml.md."""

    def __init__(self, table, branch):
        with open(table, newline="") as file:
            self.rules = [rule for rule in csv.DictReader(file) if int(rule["branch_from"] or 0) <= branch <= int(rule["branch_to"] or branch)]

    def of(self, action, place):
        return [rule for rule in self.rules if rule["action"] == action and (place + " > ").startswith(rule["label"] + " > ")]

    def brought(self, place, cell):
        """The place and cell as kiln should print them; None if its layout does not have them."""
        if self.of("removed", place):
            return None
        for rule in self.of("rename", place):
            if rule["cell"] in ("", cell):
                place, cell = rule["new_label"] + place[len(rule["label"]) :], rule["new_cell"] or cell
                break
        for rule in self.of("cut", place):
            cell = cell.partition(rule["cell"])[0]
        for rule in self.of("no_call", place):
            cell = rule["new_cell"]
        return place, cell

    def may_add(self, place, cell):
        return any(rule["new_cell"] in ("*", cell) for rule in self.of("added", place) + self.of("no_call", place))

    def may_differ(self, place, our, page):
        """`value`: another spelling, and `N/A` for a structure that nobody filled."""
        may = [rule for rule in self.of("value", place) if rule["cell"] == page[place] and rule["new_cell"] == our]
        return bool(may) and (our != "N/A" or self.is_empty(place.partition(" > ")[0], page))

    def is_empty(self, section, page):
        rules = [rule for rule in self.rules if rule["action"] == "value" and rule["label"].startswith(section + " > ")]
        empty = {(rule["label"], rule["cell"]) for rule in rules if rule["new_cell"] == "N/A"}
        return all(page.get(rule["label"], "N/A") == "N/A" or (rule["label"], page[rule["label"]]) in empty for rule in rules)


def plain(value):
    """One spelling for absent values, for the end of a number and for upper and lower case."""
    if value is None:
        return None
    value = value.strip().strip("[]").lower()
    return re.sub(r"\.00(?= |$)", "", value)


def top(page, label):
    found = re.search(rf"^{label}\s*: (.*)$", page, re.M)
    return found.group(1).strip() if found else None


def gpus_of_page(page):
    """The values of each GPU by their path of labels."""
    found, path = [], []
    for line in page.splitlines():
        if re.match(r"GPU [0-9A-Fa-f]{8}:", line):
            found.append({})
            path = []
            continue
        indent = len(line) - len(line.lstrip())
        if not found or not line.strip() or indent == 0:
            continue
        label, colon, value = line.strip().partition(" : ")
        path = [*path[: indent // 4 - 1], label.strip().rstrip(":")]
        if colon:
            found[-1].setdefault(tuple(path), value.strip())
    return found


def has_moved(name, our, their):
    """Whether the two are one reading that moved, within reason."""
    tolerance = next(((most, share) for pattern, most, share in TOLERANCES if re.fullmatch(pattern, name)), None)
    if tolerance is None:
        return False
    if {plain(our), plain(their)} <= FLAGS or all(re.fullmatch(r"0x[0-9A-Fa-f]{16}", value) for value in (our, their)):
        return True
    numbers = [re.search(r"-?\d+(\.\d+)?", value) for value in (our, their)]
    if None in numbers:
        return False
    units = {value.replace(number.group(), "", 1) for value, number in zip((our, their), numbers)}
    ours, theirs = (float(number.group()) for number in numbers)
    most, share = tolerance
    return len(units) == 1 and abs(ours - theirs) <= max(most, share * max(abs(ours), abs(theirs)))


def differences_of_pages(page, text, table):
    """Pairs of a kind and a line: each place at which kiln's page is not nvidia-smi's."""
    labels = Labels(table, int(top(text, "Driver Version").partition(".")[0]))
    for label in ("CUDA Version", "Attached GPUs"):
        our, their = top(page, label), top(text, label)
        if our != (labels.brought(label, their)[1] if their else None):
            yield FAULT, f"{label}: kiln {our!r}, nvidia-smi {their!r}"
    for gpu, (our, their) in enumerate(zip(gpus_of_page(page), gpus_of_page(text), strict=False)):
        ours = {" > ".join(place): cell for place, cell in our.items()}
        theirs = {" > ".join(place): cell for place, cell in their.items()}
        for kind, line in differences_of_gpus(ours, theirs, labels):
            yield kind, f"GPU {gpu} {line}"


def differences_of_gpus(ours, theirs, labels):
    brought = [(found, place) for place, cell in theirs.items() if (found := labels.brought(place, cell))]
    expected = {place: cell for (place, cell), _ in brought}
    origin = {place: theirs[real] for (place, _), real in brought}
    for place in sorted({*ours, *expected}):
        our, wanted = ours.get(place), expected.get(place)
        line = f"{place}: kiln {our!r}, nvidia-smi {origin.get(place)!r}"
        if our is None:
            yield FAULT, line
        elif wanted is None:
            yield KNOWN if labels.may_add(place, our) else FAULT, line
        elif plain(our) != plain(wanted):
            is_known = labels.may_differ(place, our, expected)
            yield KNOWN if is_known else MOVING if has_moved(place, our, wanted) else FAULT, line
        elif plain(our) != plain(origin[place]):
            yield KNOWN, line
    shared = [[place for place in places if place in ours and place in expected] for places in (ours, expected)]
    for our, wanted in zip(*shared):
        if our != wanted:
            yield FAULT, f"{our}: kiln prints it where nvidia-smi prints {wanted}"
            break


def differences_of_tables(ours, theirs):
    """The same for the answers to `--query` and `--query-gpu`, with headers; properties that only nvidia-smi has are faults."""
    our_header, *our_rows = csv.reader(ours.splitlines(), skipinitialspace=True)
    their_header, *their_rows = csv.reader(theirs.splitlines(), skipinitialspace=True)
    places = {name.partition(" ")[0]: at for at, name in enumerate(our_header)}
    for at, title in enumerate(their_header):
        name = title.partition(" ")[0]
        if name not in places:
            yield FAULT, f"{name}: kiln does not have this property"
            continue
        if our_header[places[name]] != title:
            yield FAULT, f"{name}: kiln's header is {our_header[places[name]]!r}, nvidia-smi's {title!r}"
        for gpu, (our_row, their_row) in enumerate(zip(our_rows, their_rows, strict=False)):
            our, their = our_row[places[name]], their_row[at]
            if plain(our) != plain(their):
                kind = KNOWN if name in OWN_PROPERTIES else MOVING if has_moved(name, our, their) else FAULT
                yield kind, f"GPU {gpu} {name}: kiln {our!r}, nvidia-smi {their!r}"
