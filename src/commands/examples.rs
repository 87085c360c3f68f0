//! The end of each verb's long help: examples, and the page that says more.

pub(super) const INIT: &str = r#"Examples:
  kiln init                                            # a small GPT on a made-up text
  kiln init mine.yaml --data corpus.txt                # the kind of model follows from the data
  kiln init images.yaml --kind resnet --data photos/   # one folder per class
  kiln init best.yaml --from x:t31a                    # one trial of a run, as a file

See docs/experiment-file.md"#;

pub(super) const CHECK: &str = r#"Examples:
  kiln check experiments/*.yaml
  kiln check x.yaml --set train.batch_size=64   # with one more layer
  kiln check x.yaml --json | jq '.problems[]'   # for programs

See docs/experiment-file.md"#;

pub(super) const PLAN: &str = r#"Examples:
  kiln plan x.yaml                              # ids, sizes, disk, what a resume skips
  kiln plan x.yaml --keep x                     # what runs if the trials of run x are kept
  kiln plan x.yaml y.yaml --for 2h              # how many trials fit into two hours
  kiln plan x.yaml --json | jq '.trials[].id'   # for programs

See docs/running.md"#;

pub(super) const RUN: &str = r#"Examples:
  kiln run x.yaml                                       # the same command resumes it
  kiln run x.yaml --set train.steps=50 --device cpu
  kiln run x.yaml --for 2h                              # begins only what fits into two hours
  kiln run x.yaml --rerun failed                        # retries failed trials
  kiln run x.yaml --keep x                              # runs only what was added to its sweep
  kiln run x.yaml --continue x --set train.steps=5000   # goes on from its last checkpoint
  kiln run x.yaml --at x --set sweep.repeats=4          # the best point of its sweep, with more seeds
  kiln run x.yaml --on slurm                            # in jobs of a cluster; see docs/clusters.md

See docs/running.md"#;

pub(super) const WORKER: &str = r#"Examples:
  kiln worker x                      # after `kiln run x.yaml --on workers --detach`
  kiln worker /shared/results/x/latest   # on each node that sees the folder

See docs/clusters.md"#;

pub(super) const WAIT: &str = r#"Examples:
  kiln wait            # the newest run, until its workers are done
  kiln wait x --once   # collects the tables now

See docs/clusters.md"#;

pub(super) const STOP: &str = r#"Examples:
  kiln stop x         # running trials finish
  kiln stop x --now   # they stop, and `kiln run x.yaml --on workers` resumes them

See docs/clusters.md"#;

pub(super) const TUNE: &str = r#"Examples:
  kiln tune x.yaml --search largest-batch
  kiln tune x.yaml --search workers --set run.devices=cpu
  kiln tune train.yaml --search best-throughput-batch --set sweep.search.to=512   # of a command, too

See docs/tuning.md"#;

pub(super) const COMPARE: &str = r#"Examples:
  kiln compare x~1 x                                       # the run before the newest, and the newest
  kiln compare f32 bf16 --fail-on slower --across train.precision   # a gate about a setting
  kiln compare results/a/latest results/b/latest --rerun   # runs the points again, in turns

See docs/comparing.md"#;

pub(super) const DIFF: &str = r#"Examples:
  kiln diff x~1 x                                     # the run before the newest, and the newest
  kiln diff HEAD~1:results/x/latest x --exit-code     # 0, 1 or 4, for scripts
  kiln diff a b --format json | jq '.differences[].key'

See docs/comparing.md"#;

pub(super) const REPRODUCE: &str = r#"Examples:
  kiln reproduce x                         # the newest run of experiment x
  kiln reproduce HEAD~1:results/x/latest   # as it was committed

See docs/comparing.md"#;

pub(super) const RELAY: &str = r#"Examples:
  kiln relay results/x/latest/trials/t4f0c1a2b3d/trial.yaml      # as `kiln run` starts a command
  kiln relay --engine python3 engine.py results/…/trial.yaml   # and an engine

See docs/command.md"#;

pub(super) const REPORT: &str = r#"Examples:
  kiln report                        # the newest run
  kiln report x x~1                  # two runs side by side
  kiln report x --html report.html   # one page with plots
  kiln report x x~1 --csv epochs     # one table of both, for pandas
  kiln report x --csv points --columns valid_loss,mfu   # only these columns behind the axes
  kiln report x --fail-on 'valid_loss>2.6'   # exit status 1 if it is, for CI
  kiln report x --fail-on not-completed      # 1 if a trial did not complete

See docs/report.md"#;

pub(super) const LS: &str = r#"Examples:
  kiln ls --limit 10
  kiln ls --json | jq '.[0].run'   # for programs

See docs/running.md"#;

pub(super) const RM: &str = r#"Examples:
  kiln rm x~1                      # asks first
  kiln rm results/x/latest --yes
  kiln rm x --weights --but 3      # only checkpoints; the 3 best trials keep theirs

See docs/running.md"#;

pub(super) const SAMPLE: &str = r#"Examples:
  kiln sample latest --prompt ROMEO:
  kiln sample shakespeare-cpu:t31a --prompt KING --tokens 500 --temperature 0.8 --top-k 20
  kiln sample results/chatlm-sft/latest --prompt Hello --temperature 0
  kiln sample latest --prompt KING --count 3 --seed 7 --format json

See docs/use-the-model.md"#;

pub(super) const PREDICT: &str = r#"Examples:
  kiln predict latest photo.png other.jpg
  kiln predict results/cifar10-resnet/latest *.png --top 5 --format csv
  kiln predict panel-lstm-hidden:t9c2 prices/AAPL.csv prices/MSFT.csv --format json

See docs/use-the-model.md"#;

pub(super) const EVALUATE: &str = r#"Examples:
  kiln evaluate latest
  kiln evaluate shakespeare-cpu:t31a --step 200 --data other.txt
  kiln evaluate results/photos/latest --data test-photos --format json

See docs/use-the-model.md"#;

pub(super) const EXPORT: &str = r#"Examples:
  kiln export latest --to my-model
  kiln export results/shakespeare-cpu/latest:t31a --to my-model --force
  # `python my-model/model.py` then compares PyTorch's outputs with kiln's

See docs/use-the-model.md"#;

pub(super) const SNAPSHOT: &str = r#"Examples:
  kiln snapshot         # the page of nvidia-smi -q
  kiln snapshot --words # its meaning, and why a GPU may be little used
  kiln snapshot --csv

See docs/snapshot.md"#;

pub(super) const WATCH: &str = r#"Examples:
  kiln watch                    # the readings of the devices
  kiln watch latest             # the newest run, while it goes on
  kiln watch quickstart --once  # one frame

See docs/running.md"#;

pub(super) const CALIBRATE: &str = r#"Examples:
  kiln calibrate

See docs/measurement.md"#;

pub(super) const DOCTOR: &str = r#"Examples:
  kiln doctor
  kiln doctor --on slurm width.yaml  # would this cluster take its workers?

See docs/doctor.md"#;

pub(super) const DATA: &str = r#"Examples:
  kiln data list
  kiln data show x.yaml        # samples, classes, what is left out
  kiln data fetch wikitext2
  kiln data verify

See docs/data.md"#;

pub(super) const SCHEMA: &str = r#"Examples:
  kiln schema > experiment.schema.json   # for an editor

See docs/experiment-file.md"#;

pub(super) const HELPER: &str = r#"Examples:
  kiln helper python > kiln_child.py   # beside the script that imports it

See docs/engines.md"#;

pub(super) const COMPLETIONS: &str = r#"Examples:
  mkdir -p ~/.local/share/bash-completion/completions
  kiln completions bash > ~/.local/share/bash-completion/completions/kiln

See docs/installing.md"#;

pub(super) const MAN: &str = r#"Examples:
  kiln man | man -l -

See docs/installing.md"#;

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use clap::Parser;

    use crate::commands::{Cli, command_line};

    /// The words of a command up to a pipe, a redirection, a comment or the next command, without
    /// quotes.
    fn words(typed: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for letter in typed.chars() {
            match (quote, letter) {
                (Some(open), letter) if letter == open => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (None, '|' | '>' | ';' | '&') => break,
                (None, '#') if word.is_none() => break,
                (None, letter) if letter.is_whitespace() => words.extend(word.take()),
                (_, letter) => word.get_or_insert_default().push(letter),
            }
        }
        words.extend(word);
        words
    }

    /// The READMEs and all pages below `docs`.
    fn pages() -> Vec<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folders = [root.to_owned(), root.join("docs"), root.join("docs/guide")];
        let listed = folders
            .iter()
            .flat_map(|folder| fs::read_dir(folder).unwrap());
        let paths = listed.map(|entry| entry.unwrap().path());
        let is_page = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.ends_with(".md") && name != "CHANGELOG.md"
        };
        paths.filter(is_page).collect()
    }

    /// The lines of a page's fenced blocks; a backslash at the end of one continues it.
    fn lines_of_blocks(page: &Path) -> Vec<String> {
        let text = fs::read_to_string(page).unwrap().replace("\\\n", " ");
        let (mut lines, mut is_open) = (Vec::new(), false);
        for line in text.lines() {
            match line.trim_start().starts_with("```") {
                true => is_open = !is_open,
                false if is_open => lines.push(line.to_owned()),
                false => {}
            }
        }
        lines
    }

    #[test]
    fn the_commands_of_the_pages_parse() {
        let mut count = 0;
        for page in pages() {
            for line in lines_of_blocks(&page) {
                let typed = line.trim_start().trim_start_matches("$ ");
                let typed = typed.trim_start_matches("exec ");
                let words: Vec<String> = words(typed)
                    .into_iter()
                    .skip_while(|word| word.starts_with("KILN_"))
                    .collect();
                if words.first().is_none_or(|word| word != "kiln") {
                    continue;
                }
                let parsed = Cli::try_parse_from(&words);
                let place = page.display();
                assert!(parsed.is_ok(), "{place}: {line}: {}", parsed.err().unwrap());
                count += 1;
            }
        }
        assert!(count > 60, "{count}");
    }

    #[test]
    fn every_verb_has_examples_that_parse_and_a_page_that_exists() {
        for verb in command_line().get_subcommands() {
            let name = verb.get_name();
            let help = verb.get_after_long_help().map(ToString::to_string);
            let help = help.unwrap_or_else(|| panic!("{name} has no examples"));
            let examples = help.lines().filter_map(|line| line.strip_prefix("  kiln "));
            let mut count = 0;
            for example in examples {
                let typed = words(&format!("kiln {example}"));
                let parsed = Cli::try_parse_from(&typed);
                assert!(parsed.is_ok(), "kiln {example}: {}", parsed.err().unwrap());
                assert!(example.starts_with(name), "{name}: {example}");
                count += 1;
            }
            assert!(count > 0, "{name}");
            let page = help.lines().last().unwrap().strip_prefix("See ").unwrap();
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
            assert!(page.is_file(), "{name}: {}", page.display());
        }
    }
}
