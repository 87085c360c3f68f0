use kiln_core::spec;
use serde_json::Value;

use super::*;

fn rendered(line: &str) -> String {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let error = command_line().try_get_matches_from(&words).unwrap_err();
    with_tip(error, &words).render().to_string()
}

#[test]
fn an_option_of_other_programs_leads_to_what_kiln_has() {
    let cases = [
        ("kiln run f --json", "use '--progress json'"),
        ("kiln tune f --json", "use '--progress json'"),
        ("kiln run f --format json", "use '--progress json'"),
        ("kiln run f --format=json", "use '--progress json'"),
        ("kiln run f -q", "use '--quiet'"),
        ("kiln run f --batch_size 8", "'--set train.batch_size=…'"),
        ("kiln run f --max_steps 8", "'--set train.steps=…'"),
        (
            "kiln run f --learning_rate 8",
            "'--set train.optimizer.learning_rate=…'",
        ),
        ("kiln run f --resume", "the same command resumes"),
        ("kiln run f --repeats 3", "'--set sweep.repeats=…'"),
        ("kiln tune f --repeats 2", "'--set sweep.search.repeats=…'"),
        ("kiln run f --steps=3", "'--set train.steps=…'"),
        ("kiln plan f --device cpu", "'--set run.devices=…'"),
        ("kiln plan f --batch-size 8", "'--set train.batch_size=…'"),
        (
            "kiln plan f --steps 5",
            "for a command '--set model.values.NAME=…'",
        ),
        ("kiln plan f --seed 5", "'--set train.seed=…'"),
        ("kiln doctor f --gpus 0", "'--set run.devices=…'"),
        (
            "kiln compare a b --rerun --device cpu",
            "'--set run.devices=…'",
        ),
        ("kiln run f --gpus 2", "use '--device'"),
        ("kiln run f --gpus 0,1", "use --device '[0, 1]'"),
        ("kiln run --gpus=0,1 f", "use --device '[0, 1]'"),
        ("kiln plan f --device 0,1", "--set 'run.devices=[0, 1]'"),
        ("kiln sample x --gpus 0,1", "use '--device'"),
        ("kiln --color never run f --gpu 0", "use '--device'"),
        (
            "kiln sample x --temperature -1.5",
            "'--temperature' takes no negative value",
        ),
        ("kiln ls --limit -1", "'--limit' takes no negative value"),
        ("kiln sample x --prompt -1.5", "write '--prompt=-1.5'"),
        (
            "kiln compare x --between model.shift --base -1",
            "write '--base=-1'",
        ),
        (
            "kiln report --markdown",
            "this format is chosen by '--format markdown'",
        ),
        ("kiln resume f", "use 'kiln run': it resumes"),
        ("kiln show f", "use 'kiln report': it explains"),
        ("kiln status", "use 'kiln watch': it shows"),
        ("kiln log f", "use 'kiln watch'"),
        ("kiln clean", "use 'kiln rm'"),
        ("kiln validate f", "use 'kiln check'"),
    ];
    for (line, tip) in cases {
        let text = rendered(line);
        assert!(text.contains(tip), "{line}: {text}");
        assert!(!text.contains("similar"), "{line}: {text}");
        assert_eq!(text.matches("tip:").count(), 1, "{line}: {text}");
    }
    // The usage of clap would show the option that it suggests.
    assert!(!rendered("kiln run f --repeats 3").contains("--results"));
}

#[test]
fn the_repeats_of_a_search_are_named_only_where_its_kind_has_them() {
    let key = "sweep.search.repeats";
    for line in [
        "kiln tune f --search largest-batch --repeats 2",
        "kiln tune f --repeats=2 --search=largest-batch",
    ] {
        let text = rendered(line);
        assert!(
            text.contains("repeats no trial") && !text.contains(key),
            "{text}"
        );
    }
    let of_file = rendered("kiln tune f --repeats 2");
    let told = "a search of kind 'largest-batch' has no such key";
    assert!(of_file.contains(told), "{of_file}");
    let workers = rendered("kiln tune f --search workers --repeats 2");
    assert!(
        workers.contains(key) && !workers.contains("largest-batch"),
        "{workers}"
    );
    let schema = spec::schema();
    let searches = kinds(&schema, &schema["$defs"]["Search"]);
    let lacking = searches
        .iter()
        .map(|search| &search["properties"])
        .filter(|keys| keys.get("repeats").is_none());
    let names: Vec<&str> = lacking
        .filter_map(|keys| keys["kind"]["const"].as_str())
        .collect();
    assert_eq!(names, [WITHOUT_REPEATS]);
}

#[test]
fn no_tip_leads_to_the_next_error() {
    assert!(!rendered("kiln sample x --results -1").contains("tip:"));
    for line in [
        "kiln compare a b --device cpu",
        "kiln doctor --gpus 0",
        "kiln run f --cuda",
    ] {
        let text = rendered(line);
        assert!(!text.contains("--set run.devices"), "{line}: {text}");
        assert!(!text.contains("'--device'\n"), "{line}: {text}");
    }
}

#[test]
fn what_never_resumes_is_not_said_to_resume() {
    let text = rendered("kiln reproduce x --resume");
    assert!(!text.contains("resumes"), "{text}");
    assert!(rendered("kiln tune f --resume").contains("the same command resumes"));
    let mut commands = command_line();
    let reproduce = commands.find_subcommand_mut("reproduce").unwrap();
    let help = reproduce.render_long_help().to_string();
    assert!(!help.contains("--fresh"), "{help}");
}

#[test]
fn an_option_that_takes_the_next_words_goes_last() {
    let text = rendered("kiln evaluate --data corpus.txt curves");
    assert!(
        text.contains("tip: '--data' takes all words behind it; put it last"),
        "{text}"
    );
    let usage = "Usage: kiln evaluate <RUN[:TRIAL]> [OPTIONS] [--data <PATH>...]";
    assert!(text.contains(usage), "{text}");
    let text = rendered("kiln predict --top photos x.png");
    assert!(text.contains("write '--top=N', or put it last"), "{text}");
    for top in ["--top 2.5", "--top 0", "--top=", "--top=abc"] {
        let text = rendered(&format!("kiln predict x x.png {top}"));
        assert!(text.contains("error:"), "{text}");
        assert!(!text.contains("tip:"), "{text}");
    }
    assert!(!rendered("kiln evaluate").contains("tip:"));
}

#[test]
fn no_tip_says_to_write_an_option_behind_dashes() {
    for line in [
        "kiln run f -v",
        "kiln export x --to d --json",
        "kiln plan f --only t1",
        "kiln report --quiet",
        "kiln data verify x --jsom",
    ] {
        let text = rendered(line);
        assert!(!text.contains("as a value"), "{line}: {text}");
    }
    let slip = rendered("kiln run f --detatch");
    assert!(slip.contains("'--detach'"), "{slip}");
}

#[test]
fn only_an_option_of_nearly_the_same_name_is_suggested() {
    for line in [
        "kiln run f --format text",
        "kiln run f --data x",
        "kiln run f --config x",
        "kiln run f --from x",
    ] {
        let text = rendered(line);
        assert!(!text.contains("tip:"), "{line}: {text}");
        assert!(text.contains("Usage: kiln run [OPTIONS]"), "{line}: {text}");
    }
    for (line, option) in [
        ("kiln sample x --temp 1", "'--temperature'"),
        ("kiln run f --dry_run", "'--dry-run'"),
        ("kiln snapshot --query-gpus index", "'--query-gpu'"),
        ("kiln run f --colour never", "'--color'"),
    ] {
        let text = rendered(line);
        assert!(text.contains(option), "{line}: {text}");
        assert_eq!(text.matches("tip:").count(), 1, "{line}: {text}");
    }
}

#[test]
fn each_target_exists() {
    let commands = command_line();
    for (names, target) in OPTIONS {
        let mut all = commands.get_subcommands();
        assert!(all.any(|command| has(command, target)), "{names:?}");
        if let Target::Key(key) | Target::KeyIn(_, key) = target {
            assert!(is_key(key), "{key}");
        }
    }
    for name in FREE_TEXTS {
        let mut all = commands.get_subcommands();
        assert!(all.any(|command| option(command, name).is_some()), "{name}");
    }
    for (_, command, _) in COMMANDS {
        assert!(commands.find_subcommand(command).is_some(), "{command}");
    }
}

fn is_key(key: &str) -> bool {
    let schema = spec::schema();
    let mut places = vec![&schema];
    for part in key.split('.') {
        places = places
            .into_iter()
            .flat_map(|place| kinds(&schema, place))
            .filter_map(|kind| kind["properties"].get(part))
            .collect();
    }
    !places.is_empty()
}

/// The maps that a place of the schema allows.
fn kinds<'a>(schema: &'a Value, place: &'a Value) -> Vec<&'a Value> {
    if let Some(name) = place["$ref"].as_str() {
        let name = name.trim_start_matches('#');
        return kinds(schema, schema.pointer(name).unwrap());
    }
    let of = |word: &str| place[word].as_array().into_iter().flatten();
    let inner = of("oneOf").chain(of("anyOf"));
    let mut all: Vec<&Value> = inner.flat_map(|inner| kinds(schema, inner)).collect();
    all.push(place);
    all
}
