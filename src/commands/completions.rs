//! `kiln completions`: prints a completion script for a shell. In bash and fish it also completes
//! the short names of runs, which `kiln ls --names` prints.

use clap_complete::{Shell, generate};

use super::{Status, Stop, command_line, print_own};

const BASH_RUNS: &str = r#"
_kiln_with_runs() {
    _kiln "$@"
    local word="${COMP_WORDS[COMP_CWORD]}"
    case "${COMP_WORDS[1]}" in
        report | compare | diff | reproduce | rm)
            if [[ $word != -* ]]; then
                COMPREPLY+=($(compgen -W "$(kiln ls --names 2>/dev/null)" -- "$word"))
            fi
            ;;
    esac
}
complete -F _kiln_with_runs -o bashdefault -o default kiln
"#;

const FISH_RUNS: &str = r#"
complete -c kiln -n "__fish_seen_subcommand_from report compare diff reproduce rm" -a "(kiln ls --names 2>/dev/null)"
"#;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The shell to complete for.
    shell: Shell,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let mut script = Vec::new();
    generate(args.shell, &mut command_line(), "kiln", &mut script);
    let names_of_runs = match args.shell {
        Shell::Bash => BASH_RUNS,
        Shell::Fish => FISH_RUNS,
        _ => "",
    };
    print_own(&(String::from_utf8_lossy(&script).into_owned() + names_of_runs))?;
    Ok(Status::Success)
}
