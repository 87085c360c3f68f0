//! `docs/diagnosis.md`, from the rules themselves; a test holds the page to it.

use std::fmt::Write;

use super::{
    diagnosis::{RULES, Rule},
    findings::sourced,
};

const HEAD: &str = "\
# Why a trial was as fast as it was

`kiln run` ends with a line for each rule that fired, the most costly first and five at the most; `kiln report [RUN]` prints the same page and then of each finding the
cells it rests on, the thresholds and where they are from, what it means, and the next experiment.

```
kiln report                                   # the newest run under results/
kiln report results/quickstart/latest         # a run, an experiment's folder, or a trials.csv
kiln report --format markdown > report.md     # or json
```

- Findings come from rows of `trials.csv` alone ([tables.md](tables.md)), so a committed table says anywhere what it said where it was made. A rule whose columns are
  empty does not fire; an undisturbed trial that uses its device gives none.
- A rule that explains another one takes its place: a GPU that waits for data is not said to have a low utilization too.
- What is no fault is said so: `memory-to-spare` answers why a GPU that works has free memory, `power-capped` and `cpu-only-by-accident` name what may be on purpose.
- Where other rows of the run tell more than a rule of thumb, they decide: more workers than cores are no finding where the run shows that fewer are no faster. Another point
  counts as faster from 3 % on where both have repeats and their spreads do not reach each other, from 10 % on where one of them is a single run.
- The next experiment is YAML to lay on top of the trial's own: `extends: results/NAME/RUN/experiment.yaml`, a `name`, and these lines. Axes of the run's sweep
  that are not part of the question keep the trial's value; `zip: {…: null}`, `include: []` and `exclude: []` put aside a sweep that is no plain grid.
- `--format json` prints one object: `kiln_report` (its version), `table`, `planned`, `outcomes`, `points` (means and deviations of their completed trials), `findings` (`rule`, `trial`,
  `point`, `is_fault`, `weight`, `says`, `means`, `evidence`, `thresholds`, `next_yaml`), `notices`.

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
        let _ = writeln!(page, "- `{}`{}: {}{}", rule.name, if rule.is_fault { "" } else { " (no fault)" }, rule.means, explains(rule));
    }
    page
}

fn explains(rule: &Rule) -> String {
    let names = rule.explains.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.is_empty() { String::new() } else { format!(" Stands for {names}.") }
}
