//! `kiln schema`: the kept copy is current, and files are judged by it as `kiln check` judges them.

mod validator;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use serde_json::{Value, json};

use validator::Validator;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What `kiln schema` prints.
static PRINTED: LazyLock<String> = LazyLock::new(|| {
    let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .arg("schema")
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
});

fn validator() -> Validator {
    Validator::new(&serde_json::from_str(&PRINTED).unwrap()).unwrap()
}

fn read(path: &Path) -> Value {
    serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The YAML files of a folder of the project.
fn files(folder: &str) -> Vec<PathBuf> {
    let listing = fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    listing
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect()
}

#[test]
fn the_kept_schema_is_what_kiln_prints() {
    let kept = root().join("docs/experiment.schema.json");
    if std::env::var_os("KILN_BLESS").is_some() {
        fs::write(&kept, &*PRINTED).unwrap();
    }
    assert!(
        fs::read_to_string(kept).unwrap() == *PRINTED,
        "run `kiln schema > docs/experiment.schema.json`"
    );
}

/// The validator is our own, so it is tested: one value that fits each schema, and one that does
/// not.
#[test]
fn each_keyword_accepts_and_refuses() {
    let defs = json!({"positive": {"type": "number", "exclusiveMinimum": 0.0}});
    let cases = [
        (json!({"type": "integer"}), json!(8.0), json!(8.5)),
        (json!({"type": ["string", "null"]}), json!(null), json!(1)),
        (json!({"type": "boolean"}), json!(true), json!("true")),
        (json!({"const": "a"}), json!("a"), json!("b")),
        (json!({"enum": ["a", "b"]}), json!("b"), json!("c")),
        (json!({"minimum": 1, "maximum": 3}), json!(3), json!(0)),
        (json!({"minimum": 1, "maximum": 3}), json!("text"), json!(4)),
        (json!({"$ref": "#/$defs/positive"}), json!(0.5), json!(0.0)),
        (
            json!({"$ref": "#/$defs/positive", "maximum": 1}),
            json!(1),
            json!(2),
        ),
        (json!({"minLength": 2}), json!("äö"), json!("ä")),
        (json!({"pattern": "^a+$"}), json!("aa"), json!("ab")),
        (
            json!({"minItems": 1, "items": {"type": "string"}}),
            json!(["a"]),
            json!([]),
        ),
        (
            json!({"minItems": 1, "items": {"type": "string"}}),
            json!(["a"]),
            json!(["a", 1]),
        ),
        (json!({"minProperties": 1}), json!({"a": 1}), json!({})),
        (
            json!({"required": ["a"]}),
            json!({"a": null}),
            json!({"b": 1}),
        ),
        (
            json!({"properties": {"a": {"type": "null"}}}),
            json!({"b": 1}),
            json!({"a": 1}),
        ),
        (
            json!({"properties": {"a": true}, "additionalProperties": false}),
            json!({"a": 1}),
            json!({"b": 1}),
        ),
        (
            json!({"patternProperties": {"^a": {"const": "x"}}, "additionalProperties": false}),
            json!({"ab": "x"}),
            json!({"ab": "y"}),
        ),
        (
            json!({"patternProperties": {"^a": true}, "additionalProperties": {"const": "x"}}),
            json!({"b": "x"}),
            json!({"b": "y"}),
        ),
        (
            json!({"allOf": [{"minimum": 1}, {"maximum": 3}]}),
            json!(2),
            json!(4),
        ),
        (
            json!({"anyOf": [{"const": "a"}, {"type": "null"}]}),
            json!(null),
            json!("b"),
        ),
        (
            json!({"oneOf": [{"minimum": 1}, {"maximum": 3}]}),
            json!(4),
            json!(2),
        ),
        (
            json!({"not": {"required": ["a"]}}),
            json!({}),
            json!({"a": 1}),
        ),
        (
            json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}}),
            json!({"c": 1}),
            json!({"a": 1}),
        ),
    ];
    for (mut schema, good, bad) in cases {
        schema["$defs"] = defs.clone();
        let validator = Validator::new(&schema).unwrap();
        assert_eq!(validator.fault(&good), None, "{schema}");
        assert!(validator.fault(&bad).is_some(), "{schema} accepts {bad}");
    }
    for unsound in [
        json!({"uniqueItems": true}),
        json!({"properties": {"a": {"maxLength": 3}}}),
        json!({"type": "text"}),
        json!({"$ref": "#/$defs/gone"}),
        json!({"pattern": "("}),
        json!({"anyOf": []}),
        json!({"items": 3}),
    ] {
        assert!(Validator::new(&unsound).is_err(), "{unsound}");
    }
}

#[test]
fn the_schema_describes_every_section() {
    let schema: Value = serde_json::from_str(&PRINTED).unwrap();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    for name in ["kiln", "name", "description", "extends"] {
        assert!(
            schema["properties"][name]["description"]
                .as_str()
                .is_some_and(|text| text.len() > 10),
            "{name}"
        );
    }
}

#[test]
fn good_files_validate_and_their_first_line_names_the_schema_for_editors() {
    let validator = validator();
    let kept = fs::canonicalize(root().join("docs/experiment.schema.json")).unwrap();
    for (folder, least) in [
        ("experiments", 4),
        ("experiments/base", 1),
        ("tests/experiments", 1),
        ("tests/experiments/good", 4),
        ("tests/experiments/gpu", 10),
    ] {
        let files = files(folder);
        assert!(files.len() >= least, "{folder}: {files:?}");
        for path in files {
            assert_eq!(validator.fault(&read(&path)), None, "{}", path.display());
            let text = fs::read_to_string(&path).unwrap();
            let hint = text
                .lines()
                .next()
                .unwrap()
                .strip_prefix("# yaml-language-server: $schema=");
            let named = path.parent().unwrap().join(
                hint.unwrap_or_else(|| panic!("{}: no hint in its first line", path.display())),
            );
            assert_eq!(fs::canonicalize(named).unwrap(), kept, "{}", path.display());
        }
    }
}

/// Bad files whose faults are all `kiln check` alone can see, such as keys against one another, are
/// not here.
#[test]
fn the_schema_refuses_what_it_can_see() {
    let validator = validator();
    for name in [
        "choices",
        "devices",
        "dotted-key",
        "empty-text",
        "extends-list",
        "future-data-keys",
        "future-keys",
        "future-values",
        "gpt-size",
        "heads-beside-others",
        "images-crop",
        "images-range",
        "initial-weights",
        "key-elsewhere",
        "list",
        "lists-for-axes",
        "misspelt-sections",
        "name-pattern",
        "no-devices",
        "other-kind",
        "own-model-images",
        "pairs",
        "panel-columns",
        "panel-no-columns",
        "panel-one-column",
        "panel-stocknet",
        "ranges",
        "sample",
        "search-axes",
        "search-values",
        "search-without-kind",
        "search-workers",
        "sweep-keys",
        "sweep-lists",
        "sweep-points",
        "sweep-shape",
        "sweep-values",
        "time-spans",
        "types",
        "unknown-keys",
    ] {
        let path = root().join(format!("tests/experiments/bad/{name}.yaml"));
        assert!(validator.fault(&read(&path)).is_some(), "{name}");
    }
}

/// Files that need no other, and the same on top of one that may give the rest.
#[test]
fn what_a_section_needs_is_required_of_a_file_that_stands_alone() {
    let validator = validator();
    let fault = |lines: &str| {
        validator.fault(&serde_yaml::from_str(&format!("{{kiln: 1, name: x, {lines}}}")).unwrap())
    };
    for lines in [
        "data: {kind: text}, model: {kind: mlp}",
        "model: {d_model: 8}",
        "model: {kind: mlp}, train: {target: {}}",
    ] {
        assert!(fault(lines).is_some(), "{lines}");
        assert_eq!(fault(&format!("extends: a.yaml, {lines}")), None, "{lines}");
    }
    assert_eq!(
        fault(
            "data: {kind: text, path: a.txt}, model: {kind: mlp}, train: {target: {valid_loss: \
             2.0}}, run: null"
        ),
        None
    );
}

#[test]
fn lengths_of_time_are_judged_as_the_check_judges_them() {
    let validator = validator();
    let fits = |span: &str| {
        let file =
            json!({"kiln": 1, "name": "x", "model": {"kind": "matmul"}, "run": {"timeout": span}});
        validator.fault(&file).is_none()
    };
    for span in [
        "500ms",
        "2s",
        "30m",
        "1h 30m",
        "1h30m",
        "1.5h",
        "90 minutes",
        "1 hour, 5 secs",
        "01:30:00",
        "PT90S",
        "3us",
        "3 µs",
    ] {
        assert!(
            kiln_core::units::TimeSpan::parse(span).is_ok() && fits(span),
            "{span}"
        );
    }
    for span in ["banana", "5", "", "3 parsecs", "-3s", "h", "m 3"] {
        assert!(
            kiln_core::units::TimeSpan::parse(span).is_err() && !fits(span),
            "{span}"
        );
    }
}
