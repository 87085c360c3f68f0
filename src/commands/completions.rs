//! `kiln completions`: prints a completion script for a shell. In bash, zsh and fish it also
//! completes the short names of runs, which `kiln ls --names` prints, and `RUN:TRIAL`, from
//! `kiln ls --trials RUN`.

use clap_complete::{Shell, generate};

use super::{Status, Stop, command_line, print_own};

/// Readline begins a new word at a colon, so what follows it is completed alone.
const BASH_RUNS: &str = r#"
_kiln_with_runs() {
    _kiln "$@"
    local line="${COMP_LINE:0:COMP_POINT}" kept=""
    local word="${line##*[[:space:]]}"
    [[ $word == -* ]] && return
    case "${COMP_WORDS[1]}" in
        VERBS_OF_MODELS)
            if [[ $word == *:* ]]; then
                [[ $COMP_WORDBREAKS == *:* ]] || kept="${word%:*}:"
                COMPREPLY=($(compgen -P "$kept" -W "$(kiln ls --trials "${word%:*}" 2>/dev/null)" -- "${word##*:}"))
                return
            fi
            ;;&
        VERBS_OF_RUNS | VERBS_OF_MODELS)
            COMPREPLY+=($(compgen -W "$(kiln ls --names 2>/dev/null)" -- "$word"))
            ;;
    esac
}
complete -F _kiln_with_runs -o bashdefault -o default kiln
"#;

/// Replaces the end of the script, which starts its function or registers it.
const ZSH_RUNS: &str = r#"
_kiln_with_runs() {
    local -a runs trials
    if [[ $PREFIX != -* && $CURRENT -gt 2 ]]; then
        case $words[2] in
            VERBS_OF_RUNS | VERBS_OF_MODELS)
                runs=(${(f)"$(kiln ls --names 2>/dev/null)"})
                compadd -a runs
                ;|
            VERBS_OF_MODELS)
                if [[ $PREFIX == *:* ]]; then
                    trials=(${(f)"$(kiln ls --trials "${PREFIX%:*}" 2>/dev/null)"})
                    compadd -p "${PREFIX%:*}:" -a trials
                fi
                ;;
        esac
    fi
    _kiln "$@"
}

compdef _kiln_with_runs kiln
if [ "$funcstack[1]" = "_kiln" ]; then
    _kiln_with_runs "$@"
fi
"#;
const ZSH_END: &str = "if [ \"$funcstack[1]\" = \"_kiln\" ]; then";

const FISH_RUNS: &str = r#"
function __kiln_models
    kiln ls --names 2>/dev/null
    set -l word (commandline --current-token --cut-at-cursor)
    if string match --quiet '*:*' -- $word
        set -l run (string replace --regex ':[^:]*$' '' -- $word)
        kiln ls --trials "$run" 2>/dev/null | string replace --regex '^' "$run:"
    end
end
complete -c kiln -n "__fish_seen_subcommand_from VERBS_OF_RUNS" -a "(kiln ls --names 2>/dev/null)"
complete -c kiln -n "__fish_seen_subcommand_from VERBS_OF_MODELS" -a "(__kiln_models)"
"#;

/// Verbs that take runs.
const VERBS_OF_RUNS: [&str; 6] = ["report", "compare", "diff", "reproduce", "rm", "watch"];
/// Verbs that take a trained model, as `RUN` or `RUN:TRIAL`.
const VERBS_OF_MODELS: [&str; 4] = ["sample", "predict", "evaluate", "export"];

#[derive(clap::Args)]
pub(super) struct Args {
    /// The shell to complete for.
    shell: Shell,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let mut script = Vec::new();
    generate(args.shell, &mut offered(), "kiln", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    print_own(&match args.shell {
        Shell::Bash => script + &with_verbs(BASH_RUNS, " | "),
        Shell::Zsh => {
            let end = script.rfind(ZSH_END).unwrap_or(script.len());
            script[..end].to_owned() + &with_verbs(ZSH_RUNS, " | ")
        }
        Shell::Fish => script + &with_verbs(FISH_RUNS, " "),
        _ => script,
    })?;
    Ok(Status::Success)
}

/// The command line without its hidden verbs, which the generator would offer too.
fn offered() -> clap::Command {
    let whole = command_line();
    let shown = whole
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .cloned();
    clap::Command::new("kiln")
        .version(env!("CARGO_PKG_VERSION"))
        .args(whole.get_arguments())
        .subcommands(shown)
}

fn with_verbs(text: &str, separator: &str) -> String {
    text.replace("VERBS_OF_RUNS", &VERBS_OF_RUNS.join(separator))
        .replace("VERBS_OF_MODELS", &VERBS_OF_MODELS.join(separator))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_verb_is_not_offered() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            generate(shell, &mut offered(), "kiln", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(!script.contains("relay"), "{shell}: {script}");
            for shown in ["report", "color", "version"] {
                assert!(script.contains(shown), "{shell}: no {shown}");
            }
        }
    }

    #[test]
    fn the_verbs_of_runs_and_models_exist() {
        let command = command_line();
        for verb in VERBS_OF_RUNS.iter().chain(&VERBS_OF_MODELS) {
            assert!(command.find_subcommand(verb).is_some(), "{verb}");
        }
    }
}
