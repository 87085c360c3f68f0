//! A commented experiment file for any program.

/// The file: it sweeps a program that every Linux machine has. `about` is the machine in words.
pub(super) fn experiment(name: &str, about: &str) -> String {
    format!(
        "# Written by `kiln init` for {about}.
# `kiln check` finds mistakes, `kiln plan` shows the commands, `kiln run` runs them.
# Every key is described in docs/command.md; `kiln schema` prints them for an editor.
kiln: 1
name: {name}  # the folder below results/
description: With which block size does dd copy fastest?

model:
  kind: command
  # Your program takes the place of dd. No shell reads this: each entry is one argument.
  # {{name}} is a value below; kiln's own: {{seed}}, {{trial}}, {{folder}} (of the attempt), {{device}}.
  argv: [dd, if=/dev/zero, of=/dev/null, \"bs={{block}}\", count=4G, iflag=count_bytes, {{when: full, then: [conv=sync]}}]
  values:
    block: 64k              # each value reaches the program, or the file is refused
    full: false             # false and null leave a `when` out
  environment: {{LC_ALL: C}}  # further variables; OMP_NUM_THREADS: \"{{threads}}\"
  # prepare: [make]         # run before each attempt, not measured
  # files: [src/*.c]        # a resume is refused if one of them changed
  metrics:                  # without metrics, kiln measures time and memory itself
    # The number in the group of a pattern, from the lines of an output.
    seconds: {{line: 'copied, (\\S+) s', on: stderr, better: low}}
    # Of JSON lines: loss: {{key: loss}}; of a file: {{csv: \"{{folder}}/log.csv\", column: loss}}
    cpu_seconds: {{measured: cpu_seconds}}

sweep:
  grid:                     # every combination of the values of all axes
    model.values.block: [4k, 64k, 1M]
  repeats: 3                # the spread is part of the result

run:
  devices: cpu              # auto: a GPU if there is one
  timeout: 5m               # for each trial
"
    )
}
