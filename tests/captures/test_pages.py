"""The comparison of the part `snapshot` of scripts/check-gpu.sh, over the kept capture: what it must see, and what it must let pass. Run by tests/captures/mod.rs."""

import pathlib
import re
import sys
import types
import unittest

HOME = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "scripts"))

from check_gpu import captures, pages  # noqa: E402

TABLE = HOME / "docs" / "nvidia-smi-labels.csv"
KEPT = (HOME / "tests" / "captures" / "nvidia-smi" / "linux-x86_64__nvidia-h200__580.159.04.txt").read_text()
REAL = KEPT[KEPT.index("==============NVSMI LOG") : KEPT.index("# load :: query-gpu")]
# kiln's page: what no call answers, and the line that is newer than the driver.
OURS = re.sub(r"(GPU Part Number +|Sparse Operation Mode +): .*", r"\1: N/A", REAL)
OURS = re.sub(r"^    Clocks$", f"    {'EDPp Multiplier':51}: N/A\n    Clocks", OURS, count=1, flags=re.M)
PROPERTIES = "name, power.draw [W], clocks.max.sm [MHz], temperature.gpu, pstate\nNVIDIA H200, 124.60 W, 1980 MHz, 36, P0\n"


def page_with(label, value, nth=0):
    """kiln's page with another value at the nth line of this label."""
    at = [found for found in re.finditer(rf"^ *{re.escape(label)} *: (.*)$", OURS, re.M)][nth]
    return OURS[: at.start(1)] + value + OURS[at.end(1) :]


def kinds(page, text=REAL):
    return [kind for kind, _ in pages.differences_of_pages(page, text, TABLE)]


class Pages(unittest.TestCase):
    def test_only_what_the_map_says_differs(self):
        self.assertEqual(kinds(OURS), [pages.KNOWN] * 3)

    def test_readings_that_moved_within_reason_are_no_fault(self):
        for label, value in (
            ("Average Power Draw", "78.39 W"), ("Tx Throughput", "4217 KB/s"), ("GPU Current Temp", "38 C"), ("Idle", "Active"),
            ("Performance State", "P8"), ("SW Power Capping", "4479291 us"),
        ):
            with self.subTest(label):
                self.assertEqual(sorted(kinds(page_with(label, value))), [pages.KNOWN] * 3 + [pages.MOVING])

    def test_what_is_beyond_reason_is_a_fault(self):
        for label, value in (
            ("Average Power Draw", "124050.00 W"), ("Average Power Draw", "124.05 mW"), ("Average Power Draw", "N/A"), ("Tx Throughput", "829 MB/s"),
            ("GPU Current Temp", "97 F"), ("Idle", "Yes"), ("Fan Speed", "Unknown Error"), ("State", "Not Supported"), ("Total", "143772 MiB"),
            ("Product Name", "NVIDIA H100"), ("GPU Part Number", "2335"), ("EDPp Multiplier", "100.00%"), ("CUDA Version", "13.1"),
        ):
            with self.subTest(f"{label} {value}"):
                self.assertEqual(kinds(page_with(label, value)).count(pages.FAULT), 1)

    def test_a_line_too_few_or_too_many_or_elsewhere_is_a_fault(self):
        line = re.search(r"^ *Inactive Correctable Error.*\n", OURS, re.M).group()
        self.assertIn(pages.FAULT, kinds(OURS.replace(line, "")))
        self.assertIn(pages.FAULT, kinds(OURS.replace(line, line + line.replace("Inactive", "Pending "))))
        after = re.search(r"^ *Inactive Uncorrectable Error.*\n", OURS, re.M).group()
        self.assertIn(pages.FAULT, kinds(OURS.replace(line, "").replace(after, after + line)))

    def test_a_structure_is_absent_only_if_it_is_empty(self):
        labels = pages.Labels(TABLE, 580)
        page = {"Platform Info > Slot Number": "0", "Platform Info > Host ID": "1"}
        self.assertTrue(labels.may_differ("Platform Info > Host ID", "N/A", page))
        self.assertFalse(labels.may_differ("Platform Info > Host ID", "N/A", {**page, "Platform Info > Slot Number": "3"}))

    def test_older_and_newer_labels_are_brought_to_the_layout(self):
        self.assertEqual(pages.Labels(TABLE, 566).brought("Display Mode", "Disabled"), ("Display Attached", "No"))
        self.assertEqual(pages.Labels(TABLE, 610).brought("CUDA Version", "13.3 [Deprecated; x]"), ("CUDA Version", "13.3"))
        self.assertIsNone(pages.Labels(TABLE, 566).brought("Voltage > Graphics", "630.000 mV"))


class Properties(unittest.TestCase):
    def kinds(self, ours):
        return [kind for kind, _ in pages.differences_of_tables(ours, PROPERTIES)]

    def test_values_headers_and_missing_properties(self):
        self.assertEqual(self.kinds(PROPERTIES), [])
        self.assertEqual(self.kinds(PROPERTIES.replace("124.60", "78.39").replace("P0", "P8")), [pages.MOVING] * 2)
        for before, after in (("1980", "1979"), ("124.60 W", "[N/A]"), ("sm [MHz]", "sm [GHz]"), ("pstate", "state")):
            with self.subTest(after):
                self.assertEqual(self.kinds(PROPERTIES.replace(before, after)), [pages.FAULT])


class Masks(unittest.TestCase):
    def test_what_names_a_board_is_masked_wherever_it_stands(self):
        names = ("1650000000001", "GPU-5ca1ab1e-0000-4000-8000-000000000009", "0x5ca1ab1e00000001")
        text = "GPU 00000000:81:00.0\n" + "".join(f"    {label:51}: {name}\n" for label, name in zip(("Serial Number", "GPU UUID", "GPU PDI"), names))
        second = text.replace("81:", "82:").replace("1650000000001", "1650000000002").replace("0009", "000a")
        taken = types.SimpleNamespace(text=text + second, page=text + second, tidy=f"{names[1]},identity,serial_number,{names[0]},,")
        masked = captures.masking(taken)
        self.assertEqual(masked(taken.tidy), "GPU-00000000-0000-0000-0000-000000000000,identity,serial_number,0000000000000,,")
        self.assertEqual(masked(f"<serial>1650000000002</serial>, {names[2]}"), "<serial>0000000000001</serial>, 0x0000000000000000")


if __name__ == "__main__":
    unittest.main()
