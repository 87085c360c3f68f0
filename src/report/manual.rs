//! `docs/diagnosis.md`, from the rules themselves; a test holds the page to it.

use std::fmt::Write;

use super::{
    diagnosis::{RULES, Rule},
    findings::sourced,
};

const HEAD: &str = "\
# Why a trial was as fast as it was

`kiln run` ends with a line for each rule that fired, the most costly first and at most five; `kiln report [RUN]` prints the same page and then for each finding its
evidence (cells of the table), the thresholds with their sources, its meaning, what would refute it, and the next experiment.

```
kiln report                                   # the newest run under results/
kiln report results/quickstart/latest         # a run, an experiment's folder, or a trials.csv
kiln report --format markdown > report.md     # or json
```

- Findings come from rows of `trials.csv` alone ([tables.md](tables.md)), so a committed table gives the same findings on every machine. A rule whose columns are
  empty does not fire; an undisturbed trial that uses its device has no findings.
- A rule that explains another one replaces it: a GPU that waits for data does not also get a finding on low utilization.
- Some findings are not faults and say so: `memory-to-spare` explains why a busy GPU has free memory, `power-capped` and `cpu-only-by-accident` name conditions that may be on purpose.
- A rule is told once: in full on the point where it weighs most, with a line for each other point of which it holds. JSON has the finding of each trial.
- `validation-above-training` looks at the losses of the end: it shows that the model is better on its own training data, not why.
  Its thresholds were measured (`benches/validation-gap.py`, `results/validation-gap-2core-epyc.csv`): 28 trainings of small GPTs, LSTMs and ResNets on parts of tiny Shakespeare, WikiText-2 and
  Fashion-MNIST, with and without dropout or flips, 20 evaluations each. They hold for 101 of the 104 evaluations of overfit models (after the lowest validation loss, and 5 % above it or more), and
  for none of the 327 of text models whose validation loss still fell: those had ratios of 1.19 at most, overfit ones of 1.33 at least. Of the ResNets whose validation loss still fell they hold for
  43 of 110: on 500 to 4,000 images at a constant rate it swings, and in the first hundred steps the running statistics of the norms lag behind. The gap is real there too, and not yet a loss.
- Other rows of the run take precedence over a rule of thumb: more workers than cores are not a finding where the run shows that fewer are not faster.
- Points are compared within blocks of repeats (the column `block`), with one spread for the whole run. Another point counts as faster where the interval of the ratio of both rates lies
  above 1 and the ratio is 1.03 or more, as between two tables ([comparing.md](comparing.md)). The interval is adjusted for all comparisons that the rule could make in the run (Bonferroni), so
  that over the whole run the rule fires by chance in at most 5 % of runs; `cargo bench -p kiln --bench findings` measures it. For tables without `block` the blocks follow from the order of the rows, and
  the difference must be 5 % larger. Nothing is claimed about points that ran once or whose repeats ran one after the other (`order: listed`): the spread is unknown, or drift looks the same.
- These compare points: `too-many-workers`, `batch-too-small`, `shared-device` (repeats of a point with fewer concurrent trials), the better number of workers that `data-bound` and `data-wait` name, and the
  order of the best two points below the table. `launch-bound` looks at passes over other batches of the run, but only to suppress itself. All other rules use thresholds on a single row; how often they are
  wrong is not measured.
- Each finding names what would refute it: an experiment or an observation that shows it to be wrong.
- The next experiment is a YAML layer above the trial's own. The pages show a whole file, with `kiln`, `name` and `extends: results/NAME/RUN/experiment.yaml`, to be saved in the folder where `kiln report` ran; `next_yaml` has the lines below these. Axes of the run's sweep
  that are not part of the question keep the trial's value; `zip: {…: null}`, `include: []` and `exclude: []` remove a sweep that is not a plain grid, and `search: null` removes a search.
- `--format json` prints one object: `kiln_report` (its version), `table`, `planned`, `outcomes`, `objective` (what ranks the points, the best, and the answer in words), `points` (`axes`, their values as texts, and `values`, the same with the types of the experiment, as in `best_values` of `objective`; means of their completed trials with their deviations and numbers of runs, and `failures`), `not_completed` (each such trial, [report.md](report.md#json)), `findings` (`rule`, `trial`,
  `point`, `is_fault`, `weight`, `says`, `means`, `refuted_by`, `evidence`, `thresholds`, `next_yaml`), `notices`.

Every threshold is a constant in `src/report/diagnosis/` with its source beside it. *Chosen* means that no source gives a number; the reason for the choice follows it.
This page is written from the rules: `KILN_BLESS=1 cargo test --release --test suite diagnosis::`.

## Rules
";

/// Returns the page as Markdown.
pub fn manual() -> String {
    let mut page = format!(
        "{HEAD}\n| rule | columns | thresholds and their sources |\n\
         |---|---|---|\n"
    );
    for rule in RULES {
        let columns = rule
            .columns
            .iter()
            .map(|column| format!("`{column}`"))
            .collect::<Vec<_>>()
            .join(", ");
        let thresholds = rule
            .thresholds
            .iter()
            .map(sourced)
            .collect::<Vec<_>>()
            .join("; ");
        let thresholds = if thresholds.is_empty() {
            "none".to_owned()
        } else {
            thresholds
        };
        let _ = writeln!(page, "| `{}` | {columns} | {thresholds} |", rule.name);
    }
    page.push_str("\n## Meaning\n\n");
    for rule in RULES {
        let kind = if rule.is_fault { "" } else { " (not a fault)" };
        let _ = writeln!(
            page,
            "- `{}`{kind}: {} *Refuted by:* {}{}",
            rule.name,
            rule.means,
            rule.refuted_by,
            explains(rule)
        );
    }
    page
}

fn explains(rule: &Rule) -> String {
    let names = rule
        .explains
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ");
    if names.is_empty() {
        String::new()
    } else {
        format!(" Replaces {names}.")
    }
}
