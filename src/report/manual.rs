//! `docs/diagnosis.md`, from the rules themselves; a test holds the page to it.

use std::fmt::Write;

use super::{
    diagnosis::{RULES, Rule},
    findings::sourced,
};

const HEAD: &str = "\
# Why a trial was as fast as it was

`kiln run` ends with a line for each rule that fired, the most costly first and five at the most; `kiln report [RUN]` prints the same page and then of each finding the
cells it rests on, the thresholds and where they are from, what it means, what would refute it, and the next experiment.

```
kiln report                                   # the newest run under results/
kiln report results/quickstart/latest         # a run, an experiment's folder, or a trials.csv
kiln report --format markdown > report.md     # or json
```

- Findings come from rows of `trials.csv` alone ([tables.md](tables.md)), so a committed table says anywhere what it said where it was made. A rule whose columns are
  empty does not fire; an undisturbed trial that uses its device gives none.
- A rule that explains another one takes its place: a GPU that waits for data is not said to have a low utilization too.
- What is no fault is said so: `memory-to-spare` answers why a GPU that works has free memory, `power-capped` and `cpu-only-by-accident` name what may be on purpose.
- Where other rows of the run tell more than a rule of thumb, they decide: more workers than cores are no finding where the run shows that fewer are no faster.
- Points are compared within blocks of repeats (the column `block`), with one spread for the whole run. Another point counts as faster where the interval of the ratio of both rates lies
  above 1 and the ratio is 1.03 or more, as between two tables ([comparing.md](comparing.md)). The interval is adjusted for all comparisons that the rule could make in the run (Bonferroni), so
  that over the whole run the rule fires by chance in at most 5 % of runs; `cargo bench -p kiln --bench findings` measures it. Tables from before `block` have the blocks of their order, and
  5 % more must be seen. Of points that ran once, and of points whose repeats ran one after the other (`order: listed`), nothing is claimed: nobody knows the spread, or drift looks the same.
- These compare points: `too-many-workers`, `batch-too-small`, `shared-device` (repeats of a point beside fewer trials), the better number of workers that `data-bound` and `data-wait` name, and the
  order of the best two points below the table. `launch-bound` looks at passes over other batches of the run, but only to be silent. Everything else rests on thresholds of one row alone: how often such a
  row is wrong is not measured.
- Each finding names what would refute it: an experiment or an observation after which it no longer stands.
- The next experiment is YAML to lay on top of the trial's own: `extends: results/NAME/RUN/experiment.yaml`, a `name`, and these lines. Axes of the run's sweep
  that are not part of the question keep the trial's value; `zip: {…: null}`, `include: []` and `exclude: []` put aside a sweep that is no plain grid.
- `--format json` prints one object: `kiln_report` (its version), `table`, `planned`, `outcomes`, `points` (means and deviations of their completed trials), `findings` (`rule`, `trial`,
  `point`, `is_fault`, `weight`, `says`, `means`, `refuted_by`, `evidence`, `thresholds`, `next_yaml`), `notices`.

Every threshold is a constant in `src/report/diagnosis/` with its source beside it. *Chosen* means that no source gives a number and why this one was taken.
This page is written from the rules: `KILN_BLESS=1 cargo test --release --test suite diagnosis::`.

## Rules
";

/// The page.
pub fn manual() -> String {
    let mut page = format!("{HEAD}\n| rule | columns | thresholds and their sources |\n|---|---|---|\n");
    for rule in RULES {
        let columns = rule.columns.iter().map(|column| format!("`{column}`")).collect::<Vec<_>>().join(", ");
        let thresholds = rule.thresholds.iter().map(sourced).collect::<Vec<_>>().join("; ");
        let thresholds = if thresholds.is_empty() { "none: it is there or not".to_owned() } else { thresholds };
        let _ = writeln!(page, "| `{}` | {columns} | {thresholds} |", rule.name);
    }
    page.push_str("\n## What they mean\n\n");
    for rule in RULES {
        let kind = if rule.is_fault { "" } else { " (no fault)" };
        let _ = writeln!(page, "- `{}`{kind}: {} *Refuted by:* {}{}", rule.name, rule.means, rule.refuted_by, explains(rule));
    }
    page
}

fn explains(rule: &Rule) -> String {
    let names = rule.explains.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.is_empty() { String::new() } else { format!(" Stands for {names}.") }
}
