"""`nvidia-smi -q`, `-q -x` and `--query-gpu` beside `kiln snapshot`, taken at one moment:
the values that must be equal in all four, and files to keep.

A kept capture has the form of the project's other ones (one file per device and driver, sections with their command lines), so that it can be
played by the fake driver and compared in the ordinary tests.
"""

import copy
import csv
import dataclasses
import datetime
import io
import pathlib
import platform
import re
import stat
import sys
import xml.etree.ElementTree as xml

from check_gpu.pages import differences_of_pages, differences_of_tables, gpus_of_page, plain, top
from check_gpu.setting import Failed

# Values that do not change between two readings: the property, its places on the page and in the XML. Serial numbers are not kept.
SAME = (
    ("name", ("Product Name",), "product_name"),
    ("uuid", ("GPU UUID",), "uuid"),
    ("vbios_version", ("VBIOS Version",), "vbios_version"),
    ("pci.bus_id", ("PCI", "Bus Id"), "pci/pci_bus_id"),
    ("memory.total", ("FB Memory Usage", "Total"), "fb_memory_usage/total"),
    ("power.default_limit", ("GPU Power Readings", "Default Power Limit"), "gpu_power_readings/default_power_limit"),
    ("power.min_limit", ("GPU Power Readings", "Min Power Limit"), "gpu_power_readings/min_power_limit"),
    ("power.max_limit", ("GPU Power Readings", "Max Power Limit"), "gpu_power_readings/max_power_limit"),
    ("clocks.max.graphics", ("Max Clocks", "Graphics"), "max_clocks/graphics_clock"),
    ("clocks.max.sm", ("Max Clocks", "SM"), "max_clocks/sm_clock"),
    ("clocks.max.memory", ("Max Clocks", "Memory"), "max_clocks/mem_clock"),
    ("ecc.mode.current", ("ECC Mode", "Current"), "ecc_mode/current_ecc"),
    ("compute_mode", ("Compute Mode",), "compute_mode"),
)
# Labels whose values name one board.
IDENTIFYING = (("Serial Number",), ("GPU UUID",), ("GPU PDI",), ("Platform Info", "Chassis Serial Number"), ("Fabric", "ClusterUUID"))


@dataclasses.dataclass
class Taken:
    """The printed texts: nvidia-smi's three forms, kiln's page and properties, and nvidia-smi's own list of properties."""

    text: str
    xml: str
    table: str
    page: str
    properties: str
    tidy: str
    words: str
    # All properties of the driver's own list, for the kept capture.
    wide_fields: list
    wide: str
    # Those of them that kiln has.
    our_wide: str
    version: str


def take(setting, nvidia_smi, driver):
    names = ",".join(name for name, *_ in SAME) + ",driver_version"
    known = properties_known(setting.run([*nvidia_smi, "--help-query-gpu"], is_quiet=True, **driver))
    listed = {line.split()[0] for line in setting.run([setting.kiln, "snapshot", "--list"], is_quiet=True, **driver).splitlines() if line.strip()}
    shared = ",".join(name for name in known if name in listed)
    # Only these commands run between the first and the last, so that they show one moment.
    text = setting.run([*nvidia_smi, "-q"], is_quiet=True, **driver)
    page = setting.run([setting.kiln, "snapshot"], is_quiet=True, **driver)
    wide = setting.run([*nvidia_smi, f"--query-gpu={','.join(known)}", "--format=csv"], is_quiet=True, **driver)
    our_wide = setting.run([setting.kiln, "snapshot", "--query", shared, "--format", "csv"], is_quiet=True, **driver)
    markup = setting.run([*nvidia_smi, "-q", "-x"], is_quiet=True, **driver)
    return Taken(
        text=text, xml=markup, page=page, wide=wide, our_wide=our_wide, wide_fields=known,
        table=setting.run([*nvidia_smi, f"--query-gpu={names}", "--format=csv,noheader"], **driver),
        properties=setting.run([setting.kiln, "snapshot", "--query", names, "--format", "csv,noheader"], **driver),
        tidy=setting.run([setting.kiln, "snapshot", "--csv"], is_quiet=True, **driver),
        words=setting.run([setting.kiln, "snapshot", "--words"], **driver),
        version=setting.run([*nvidia_smi, "--version"], status=None, **driver),
    )


def properties_known(text):
    found = re.findall(r'^"([a-zA-Z0-9_.]+)"', text, re.M)
    if len(found) < 20:
        raise Failed(f"nvidia-smi --help-query-gpu names only {len(found)} properties")
    return found


def compare(checks, taken):
    """For each device: the four outputs agree on the values that do not change."""
    ours, theirs = gpus_of_page(taken.page), gpus_of_page(taken.text)
    root = xml.fromstring(taken.xml)
    marked = root.findall("gpu")
    table, properties = (list(csv.reader(io.StringIO(text), skipinitialspace=True)) for text in (taken.table, taken.properties))
    counts = [len(found) for found in (ours, theirs, marked, table, properties)]
    checks.that(len(set(counts)) == 1 and counts[0] > 0, f"GPUs on kiln's page, in -q, -q -x, --query-gpu and --query: {counts}")
    drivers = {top(taken.page, "Driver Version"), top(taken.text, "Driver Version"), root.findtext("driver_version"), *(row[-1] for row in table + properties)}
    checks.that(len(drivers) == 1 and all(drivers), f"the driver's version: {drivers}")
    for gpu, (our, their, mark, cells, our_cells) in enumerate(zip(ours, theirs, marked, table, properties, strict=False)):
        for at, (name, place, path) in enumerate(SAME):
            said = {
                "kiln snapshot": our.get(place), "nvidia-smi -q": their.get(place), "nvidia-smi -q -x": mark.findtext(path),
                "nvidia-smi --query-gpu": cells[at], "kiln snapshot --query": our_cells[at],
            }
            checks.that(len({plain(value) for value in said.values()}) == 1, f"GPU {gpu}, {name}: {said}")


def differences(setting, taken):
    """Pairs of a kind and a line: where kiln's page and its properties are not nvidia-smi's."""
    yield from differences_of_pages(taken.page, taken.text, setting.file("docs", "nvidia-smi-labels.csv"))
    yield from differences_of_tables(taken.our_wide, taken.wide)


def with_another_memory(taken):
    changed = copy.copy(taken)
    changed.page = re.sub(r"(FB Memory Usage\s*\n\s*Total\s*: )\d+", r"\g<1>1", taken.page, count=1)
    if changed.page == taken.page:
        raise Failed("kiln's page has no total of FB Memory Usage")
    return changed


def keep(setting, taken):
    """Writes files that are named as the project's captures are, with what names one board masked."""
    device = re.sub(r"[^a-z0-9]+", "-", gpus_of_page(taken.text)[0].get(("Product Name",), "gpu").lower()).strip("-")
    stem = f"{sys.platform}-{platform.machine()}__{device}__{top(taken.text, 'Driver Version')}"
    folder = setting.folder("captures")
    masked = masking(taken)
    rule = "#" * 80
    wide = ",".join(taken.wide_fields)
    sections = [
        ("capabilities :: version", "nvidia-smi --version", taken.version),
        ("load :: query (-q)", "nvidia-smi -q", taken.text),
        ("load :: query-gpu (csv, what the exporter parses)", f"nvidia-smi --query-gpu={wide} --format=csv", taken.wide),
    ]
    moment = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    head = f"{rule}\n# kiln: scripts/check-gpu.sh, part snapshot\n{rule}\ncollected_at:   {moment}\nmasked:         serial numbers, UUIDs, PDIs\nload:           none\n"
    text = head + "".join(f"\n{rule}\n# {title}\n# $ {command}\n{rule}\n{masked(body)}\n" for title, command, body in sections)
    (folder / f"{stem}.txt").write_text(text)
    for ending, body in (("xml", taken.xml), ("kiln.txt", taken.page), ("kiln.csv", taken.tidy), ("kiln-words.txt", taken.words)):
        (folder / f"{stem}.{ending}").write_text(masked(body))


def masking(taken):
    """A function that replaces what names one board by zeros, wherever it stands; the last digits count the boards."""
    found = []
    for gpu in gpus_of_page(taken.text) + gpus_of_page(taken.page):
        found += [gpu[place] for place in IDENTIFYING if re.fullmatch(r"(GPU-|0x)?[0-9a-f-]{5,}", gpu.get(place, ""))]
    names = list(dict.fromkeys(found + re.findall(r"MIG-[0-9a-f-]{36}", taken.tidy)))
    numbers = {name: number for kind in by_shape(names).values() for number, name in enumerate(kind)}

    def masked(text):
        for name, number in numbers.items():
            end = f"{number:x}"
            text = text.replace(name, re.sub(r"[0-9a-f]", "0", name)[: -len(end)] + end)
        return text

    return masked


def by_shape(names):
    """Names that differ in digits only."""
    shapes = {}
    for name in names:
        shapes.setdefault(re.sub(r"[0-9a-f]", "0", name), []).append(name)
    return shapes


# A stand-in for nvidia-smi ---------------------------------------------------------------------------------------------------------

# XML tags that are not the label in lower case.
TAGS = {
    "gpu_uuid": "uuid", "serial_number": "serial", "bus_id": "pci_bus_id", "max_clocks/graphics": "graphics_clock", "max_clocks/sm": "sm_clock",
    "max_clocks/memory": "mem_clock", "ecc_mode/current": "current_ecc",
}


def stand_in(setting, driver):
    """Makes a program that prints what nvidia-smi would print on the invented machine: kiln's own readings in nvidia-smi's layouts."""
    place = setting.folder("stand-in") / "nvidia-smi"
    package = pathlib.Path(__file__).resolve().parents[1]
    place.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(package)!r})\nfrom check_gpu import captures\n"
        f"captures.answer({str(setting.kiln)!r}, sys.argv[1:])\n"
    )
    place.chmod(place.stat().st_mode | stat.S_IXUSR)
    return [str(place)]


def answer(kiln, asked):
    import subprocess

    def of_kiln(*arguments):
        return subprocess.run([kiln, "snapshot", *arguments], capture_output=True, text=True, check=True).stdout

    if asked == ["-q"]:
        said = of_kiln()
    elif asked == ["-q", "-x"]:
        said = markup(of_kiln())
    elif asked == ["--version"]:
        said = f"NVIDIA-SMI version  : stand-in\nDRIVER version      : {top(of_kiln(), 'Driver Version')}\n"
    elif asked == ["--help-query-gpu"]:
        said = "".join(f'"{line.split()[0]}"\n' for line in of_kiln("--list").splitlines() if re.match(r"[a-z]", line))
    elif len(asked) == 2 and asked[0].startswith("--query-gpu=") and asked[1].startswith("--format="):
        said = of_kiln("--query", asked[0].partition("=")[2], "--format", asked[1].partition("=")[2])
    else:
        sys.exit(f"this stand-in for nvidia-smi knows no {asked}")
    print(said, end="")


def markup(page):
    """The page in the form of `nvidia-smi -q -x`."""
    root = xml.Element("nvidia_smi_log")
    xml.SubElement(root, "driver_version").text = top(page, "Driver Version")
    for values in gpus_of_page(page):
        gpu = xml.SubElement(root, "gpu")
        for place, value in values.items():
            at = gpu
            tags = [re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_") for label in place]
            for number, tag in enumerate(tags):
                tag = TAGS.get("/".join(tags[max(0, number - 1) : number + 1]), TAGS.get(tag, tag))
                tag = tag if re.match(r"[a-z_]", tag) else f"_{tag}"
                found = at.find(tag)
                at = found if found is not None and number < len(tags) - 1 else xml.SubElement(at, tag)
            at.text = value
    return xml.tostring(root, encoding="unicode")
